"""Request: what a caller asks for, as one object; and the keys that keep the cached K/V of equal tokens apart."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nanoinfer.errors import InvalidRequestError
from nanoinfer.sampling_params import SamplingParams

Prompt = str | Sequence[int] | np.ndarray
PROMPT_KEYS = ("prompt", "prompt_token_ids")  # of a mapping that is a prompt; ids count if there are both


@dataclass(frozen=True, eq=False)
class Request:
    """A prompt and everything that goes with it. It is not checked yet; RequestBuilder does that.

    - `prompt`: text or token ids; vLLM's mappings with one of these are read (PROMPT_KEYS).
    - `extra_key`: only requests with equal keys share cached prefixes (see `check_extra_key`).
    - `timeout_s`: after so many seconds from arrival, completions that are still running are ended.
    - `adapter`: the name of a loaded adapter; None or "base": the base model.
    - `name`: what error messages call the prompt.
    - `output_ids`: the first tokens of the only completion, if another engine of this model has sampled them already. The
      request goes on behind them, as if this engine had (see `replay` in request_builder.py).
    """

    prompt: Prompt
    params: SamplingParams = field(default_factory=SamplingParams)
    extra_key: Hashable = None
    timeout_s: float | None = None
    name: str = "prompt"
    adapter: str | None = None
    output_ids: Sequence[int] = ()

    def __post_init__(self) -> None:
        if isinstance(self.prompt, Mapping):
            object.__setattr__(self, "prompt", _prompt_in(self.prompt, self.name))


DEEPEST = (
    32  # so many tuples of an `extra_key` may be in one another: comparing them and taking their hash is recursive
)


@dataclass(frozen=True)
class AdapterKey:
    """The `extra_key` of a request with an adapter, which computes other K/V for the same tokens than the base model.

    `id`: the adapter's, which is never used again; its `name` may be.
    """

    id: int
    extra_key: Hashable
    name: str = ""


def check_extra_key(extra_key: object, name: str = "extra_key", levels: int = DEEPEST) -> None:
    """InvalidRequestError unless a key is None, text, bytes, an integer or a tuple of keys, at most `levels` deep.

    Plain types always compare the same way. An object with an `__eq__` of its own could change its mind while its tokens
    are in the tree, or raise in the middle of a pass that computes other requests.
    """
    if type(extra_key) is tuple:
        if not levels:
            raise InvalidRequestError(f"{name}: has more than {DEEPEST} tuples in one another")
        for each in extra_key:
            check_extra_key(each, name, levels - 1)
    elif extra_key is not None and type(extra_key) not in (str, bytes, int, bool):
        raise InvalidRequestError(f"{name}={extra_key!r}: must be None, text, bytes, an integer or a tuple of these")


def params_or_default(params: SamplingParams | Mapping[str, Any] | None) -> SamplingParams:
    """`params`; or made from a mapping, as SGLang has it; or the defaults if it is None."""
    return SamplingParams(**(params or {})) if params is None or isinstance(params, Mapping) else params


def got(given: object) -> str:
    """The end of the message for a prompt of a wrong type."""
    return f"got {type(given).__name__}"


def _prompt_in(mapping: Mapping[str, Any], name: str) -> Any:
    """The prompt in a mapping such as {"prompt_token_ids": [5]}. InvalidRequestError if it has none, or anything else."""
    given = {key: value for key, value in mapping.items() if value is not None}
    if not given or not given.keys() <= {*PROMPT_KEYS}:
        keys = ", ".join(map(str, given)) or "nothing"
        raise InvalidRequestError(
            f"{name}: is a mapping with {keys}: must have prompt or prompt_token_ids, and no more"
        )
    return given.get("prompt_token_ids", given.get("prompt"))

"""Request: what a caller asks for, as one object."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from nanoinfer.requests.sampling_params import SamplingParams

Prompt = str | Sequence[int] | np.ndarray


@dataclass(frozen=True, eq=False)
class Request:
    """A prompt and everything that goes with it. It is not checked yet; RequestBuilder does that.

    - `prompt`: text or token ids.
    - `extra_key`: only requests with equal keys share cached prefixes. None, text, bytes, an integer or a tuple of these.
    - `timeout_s`: after so many seconds from arrival, completions that are still running are ended.
    - `adapter`: the name of a loaded adapter; None or "base": the base model.
    - `name`: what error messages call the prompt.
    - `output_ids`: the first tokens of the output, if another engine has sampled them already. The request goes on behind
      them, as if this engine had (see `continuation.py`).
    """

    prompt: Prompt
    params: SamplingParams = field(default_factory=SamplingParams)
    extra_key: Hashable = None
    timeout_s: float | None = None
    name: str = "prompt"
    adapter: str | None = None
    output_ids: Sequence[int] = ()


def params_or_default(params: SamplingParams | None) -> SamplingParams:
    """`params`, or the defaults if it is None."""
    return SamplingParams() if params is None else params


def no_params(given: object, or_else: str = "") -> str:
    """The message for `params` of a wrong type. `or_else`: what else would be allowed."""
    use = "; use SamplingParams(**params)" if isinstance(given, Mapping) else ""
    return f"params={given!r}: must be SamplingParams{or_else}{use}"


def got(given: object) -> str:
    """The end of the message for a prompt of a wrong type."""
    is_mapping = isinstance(given, Mapping)
    return f"got {type(given).__name__}{'; give the text or the token ids themselves' if is_mapping else ''}"

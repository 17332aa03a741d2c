"""Request: what a caller asks for, as one object."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from nanoinfer.requests.sampling_params import SamplingParams

Prompt = str | Sequence[int] | np.ndarray


@dataclass(frozen=True, eq=False)
class Request:
    """A prompt and everything that goes with it, not checked yet (RequestBuilder does that).

    - `prompt`: text or token ids.
    - `extra_key`: only requests with an equal one share cached prefixes. None, text, bytes, an integer or a tuple of these.
    - `timeout_s`: seconds from arrival after which those of its completions that have not ended do.
    - `name`: what error messages call the prompt.
    """

    prompt: Prompt
    params: SamplingParams = field(default_factory=SamplingParams)
    extra_key: Hashable = None
    timeout_s: float | None = None
    name: str = "prompt"


def params_or_default(params: SamplingParams | None) -> SamplingParams:
    """`params`, or the defaults where there are none."""
    return SamplingParams() if params is None else params


def no_params(given: object, or_else: str = "") -> str:
    """What an error says of what was given as `params` and is none; `or_else`: what may be given, too."""
    use = "; use SamplingParams(**params)" if isinstance(given, Mapping) else ""
    return f"params={given!r}: must be SamplingParams{or_else}{use}"


def got(given: object) -> str:
    """How an error ends about what was given as a prompt and is none."""
    is_mapping = isinstance(given, Mapping)
    return f"got {type(given).__name__}{'; give the text or the token ids themselves' if is_mapping else ''}"

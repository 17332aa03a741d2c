"""What a checkpoint's generation_config.json says about sampling."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from nanoinfer.errors import UnsupportedModelError
from nanoinfer.requests.sampling_params import Default, SamplingParams
from nanoinfer.requests.tokenizer_files import read_object

NAMES = [field.name for field in fields(SamplingParams) if isinstance(field.default, Default)]
OFF = ("none", None, "vllm")  # the last two are vLLM's


def sampling_defaults(path: Path, generation_config: str | None = "auto") -> dict[str, float]:
    """The defaults of NAMES in the folder `path`, for requests that do not give them; none with "none". As in vLLM,
    `do_sample` does not count. UnsupportedModelError naming the file and the field that has a wrong value."""
    if generation_config not in ("auto", *OFF):
        raise ValueError(f"generation_config={generation_config!r}: must be 'auto' or 'none'")
    file = path / "generation_config.json"
    said = {} if generation_config in OFF else read_object(file) or {}
    named = {name: said[name] for name in NAMES if said.get(name) is not None}
    try:
        params = SamplingParams(**named)
    except ValueError as error:
        raise UnsupportedModelError(f"{file}: {error}; with generation_config='none' it does not count") from error
    return {name: getattr(params, name) for name in named}


def in_words(defaults: Mapping[str, float]) -> str:
    """Such as "temperature 0.6, top_p 0.95"."""
    return ", ".join(f"{name} {value:g}" for name, value in defaults.items())

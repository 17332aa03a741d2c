"""Adapters: whatever requests are served together, each has the bits that it has alone."""

from collections.abc import Callable
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from nanoinfer import LLM
from tests.helpers.adapters import NAMES, Name, alone, outputs, three_adapters
from tests.helpers.kernels import need_cpp

Checkpoint = Callable[..., Path]
CPP = {"kernels": "cpp", "attention_backend": "cpp"}
ALONE: dict[tuple[tuple[int, ...], Name], list[dict[int, float]]] = {}
LOADED: dict[Path, LLM] = {}


def shared_llm(path: Path, folders: dict[str, Path]) -> LLM:
    if path not in LOADED:
        LOADED[path] = LLM(
            path, max_total_tokens=1024, max_context_len=40, max_adapters_on_device=2, adapters=folders, **CPP
        )
    return LOADED[path]


@settings(max_examples=40)
@given(data=st.data())
def test_any_batch_equals_its_requests_alone(data: st.DataObject, checkpoint: Checkpoint) -> None:
    need_cpp("float32")
    llm = shared_llm(checkpoint("llama"), three_adapters(checkpoint("llama")))
    names = data.draw(st.lists(st.sampled_from([None, *NAMES]), min_size=1, max_size=20))
    token = st.integers(5, 9)
    prompts = [data.draw(st.lists(token, min_size=1, max_size=9)) for _ in names]
    together = outputs(llm, prompts, names)
    for prompt, name, output in zip(prompts, names, together, strict=True):
        key = (tuple(prompt), name)
        if key not in ALONE:
            ALONE[key] = alone(llm, prompt, name)
        assert output.logprobs == ALONE[key]

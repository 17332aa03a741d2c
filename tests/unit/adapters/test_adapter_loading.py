"""Loading an adapter changes all or nothing, whatever raises meanwhile, and what is unloaded leaves no room behind."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from nanoinfer import LLM, SamplingParams
from nanoinfer.adapters import peft_files
from nanoinfer.model.layers.low_rank import RANKS, CppLowRank
from nanoinfer.model.loader import load_model
from tests.helpers.adapters import save_adapter
from tests.helpers.interrupts import raising
from tests.helpers.kernels import need_cpp

PARAMS = SamplingParams(max_new_tokens=3, temperature=0.0, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(checkpoint: Callable[..., Path]) -> LLM:
    return LLM(checkpoint("llama"), max_total_tokens=256)


@pytest.fixture(scope="module")
def folder(checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    network = load_model(checkpoint("llama"), kernels="torch").model
    return save_adapter(tmp_path_factory.mktemp("adapter") / "one", network)


class InterruptedFile:
    """A file of safetensors, and a signal that arrives as its method `at` is called."""

    at = ""

    def __init__(self, *args: Any, **options: Any):
        self._file = safe_open(*args, **options)

    def __enter__(self) -> "InterruptedFile":
        self._file.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        return self.__getattr__("__exit__")(*error)

    def __getattr__(self, name: str) -> Any:
        if name == self.at:
            signal.raise_signal(signal.SIGUSR1)
        return getattr(self._file, name)


@pytest.mark.parametrize("kind", [TimeoutError, ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("at", ["keys", "get_slice", "get_tensor", "__exit__"])
def test_what_a_handler_raises_comes_out_as_it_is_and_nothing_is_loaded(
    kind: type[BaseException], at: str, llm: LLM, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, raising(signal.SIGUSR1, kind):
        patch.setattr(InterruptedFile, "at", at)
        patch.setattr(peft_files, "safe_open", InterruptedFile)
        with pytest.raises(kind, match=r"^SIGUSR1$") as caught:
            llm.load_adapter("one", folder)
    assert type(caught.value) is kind
    assert not llm.adapters
    llm.load_adapter("one", folder)  # the name is free
    llm.unload_adapter("one")


@pytest.mark.cpu
def test_the_room_of_a_large_adapter_leaves_with_it(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    need_cpp("float32")
    network = load_model(checkpoint("llama"), kernels="torch").model
    llm = LLM(checkpoint("llama"), max_total_tokens=256, kernels="cpp", attention_backend="cpp")
    pool = llm.engine.adapters.pool
    wanted = {}
    for name, rank in (("small", 4), ("large", 50), ("middle", 20)):
        llm.load_adapter(name, save_adapter(tmp_path / name, network, rank, rank, ["q_proj"]))
        wanted[name] = llm.generate([5, 6], PARAMS, adapter=name)[0].token_ids

    def rooms() -> set[int]:
        return {table.most_ranks for table in pool.tables.values() if isinstance(table, CppLowRank)}

    assert rooms() == {56}
    for leaves, left in (("large", 24), ("middle", RANKS), ("small", RANKS)):
        version = pool.version
        llm.unload_adapter(leaves)
        assert rooms() == {left}
        assert (pool.version > version) == (leaves != "small")  # passes captured with more room are captured anew
        for name in llm.adapters:
            assert llm.generate([5, 6], PARAMS, adapter=name)[0].token_ids == wanted[name]

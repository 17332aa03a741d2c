"""Adapters of an engine: loaded and unloaded by name, all or nothing, refused by name, never mixed up in the cache."""

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from nanoinfer import LLM, AsyncEngine
from nanoinfer.ascend import GeneratorTorch
from nanoinfer.errors import AdapterError, InvalidRequestError
from nanoinfer.model.layers import low_rank
from nanoinfer.model.layers.low_rank import RANKS, CppLowRank
from nanoinfer.model.loader import load_model
from tests.helpers.adapters import MIXED, NAMES, PARAMS, PROMPTS, Name, outputs, save_adapter, three_adapters
from tests.helpers.fetches import Fetches
from tests.helpers.kernels import need_cpp
from tests.helpers.waiting import run

Checkpoint = Callable[..., Path]


def with_adapters(checkpoint: Checkpoint, **options: Any) -> LLM:
    path = checkpoint("llama")
    return LLM(path, max_total_tokens=512, adapters=three_adapters(path), **options)


# --- the cache ------------------------------------------------------------------------------------------------------


@pytest.mark.cpu
def test_the_cache_keeps_adapters_apart(checkpoint: Checkpoint) -> None:
    need_cpp("float32")  # the same bits in any batch
    llm = with_adapters(checkpoint)
    for name in (None, *NAMES):
        first, second = (llm.generate(PROMPTS[1], PARAMS, adapter=name)[0] for _ in range(2))
        assert first.cached_tokens == 0
        assert second.cached_tokens == 5
        assert first.logprobs == second.logprobs
    adapter = llm.adapters["small"]
    for key in ((adapter.id, None), adapter.id, ("small", None), "small"):  # of the base model
        assert llm.generate(PROMPTS[1], PARAMS, extra_key=key)[0].cached_tokens == 0
    assert llm.generate(PROMPTS[1], PARAMS, adapter="small", extra_key="mine")[0].cached_tokens == 0
    assert llm.generate(PROMPTS[1], PARAMS, adapter="small", extra_key="mine")[0].cached_tokens == 5


# --- loading and unloading ------------------------------------------------------------------------------------------


def test_an_adapter_that_is_used_is_not_unloaded(checkpoint: Checkpoint) -> None:
    llm = with_adapters(checkpoint)
    request_id = llm.engine.add_request(PROMPTS[0], PARAMS, adapter="small")
    llm.engine.step()
    with pytest.raises(AdapterError, match=r"adapter='small': requests use it: 1 \(the first: request_id=0\)"):
        llm.unload_adapter("small")
    llm.unload_adapter("large")
    assert [*llm.adapters] == ["small", "some"]
    llm.engine.abort(request_id)
    llm.unload_adapter("small")
    with pytest.raises(AdapterError, match="adapter='small'"):
        llm.unload_adapter("small")
    llm.engine.check_integrity()


def test_a_request_that_was_prepared_before_its_adapter_was_unloaded_is_refused(checkpoint: Checkpoint) -> None:
    llm = with_adapters(checkpoint)
    stream = llm.stream(PROMPTS[0], PARAMS, adapter="small")
    llm.unload_adapter("small")
    with pytest.raises(InvalidRequestError, match="adapter='small': has been unloaded since the request was prepared"):
        next(stream)
    assert not llm.engine.has_unfinished()


@pytest.mark.parametrize("name", ["small", "base", "", 3, "\ud800", "a\udcff"])
def test_a_name_that_cannot_be_is_refused(name: Any, checkpoint: Checkpoint) -> None:
    llm = with_adapters(checkpoint)
    with pytest.raises(AdapterError, match=f"adapter {re.escape(repr(name))}"):
        llm.load_adapter(name, three_adapters(checkpoint("llama"))["some"])
    assert [*llm.adapters] == [*NAMES]


def test_unknown_adapters_are_refused_before_anything_starts(checkpoint: Checkpoint) -> None:
    llm = with_adapters(checkpoint)
    with pytest.raises(InvalidRequestError, match="prompt 1: adapter='x'"):
        llm.generate([[5], [6]], PARAMS, adapter=[None, "x"])
    with pytest.raises(ValueError, match="adapter: 1 for 2"):
        llm.generate([[5], [6]], PARAMS, adapter=["small"])
    for wrong in (5, True, b"small", {"small"}, {"small": 1}):
        with pytest.raises(ValueError, match="prompt 0: adapter="):
            llm.generate([[5]], PARAMS, adapter=wrong)  # type: ignore[arg-type]
    for wrong in (["small"], "small", 3):
        with pytest.raises(ValueError, match="adapters="):
            LLM("/nowhere", adapters=wrong)  # type: ignore[arg-type]
    with pytest.raises(AdapterError, match="adapter None"):
        llm.load_adapter("y", None)  # type: ignore[arg-type]
    with pytest.raises(AdapterError, match="adapter '/nowhere'"):
        llm.load_adapter("y", "/nowhere")
    assert not llm.engine.has_unfinished()
    assert llm.generate([5], PARAMS, adapter="base")[0].logprobs == llm.generate([5], PARAMS)[0].logprobs


def test_all_callers_take_an_adapter(checkpoint: Checkpoint) -> None:
    llm = with_adapters(checkpoint)
    wanted = llm.generate(PROMPTS[0], PARAMS, adapter="large")[0].token_ids
    assert [token for piece in llm.stream(PROMPTS[0], PARAMS, adapter="large") for token in piece.token_ids] == wanted
    request_id = llm.engine.add_request(PROMPTS[0], PARAMS, adapter="large")
    while llm.engine.is_unfinished(request_id):
        (output,) = llm.engine.step()
    assert output.token_ids == wanted

    async def serve() -> list[int]:
        async with AsyncEngine(llm.engine) as engine:
            await engine.load_adapter("more", three_adapters(checkpoint("llama"))["large"])
            found = await engine.generate(PROMPTS[0], PARAMS, adapter="more")
            await engine.unload_adapter("more")
            return list(found.token_ids)

    assert run(serve) == wanted


# --- forward_tensor -------------------------------------------------------------------------------------------------


def test_forward_tensor_takes_adapter_ids(checkpoint: Checkpoint, caplog: pytest.LogCaptureFixture) -> None:
    path, folders = checkpoint("llama"), three_adapters(checkpoint("llama"))
    generator = GeneratorTorch(path, adapters=folders)
    llm = LLM(path, max_total_tokens=512, adapters=folders)
    wanted = [output.token_ids[0] for output in outputs(llm)]
    lens = torch.tensor([len(prompt) for prompt in PROMPTS])

    def first_tokens(adapter_ids: Sequence[Name] | None) -> list[int]:
        logits = generator.forward_tensor(
            torch.tensor([token for prompt in PROMPTS for token in prompt]),
            torch.cat([torch.arange(n) for n in lens.tolist()]),
            True,
            generator.new_kv_cache(len(PROMPTS), 32),
            torch.arange(len(PROMPTS))[:, None],
            torch.cat([32 * i + torch.arange(n) for i, n in enumerate(lens.tolist())]),
            lens,
            32,
            lens.cumsum(0) - 1,
            adapter_ids=adapter_ids,
        )
        return logits.argmax(-1).tolist()

    base = [output.token_ids[0] for output in outputs(llm, names=[None] * len(PROMPTS))]
    assert first_tokens(MIXED) == wanted
    assert first_tokens(None) == first_tokens([]) == first_tokens(["base", None]) == base
    assert first_tokens(["small", "large"]) == wanted[:2] + base[2:]
    caplog.clear()
    with pytest.raises(ValueError, match="The length of `adapter_ids` should not be larger than batch size"):
        first_tokens([None] * 7)
    assert [record.levelname for record in caplog.records] == ["ERROR"], "as in MindIE, it is logged, too"
    with pytest.raises(ValueError, match=r"adapter_ids\[1\]='x': no such adapter"):
        first_tokens([None, "x"])


def test_forward_tensor_may_be_called_from_several_threads(checkpoint: Checkpoint) -> None:
    generator = GeneratorTorch(checkpoint("llama"), adapters=three_adapters(checkpoint("llama")))

    def logits(name: Name) -> torch.Tensor:
        ids = torch.arange(5, 11)
        kv = generator.new_kv_cache(1, 8)
        inputs = (
            ids,
            torch.arange(6),
            True,
            kv,
            torch.zeros(1, 1, dtype=torch.int64),
            torch.arange(6),
            torch.tensor([6]),
            6,
        )
        return generator.forward_tensor(*inputs, adapter_ids=[name])

    names = [None, *NAMES] * 8
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(logits, names))
    assert all(torch.equal(found, logits(name)) for found, name in zip(together, names, strict=True))


def test_a_generator_takes_no_more_adapters_than_it_has_room_for_and_stays_as_it_is(checkpoint: Checkpoint) -> None:
    paths = three_adapters(checkpoint("llama"))
    generator = GeneratorTorch(checkpoint("llama"))
    first, second, *_ = paths
    generator.adapters.load(first, paths[first])
    with pytest.raises(AdapterError, match=f"adapter '{second}': 1"):
        generator.adapters.load(second, paths[second])
    assert list(generator.adapters) == [first]
    generator.adapters.unload(first)
    generator.adapters.load(second, paths[second])
    kv, one = generator.new_kv_cache(1, 8), torch.zeros(1, dtype=torch.int64)
    logits = generator.forward_tensor(one, one, True, kv, one[None], one, one + 1, 1, adapter_ids=[second])
    assert logits.isfinite().all()


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

    def ranks_with_memory() -> set[int]:
        return {table.most_ranks for table in pool.tables.values() if isinstance(table, CppLowRank)}

    assert ranks_with_memory() == {56}
    for leaves, left in (("large", 24), ("middle", RANKS), ("small", RANKS)):
        version = pool.version
        llm.unload_adapter(leaves)
        assert ranks_with_memory() == {left}
        assert (pool.version > version) == (leaves != "small")  # passes captured with more room are captured anew
        for name in llm.adapters:
            assert llm.generate([5, 6], PARAMS, adapter=name)[0].token_ids == wanted[name]


def manual_fetches(llm: LLM) -> Fetches:
    fetches = Fetches()
    llm.engine.adapters.pool._executor = fetches
    return fetches


def alone_in_another(checkpoint: Checkpoint, name: str) -> list[int]:
    llm = with_adapters(checkpoint)
    return llm.generate(PROMPTS[0], PARAMS, adapter=name)[0].token_ids


def test_requests_go_on_while_an_adapter_is_fetched(checkpoint: Checkpoint) -> None:
    llm = with_adapters(checkpoint, schedule_policy="fcfs")
    fetches, engine = manual_fetches(llm), llm.engine
    wanted = alone_in_another(checkpoint, "large")
    waits = engine.add_request(PROMPTS[0], PARAMS, adapter="large")
    goes = engine.add_request(PROMPTS[1], PARAMS)
    seen = [output.request_id for _ in range(4) for output in engine.step()]
    assert seen == [goes] * 4
    assert [*map(len, (fetches.waiting, engine.scheduler.waiting))] == [1, 1]
    fetches.run_all()
    last = {}
    while engine.has_unfinished():
        last.update({output.request_id: output for output in engine.step()})
    assert last[waits].token_ids == wanted
    assert engine.stats().adapters_on_device == 1


def test_the_least_recently_used_adapter_leaves_and_comes_back(checkpoint: Checkpoint) -> None:
    llm = with_adapters(checkpoint, max_adapters_on_device=2)

    def use(name: str) -> list[str]:
        llm.generate(PROMPTS[0], PARAMS, adapter=name)
        return sorted(adapter.name for adapter in llm.engine.adapters.pool.on_device)

    assert [use("small"), use("large")] == [["small"], ["large", "small"]]
    assert use("small") == ["large", "small"]
    assert use("some") == ["small", "some"]
    assert use("large") == ["large", "some"]
    assert llm.engine.stats().adapter_fetches == 4
    assert llm.engine.stats().loaded_adapters == 3


def test_adapters_in_use_stay_and_others_wait_for_a_place(checkpoint: Checkpoint) -> None:
    llm = with_adapters(checkpoint, max_adapters_on_device=1)
    engine = llm.engine
    first = engine.add_request(PROMPTS[0], PARAMS, adapter="small")
    engine.step()
    second = engine.add_request(PROMPTS[1], PARAMS, adapter="large")
    order = []
    while engine.has_unfinished():
        order += [output.request_id for output in engine.step() if output.finished]
    assert order == [first, second]
    assert engine.stats().adapter_fetches == 2


def test_a_request_whose_adapter_cannot_be_fetched_ends_alone(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = with_adapters(checkpoint)
    kind = low_rank.CppLowRank if llm.engine.stats().kernels == "cpp" else low_rank.TorchLowRank
    pack = kind.pack

    def fail(*_: Any) -> Any:
        raise MemoryError("no room")

    monkeypatch.setattr(kind, "pack", fail)
    with pytest.raises(MemoryError, match="no room"):
        llm.generate(PROMPTS[0], PARAMS, adapter="small")
    engine, fetches = llm.engine, manual_fetches(llm)
    fails = [engine.add_request(prompt, PARAMS, adapter="small") for prompt in PROMPTS[:2]]
    goes = engine.add_request(PROMPTS[0], PARAMS)
    engine.step()
    fetches.run_all()
    with pytest.raises(MemoryError, match="no room"):
        engine.step()
    last = {}
    while engine.has_unfinished():
        last.update({output.request_id: output for output in engine.step()})
    assert [last[rid].finish_reason for rid in (*fails, goes)] == ["abort", "abort", "length"]
    monkeypatch.setattr(kind, "pack", pack)
    assert llm.generate(PROMPTS[0], PARAMS, adapter="small")[0].finished
    llm.engine.check_integrity()

"""Places of adapters on the device: who has one, who waits for one, and how an adapter gets there."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nanoinfer import LLM
from nanoinfer.model.layers import low_rank
from tests.helpers.adapters import PARAMS, PROMPTS, outputs, three_adapters
from tests.helpers.fetches import Fetches
from tests.helpers.kernels import need_cpp

Checkpoint = Callable[..., Path]


def by_hand(llm: LLM) -> Fetches:
    fetches = Fetches()
    llm.engine.adapters.pool._executor = fetches
    return fetches


def alone_in_another(checkpoint: Checkpoint, name: str) -> list[int]:
    llm = LLM(checkpoint("llama"), max_total_tokens=512, adapters=three_adapters(checkpoint("llama")))
    return llm.generate(PROMPTS[0], PARAMS, adapter=name)[0].token_ids


def test_requests_go_on_while_an_adapter_is_fetched(checkpoint: Checkpoint) -> None:
    llm = LLM(
        checkpoint("llama"), max_total_tokens=512, schedule_policy="fcfs", adapters=three_adapters(checkpoint("llama"))
    )
    fetches, engine = by_hand(llm), llm.engine
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
    llm = LLM(
        checkpoint("llama"),
        max_total_tokens=512,
        max_adapters_on_device=2,
        adapters=three_adapters(checkpoint("llama")),
    )

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
    llm = LLM(
        checkpoint("llama"),
        max_total_tokens=512,
        max_adapters_on_device=1,
        adapters=three_adapters(checkpoint("llama")),
    )
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
    llm = LLM(checkpoint("llama"), max_total_tokens=512, adapters=three_adapters(checkpoint("llama")))
    kind = low_rank.CppLowRank if llm.engine.stats().kernels == "cpp" else low_rank.TorchLowRank
    pack = kind.pack

    def fail(*_: Any) -> Any:
        raise MemoryError("no room")

    monkeypatch.setattr(kind, "pack", fail)
    with pytest.raises(MemoryError, match="no room"):
        llm.generate(PROMPTS[0], PARAMS, adapter="small")
    engine, fetches = llm.engine, by_hand(llm)
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


@pytest.mark.cpu
def test_an_adapter_has_one_pool(checkpoint: Checkpoint) -> None:
    need_cpp("float32")  # the same bits in any batch
    llm, other = (
        LLM(checkpoint("llama"), max_total_tokens=512, adapters=three_adapters(checkpoint("llama"))) for _ in range(2)
    )
    wanted = [output.logprobs for output in outputs(llm)]
    foreign = llm.adapters["large"]
    assert foreign.place == 1
    with pytest.raises(ValueError, match="has a place in another pool; load it once more for this one"):
        other.engine.adapters.pool.obtain(foreign, ())
    assert other.engine.adapters.pool.obtain(foreign.again(), ()) in (True, False)
    assert [output.logprobs for output in outputs(llm)] == wanted

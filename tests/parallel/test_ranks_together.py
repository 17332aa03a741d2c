"""What ranks do together: passes that fail end the engine and all its requests, and messages of any length arrive."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import torch

from nanoinfer import AsyncEngine
from nanoinfer.errors import EngineClosedError, RankError, StepFailedError
from nanoinfer.model.model_runner import ModelRunner
from tests.helpers.split_models import (
    PROMPTS,
    WHOLE,
    Checkpoint,
    Room,
    ThreadCommunicator,
    ThreadWorkers,
    of,
    split_llm,
)


@pytest.mark.parametrize("when", ["in a pass", "between passes"])
def test_a_failing_rank_ends_the_engine_and_all_its_requests(
    when: str, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    with split_llm(checkpoint("llama"), 2, max_running_requests=1, **WHOLE) as llm:
        engine = llm.engine
        ids = [engine.add_request(prompt, of(0)) for prompt in PROMPTS]
        engine.step()
        if when == "in a pass":
            monkeypatch.setattr(ModelRunner, "run", failing_in_rank_1(ModelRunner.run))
        else:
            engine.model_runner._ranks.workers.errors[1] = OSError("gone")  # type: ignore[attr-defined]
        with pytest.raises(RankError, match=r"has ended, and the engine with it: rank 1: OSError\('gone'\)") as caught:
            engine.step()
        outputs = {out.request_id: out for out in engine.step()}
        assert sorted(outputs) == ids, "also those that were waiting"
        assert all(out.finish_reason == "abort" for out in outputs.values())
        assert all(out.error is caught.value for out in outputs.values())
        assert engine.stats()["failed"] == len(ids)
        assert not engine.has_unfinished()
        engine.check_integrity()
        with pytest.raises(EngineClosedError, match=r"takes no more requests: .* rank 1: OSError"):
            engine.add_request(PROMPTS[0], of(0))


def test_an_idle_engine_is_closed_once_a_rank_has_ended(checkpoint: Checkpoint) -> None:
    """So that a server's health says so before the next request comes."""
    with split_llm(checkpoint("llama"), 2, **WHOLE) as llm:
        llm.generate(PROMPTS[0], of(0))
        assert not llm.engine.is_closed
        llm.engine.model_runner._ranks.workers.errors[1] = OSError("gone")  # type: ignore[attr-defined]
        assert llm.engine.is_closed
        with pytest.raises(EngineClosedError, match=r"takes no more requests: .* has ended, .* rank 1: OSError"):
            llm.generate(PROMPTS[0], of(0))


async def test_an_async_engine_with_a_broken_runner_is_closed(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    with split_llm(checkpoint("llama"), 2, max_running_requests=1, **WHOLE) as llm:
        async with AsyncEngine(llm) as engine:
            assert len((await engine.generate(PROMPTS[0], of(0))).token_ids) == 10
            assert not engine.is_closed
            monkeypatch.setattr(ModelRunner, "run", failing_in_rank_1(ModelRunner.run))
            failed = await asyncio.gather(*(engine.generate(p, of(0)) for p in PROMPTS), return_exceptions=True)
            assert all(isinstance(each, StepFailedError | EngineClosedError) for each in failed), failed
            assert any("rank 1: OSError" in str(each) for each in failed)
            assert engine.is_closed
            with pytest.raises(EngineClosedError, match="takes no more requests"):
                await engine.generate(PROMPTS[0], of(0))


def failing_in_rank_1(run: Callable[..., Any]) -> Callable[..., Any]:
    """`ModelRunner.run`, which raises in all ranks but the first before it does anything together with that."""

    def run_or_fail(runner: ModelRunner, *arguments: Any) -> Any:
        if runner.tp_size == 1:  # a worker's: that of rank 0 is a SplitRunner
            raise OSError("gone")
        return run(runner, *arguments)

    return run_or_fail


def test_messages_of_any_length_arrive() -> None:
    room = Room(2)
    heard: list[bytes] = []

    class Listener(ThreadWorkers):
        def _run(self, rank: int) -> None:
            communicator = ThreadCommunicator(room, rank)
            heard.extend(communicator.receive() for _ in lengths)

    lengths = [0, 1, 8183, 8184, 8185, 100_000]
    workers = Listener(room)
    sent = [bytes(i % 251 for i in range(length)) for length in lengths]
    for message in sent:
        ThreadCommunicator(room, 0).send(message)
    workers.end(patiently=True)
    assert heard == sent


def test_parts_in_bfloat16_are_added_in_float32() -> None:
    """256 and three times 1: each 1 alone is too small to change it in bfloat16, and together they are not."""
    room, sums = Room(4), dict[int, torch.Tensor]()

    class Adder(ThreadWorkers):
        def _run(self, rank: int) -> None:
            communicator = ThreadCommunicator(room, rank)
            with communicator.together():
                part = torch.full((2, 3), 256.0 if rank == 0 else 1.0, dtype=torch.bfloat16)
                sums[rank] = communicator.all_reduce(part)

    workers = Adder(room)
    workers._run(0)
    workers.end(patiently=True)
    assert len(sums) == 4
    for found in sums.values():
        assert found.dtype is torch.bfloat16
        assert (found == 260).all(), "259, rounded to bfloat16"

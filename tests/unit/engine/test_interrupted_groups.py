"""Groups of decode passes (num_scheduler_steps) and what comes between: errors, deadlines, aborts, pauses, ends."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from nanoinfer.engine.engine import Engine
from nanoinfer.ops.advance_step import npu_advance_step_flashattn
from nanoinfer.scheduling.multi_step import DecodeGroup
from tests.helpers.engines import Clock, assert_all_free, finish, greedy, make_engine, model_of, step
from tests.helpers.fakes import FakeServer

# --- what comes between ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", [3, 4, 5], ids=["first pass", "second pass", "last pass"])
@pytest.mark.parametrize("page_size", [1, 4])
def test_an_exception_in_a_pass_ends_the_requests_of_the_group_and_frees_all_slots(broken: int, page_size: int) -> None:
    engine = make_engine(rows=2, page_size=page_size, num_scheduler_steps=3)
    long, short = engine.add_request([1], greedy(9)), engine.add_request([50], greedy(3))
    waiting = engine.add_request([80], greedy(2))
    model_of(engine).fail_at = broken - 1
    step(engine)
    with pytest.raises(RuntimeError, match="the model broke"):
        engine.step()
    engine.check_integrity()
    assert not engine.scheduler.running
    outputs = step(engine)
    assert (outputs[long].finish_reason, outputs[long].token_ids) == ("abort", list(range(2, broken)))
    assert isinstance(outputs[long].error, RuntimeError)
    ended = broken == 5
    assert outputs[short].finish_reason == ("length" if ended else "abort")
    assert outputs[short].token_ids == list(range(51, 49 + broken))
    assert finish(engine)[waiting].token_ids == [81, 82]
    stats = engine.stats()
    assert (stats.finished, stats.failed) == (1 + ended, 2 - ended)
    assert_all_free(engine)


def test_a_deadline_that_passes_in_a_group_takes_effect_after_it() -> None:
    clock = Clock()
    engine = make_engine(num_scheduler_steps=4, clock=clock)
    rid = engine.add_request([1], greedy(20), timeout_s=5.0)
    step(engine)
    plain = engine.model_runner.model

    def slow(*args: Any) -> Any:
        clock.now += 3.0
        return plain(*args)

    engine.model_runner.model = slow
    assert step(engine)[rid].token_ids == [2, 3, 4, 5, 6]
    last = step(engine)[rid]
    assert (last.finish_reason, len(last.token_ids)) == ("timeout", 5)
    assert_all_free(engine)


CHANGES: dict[str, Callable[[Engine, int], Any]] = {
    "abort": lambda engine, rid: engine.abort(rid),
    "pause": lambda engine, rid: engine.pause(rid),
    "step": lambda engine, rid: engine.step(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_nothing_changes_hands_in_the_second_pass_of_a_group(change: str) -> None:
    engine = make_engine(num_scheduler_steps=3)
    refused = []

    def meddling(token_ids: Any, logits: torch.Tensor) -> torch.Tensor:
        if len(token_ids) == 3:
            with pytest.raises(RuntimeError, match="this engine is computing a pass"):
                CHANGES[change](engine, other)
            refused.append(change)
        return logits

    other = engine.add_request([50], greedy(6))
    rid = engine.add_request([1], greedy(6, logits_processors=[meddling]))
    last = finish(engine)
    assert refused == [change]
    assert (last[rid].token_ids, last[other].token_ids) == ([2, 3, 4, 5, 6, 7], [51, 52, 53, 54, 55, 56])


@pytest.mark.parametrize("change", ["abort", "pause"])
def test_between_steps_requests_come_and_go_as_ever(change: str) -> None:
    engine = make_engine(rows=2, num_scheduler_steps=3, page_size=4)
    first, second = engine.add_request([1], greedy(12)), engine.add_request([50], greedy(12))
    step(engine)
    step(engine)
    CHANGES[change](engine, first)
    engine.check_integrity()
    third = engine.add_request([80], greedy(2))
    last = step(engine)
    assert last[third].token_ids == [81]
    if change == "pause":
        engine.resume(first)
    last = finish(engine)
    assert last[second].token_ids == list(range(51, 63))
    assert change == "abort" or last[first].token_ids == list(range(2, 14))
    assert_all_free(engine)


def test_a_group_that_is_closed_early_leaves_its_slots_to_the_requests_that_go_on() -> None:
    server = FakeServer(64, num_scheduler_steps=8, page_size=4)
    reqs = [server.add([i], 12) for i in range(3)]
    for _ in range(3):  # the prompts, and two passes of eight
        server.step()
    assert server.scheduler.passes_left == 6
    server.abort(reqs[0])
    assert server.scheduler.passes_left == 0
    assert [req.allocated_len for req in reqs[1:]] == [12, 12]
    server.run()
    assert all(req.num_output_tokens == 12 for req in reqs[1:])
    server.check_all_free()


# --- moving on --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_a_group_moves_on_as_the_operator_does(page_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pass, with requests that end in the middle: they are padding from then on, behind the others."""
    compared = []
    advance = DecodeGroup.advance
    server = FakeServer(256, page_size=page_size, num_scheduler_steps=8, vocab_size=4)
    table = server.cache.rows.astype(np.int64)[:, ::page_size] // page_size

    def checked(group: DecodeGroup) -> Any:
        table[:] = server.cache.rows[:, ::page_size] // page_size
        going_on = [i for i, req in enumerate(group.reqs) if not req.finished]
        order = [*going_on, *(i for i in range(len(group.seq_lens)) if i not in going_on)]
        rows = [int(group._rows[i]) if i < len(group.reqs) else 0 for i in order]
        names = ("input_tokens", "input_positions", "seq_lens", "slot_mapping")
        wanted = {name: torch.from_numpy(getattr(group, name)[order]) for name in names}
        newest = [[int(req.token_ids[req.num_tokens - 1])] for req in group.reqs if not req.finished]
        npu_advance_step_flashattn(
            wanted["input_tokens"],
            torch.tensor(newest),
            wanted["input_positions"],
            wanted["seq_lens"],
            wanted["slot_mapping"],
            torch.from_numpy(table[rows]),
            len(order),
            len(going_on),
            page_size,
        )
        wanted["seq_lens"][len(going_on) :] = 0  # the operator leaves what was there
        before = {name: getattr(group, name).ctypes.data for name in names}
        batch = advance(group)
        for name in names:
            assert getattr(group, name).tolist() == wanted[name].tolist(), name
            assert getattr(group, name).ctypes.data == before[name], "the same memory"
        assert batch.out_cache_loc.tolist() == wanted["slot_mapping"][: len(going_on)].tolist()
        compared.append((len(order), len(going_on)))
        return batch

    monkeypatch.setattr(DecodeGroup, "advance", checked)
    for i in range(6):
        server.add([i, 2, 3], 4 + 3 * i, stop_token_ids=[i % 4])
    server.run()
    assert any(0 < going_on < rows for rows, going_on in compared)
    server.check_all_free()

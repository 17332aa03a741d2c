"""num_scheduler_steps: groups of decode passes give the tokens, ends and slots that single passes give."""

from typing import Any

import numpy as np
import pytest
import torch

from nanoinfer.ascend.advance_step import npu_advance_step_flashattn
from nanoinfer.requests.pieces import PieceReader
from nanoinfer.requests.req import Req
from nanoinfer.scheduler.multi_step import DecodeGroup
from nanoinfer.scheduler.scheduler import Scheduler
from tests.helpers.engines import Clock, assert_all_free, finish, greedy, make_engine, model_of, step
from tests.helpers.fakes import FakeServer

GROUPS = [2, 3, 8]


PROMPTS = [[1, 2, 3, 4, 5], [1, 2, 3, 9], [7], [1, 2, 3, 4, 5, 6, 7, 8]]


# --- the same as without ---------------------------------------------------------------------------------------------


def served(num_scheduler_steps: int, **fields: Any) -> tuple[FakeServer, list[Req]]:
    """Four requests of 2, 9, 5 and 12 tokens, two of which a stop token may end; everything is checked in every pass."""
    server = FakeServer(vocab_size=4, num_scheduler_steps=num_scheduler_steps, **fields)
    counts, stops = (2, 9, 5, 12), ([], [1], [2], [])
    reqs = [
        server.add(prompt, count, stop_token_ids=stop, min_new_tokens=count // 4)
        for prompt, count, stop in zip(PROMPTS, counts, stops, strict=True)
    ]
    server.run()
    return server, reqs


def ends(reqs: list[Req]) -> list[tuple[list[int], str | None]]:
    return [(req.output_ids, req.finish_reason) for req in reqs]


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("k", GROUPS)
def test_tokens_ends_and_the_tree_are_those_of_single_passes(k: int, page_size: int) -> None:
    fields = {"page_size": page_size, "max_total_tokens": 256}
    (single, plain), (grouped, reqs) = served(1, **fields), served(k, **fields)
    assert ends(reqs) == ends(plain)
    assert grouped.tree.total_size() == single.tree.total_size()
    for req in reqs:
        everything = req.token_ids[: req.num_tokens]
        assert grouped.tree.peek_prefix(everything)[0] == single.tree.peek_prefix(everything)[0]
    assert [req.cached_tokens for req in reqs] == [req.cached_tokens for req in plain]
    assert grouped.scheduler.new_token_ratio.value == single.scheduler.new_token_ratio.value
    grouped.check_all_free()


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("k", GROUPS)
def test_in_little_room_groups_are_shorter_and_no_request_gives_way_for_them(k: int, page_size: int) -> None:
    def served_in_24_slots(num_scheduler_steps: int) -> tuple[int, list[Req]]:
        options = {"page_size": page_size, "schedule_conservativeness": 0.001}
        server = FakeServer(24, num_scheduler_steps=num_scheduler_steps, **options)
        reqs = [server.add([10 * i, 1, 2], 10) for i in range(3)]  # they need 36
        server.run()
        server.check_all_free()
        return server.scheduler.retractions, reqs

    (single, plain), (grouped, reqs) = served_in_24_slots(1), served_in_24_slots(k)
    assert ends(reqs) == ends(plain)
    assert 0 < grouped <= single


# --- visits, steps and outputs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "expected"), [(1, 12), (2, 7), (3, 5), (8, 3), (100, 2)])
def test_the_scheduler_is_visited_once_per_group(monkeypatch: pytest.MonkeyPatch, k: int, expected: int) -> None:
    engine = make_engine(num_scheduler_steps=k)
    engine.add_request([1], greedy(12))
    engine.add_request([50], greedy(5))
    seen: list[int] = []
    plan = Scheduler.schedule
    monkeypatch.setattr(Scheduler, "schedule", lambda self: (seen.append(1), plan(self))[1])
    steps = 0
    while engine.has_unfinished():
        step(engine)
        steps += 1
    assert len(seen) == steps == expected  # one EXTEND, and eleven decode passes
    assert model_of(engine).passes == 12


def test_a_step_returns_each_request_once_with_the_tokens_of_all_its_passes() -> None:
    engine = make_engine(num_scheduler_steps=4)
    long, short = engine.add_request([1], greedy(9)), engine.add_request([50], greedy(3))
    step(engine)
    reader = PieceReader(engine.open_requests.groups[long])
    assert [piece.token_ids for piece in reader.read()] == [[2]]
    outputs = step(engine)
    assert (outputs[long].token_ids, outputs[long].finished) == ([2, 3, 4, 5, 6], False)
    assert (outputs[short].token_ids, outputs[short].finish_reason) == ([51, 52, 53], "length")
    assert [piece.token_ids for piece in reader.read()] == [[3, 4, 5, 6]]
    assert set(step(engine)) == {long}
    assert_all_free(engine)


# --- slots ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("k", GROUPS)
def test_requests_that_end_are_computed_no_more_and_keep_no_slot(k: int, page_size: int) -> None:
    """A stop token ends three of four requests at different points of a group."""
    engine = make_engine(page_size=page_size, num_scheduler_steps=k)
    computed: list[int] = []
    plain = engine.model_runner.model

    def counting(input_ids: torch.Tensor, *args: Any) -> Any:
        computed.append(len(input_ids))
        return plain(input_ids, *args)

    engine.model_runner.model = counting
    lens = {engine.add_request([10 * i], greedy(20, stop_token_ids=[11 * i + 1])): i + 1 for i in (1, 2, 3)}
    lens[engine.add_request([90], greedy(12))] = 12
    wasted = 0
    last = {}
    while engine.has_unfinished():
        last |= step(engine)
        for req in engine.scheduler.running:
            assert req.allocated_len == engine.cache.whole_pages(req.num_tokens - 1)
    assert {rid: len(last[rid].token_ids) for rid in lens} == lens
    wasted = sum(computed) - 4 - sum(count - 1 for count in lens.values())
    assert wasted == 0, "k - 1 for each request would be allowed"
    stats = engine.stats()
    assert stats.evictable_slots == sum(count // page_size * page_size for count in lens.values())
    assert stats.free_slots == stats.total_slots - stats.evictable_slots
    assert_all_free(engine)


@pytest.mark.parametrize(
    ("page_size", "slots", "counts", "allocated", "passes"),
    [
        (1, 64, (20, 20), (9, 9), 8),
        (1, 64, (20, 3), (9, 3), 8),  # the second needs slots for 1 + 3 tokens but the last
        (1, 64, (4, 3), (4, 3), 3),  # no more passes than the longest can use
        (4, 64, (20, 20), (12, 12), 8),
        (4, 64, (20, 3), (12, 4), 8),
        (1, 13, (12, 12), (6, 6), 5),  # 13 slots are enough for five passes of two requests
        (4, 16, (12, 12), (8, 8), 7),
    ],
)
def test_slots_are_reserved_for_as_many_passes_as_there_is_room_for(
    page_size: int, slots: int, counts: tuple[int, ...], allocated: tuple[int, ...], passes: int
) -> None:
    fields = {"disable_radix_cache": True, "schedule_conservativeness": 0.001, "vocab_size": 1000}
    server = FakeServer(slots, page_size=page_size, num_scheduler_steps=8, **fields)
    reqs = [server.add([i], count) for i, count in enumerate(counts)]
    server.step()
    server.scheduler.schedule()
    assert server.scheduler.passes_left == passes
    assert tuple(req.allocated_len for req in reqs) == allocated
    server.check()
    server.abort(*reqs)
    assert server.scheduler.passes_left == 0
    server.check_all_free()


def test_cached_tokens_make_room_for_a_group() -> None:
    server = FakeServer(16, num_scheduler_steps=8)
    server.serve(range(10, 22), 2)
    assert server.tree.total_size() == 13
    req = server.add([1, 2], 9)
    server.step()
    server.scheduler.schedule()
    assert (server.scheduler.passes_left, req.allocated_len) == (8, 10)


def test_while_a_prompt_is_partly_computed_every_pass_is_followed_by_its_next_chunk() -> None:
    engine = make_engine(num_scheduler_steps=8, chunked_prefill_size=4)
    engine.add_request([1], greedy(30))
    step(engine)
    engine.add_request(range(20, 32), greedy(2))
    modes = []
    while engine.scheduler.prefilling or engine.scheduler.waiting:
        before = model_of(engine).passes
        step(engine)
        modes.append((engine.last_batch.forward_mode.name, model_of(engine).passes - before))  # type: ignore[union-attr]
    assert modes == [("EXTEND", 1), ("DECODE", 1)] * 3 + [("EXTEND", 1)]
    before = model_of(engine).passes
    step(engine)
    assert model_of(engine).passes == before + 8
    finish(engine)
    assert_all_free(engine)


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

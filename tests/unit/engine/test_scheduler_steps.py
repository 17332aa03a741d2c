"""num_scheduler_steps: groups of decode passes give the tokens, ends and slots that single passes give."""

import logging
from typing import Any

import pytest
import torch

from nanoinfer import SamplingParams
from nanoinfer.config import EngineConfig
from nanoinfer.engine.engine import Engine
from nanoinfer.requests.req import Req
from nanoinfer.requests.stream_pieces import PieceReader
from nanoinfer.scheduling.multi_step import MultiStepScheduler
from nanoinfer.scheduling.scheduler import Scheduler
from tests.helpers.engines import Clock, assert_all_free, finish, greedy, make_engine, model_of, step
from tests.helpers.fakes import FakeServer

GROUPS = [2, 3, 8]


PROMPTS = [[1, 2, 3, 4, 5], [1, 2, 3, 9], [7], [1, 2, 3, 4, 5, 6, 7, 8]]


def visits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts visits to the scheduler: grows by one with each."""
    seen: list[int] = []
    plan = Scheduler.schedule
    monkeypatch.setattr(Scheduler, "schedule", lambda self: (seen.append(1), plan(self))[1])
    return seen


def holders(engine: Engine) -> dict[int, Req]:
    """The running requests, by request id."""
    return {req.request_id: req for req in engine.scheduler.running}


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


def test_random_numbers_are_those_of_single_passes() -> None:
    def tokens(k: int) -> list[list[int]]:
        engine = make_engine(num_scheduler_steps=k, random_seed=5)
        for i in range(4):
            fields: dict[str, Any] = {"seed": i} if i % 2 else {"repetition_penalty": 1.3, "frequency_penalty": 0.4}
            engine.add_request([i], SamplingParams(max_new_tokens=5 + 3 * i, temperature=30.0, n=1 + i // 3, **fields))
        last = finish(engine)
        assert_all_free(engine)
        return [completion.token_ids for rid in sorted(last) for completion in last[rid].outputs]

    alone = tokens(1)
    assert len({tuple(each[:5]) for each in alone}) == 5
    assert all(tokens(k) == alone for k in GROUPS)


# --- visits, steps and outputs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "expected"), [(1, 12), (2, 7), (3, 5), (8, 3), (100, 2)])
def test_the_scheduler_is_visited_once_per_group(monkeypatch: pytest.MonkeyPatch, k: int, expected: int) -> None:
    engine = make_engine(num_scheduler_steps=k)
    engine.add_request([1], greedy(12))
    engine.add_request([50], greedy(5))
    seen = visits(monkeypatch)
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


def test_every_pass_is_counted_timed_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    engine = make_engine(num_scheduler_steps=4, clock=clock)
    engine.add_request([1], greedy(9))
    engine.add_request([50], greedy(3))
    model, plain = engine.model_runner, engine.model_runner.model

    def slow(*args: Any) -> Any:
        clock.now += 2.0
        return plain(*args)

    model.model = slow
    with caplog.at_level(logging.INFO, logger="nanoinfer.engine"):
        step(engine)
        step(engine)
    stats = engine.stats()
    assert (stats.extend_steps, stats.decode_steps, stats.output_tokens) == (1, 4, 8)
    assert (stats.decode_step_seconds, stats.longest_step_seconds, stats.tokens_per_second) == (2.0, 2.0, 0.8)
    lines = [record.getMessage().split()[:5] for record in caplog.records[1:]]
    assert [line[0] for line in lines] == [f"step={i}" for i in range(1, 6)]
    assert [line[2:] for line in lines[2:4]] == [
        ["reqs=2", "tokens=2", "running=1"],
        ["reqs=1", "tokens=1", "running=1"],
    ]


def test_the_last_batch_is_that_of_the_last_pass() -> None:
    engine = make_engine(num_scheduler_steps=3)
    engine.add_request([1, 2], greedy(9))
    engine.add_request([50, 51], greedy(3))
    step(engine)
    step(engine)
    batch = engine.last_batch
    assert batch is not None
    assert (len(batch.reqs), batch.input_ids.tolist(), batch.seq_lens.tolist()) == (1, [5], [5])
    row = holders(engine)[0].req_pool_idx
    assert batch.out_cache_loc.tolist() == [engine.cache.rows[row, 4]]


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


def test_without_groups_nothing_of_this_is_there() -> None:
    assert type(make_engine().scheduler) is Scheduler
    assert type(make_engine(num_scheduler_steps=2).scheduler) is MultiStepScheduler


@pytest.mark.parametrize("value", [0, -1, True, 1.5, None, "2"])
def test_only_whole_numbers_from_one_on_are_taken(value: Any) -> None:
    with pytest.raises(ValueError, match=r"num_scheduler_steps=.*: must be an integer of at least 1"):
        EngineConfig(1, 8, 8, num_scheduler_steps=value)

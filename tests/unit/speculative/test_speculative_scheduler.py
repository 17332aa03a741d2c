"""SpeculativeScheduler: slots, ends and faults with drafts, on a model that counts, so that right drafts are known."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from nanoinfer import Engine, SamplingParams
from nanoinfer.model.forward_batch import ForwardMode
from nanoinfer.registry import DRAFTERS
from nanoinfer.requests.pieces import PieceReader
from nanoinfer.requests.req import Req
from nanoinfer.sampling.sampler import Sampler
from tests.helpers.engines import Clock, V, assert_all_free, finish, greedy, make_engine, serve, step

WRONG = 100  # no prompt here comes near it


class OracleDrafter:
    """A drafter that proposes as much as it may: `right` drafts that the counting model will choose, then wrong ones."""

    def __init__(self) -> None:
        self.right = 64
        self.asked: list[tuple[list[int], list[int]]] = []  # request ids, and at most how many drafts each
        self.error: BaseException | None = None

    def propose(self, reqs: Sequence[Req], most: Sequence[int]) -> list[list[int]]:
        if self.error is not None:
            raise self.error
        self.asked.append(([req.request_id for req in reqs], list(most)))
        drafts = []
        for req, count in zip(reqs, most, strict=True):
            newest = int(req.token_ids[req.num_tokens - 1])
            right = [(newest + 1 + i) % V for i in range(count)]
            drafts.append(right[: self.right] + [WRONG] * (count - self.right))
        return drafts


def engine_of(**options: Any) -> Engine:
    return make_engine(**{"drafter": "oracle", "adaptive_drafts": False, **options})


def mode_of(engine: Engine) -> ForwardMode:
    assert engine.last_batch is not None
    return engine.last_batch.forward_mode


@pytest.fixture
def drafter(monkeypatch: pytest.MonkeyPatch) -> OracleDrafter:
    """The drafter that `engine_of` asks."""
    one = OracleDrafter()
    monkeypatch.setitem(DRAFTERS, "oracle", lambda _: one)
    return one


# --- passes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("right", range(5))
def test_a_pass_gives_the_drafts_that_are_right_and_one_token_more(drafter: OracleDrafter, right: int) -> None:
    drafter.right = right
    engine = engine_of(num_draft_tokens=4)
    engine.add_request([1, 2, 3], greedy(30))
    counts, before = [], 0
    while engine.has_unfinished():
        (output,) = step(engine).values()
        counts.append(len(output.token_ids) - before)
        before = len(output.token_ids)
    assert output.token_ids == list(range(4, 34))
    assert counts[0] == 1, "the prompt's pass"
    assert counts[1:-1] == [right + 1] * len(counts[1:-1])
    assert sum(counts) == 30
    assert_all_free(engine)


def test_requests_with_different_numbers_of_drafts_and_none_share_a_pass(drafter: OracleDrafter) -> None:
    engine = engine_of(num_draft_tokens=5)
    plain = SamplingParams(max_new_tokens=20, temperature=0, logits_processors=(lambda ids, scores: scores,))
    for prompt, params in (([1], greedy(20)), ([30], greedy(4)), ([50], plain), ([70], greedy(2))):
        engine.add_request(prompt, params)
    step(engine)
    before = engine.scheduler.output_tokens
    outputs = step(engine)
    assert engine.last_batch is not None
    assert mode_of(engine) is ForwardMode.VERIFY
    assert engine.last_batch.new_lens.tolist() == [6, 3, 1, 1]
    assert [len(engine.last_batch.input_ids), len(engine.last_batch.logits_owners)] == [11, 11]
    assert [len(outputs[i].token_ids) for i in range(4)] == [7, 4, 2, 2]
    assert [outputs[i].finished for i in range(4)] == [False, True, False, True]
    assert engine.scheduler.output_tokens - before == 6 + 3 + 1 + 1
    last = finish(engine)
    assert last[0].token_ids == list(range(2, 22))
    assert last[2].token_ids == list(range(51, 71))


def test_the_next_drafter_is_asked_for_those_whose_first_has_no_idea(
    drafter: OracleDrafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OddOnly:
        asked: list[int] = []  # noqa: RUF012

        def propose(self, reqs: Sequence[Req], most: Sequence[int]) -> list[list[int]]:
            self.asked += [req.request_id for req in reqs]
            return [[WRONG] if req.request_id % 2 else [] for req in reqs]

    monkeypatch.setitem(DRAFTERS, "odd", lambda _: OddOnly())
    engine = engine_of(drafter=("odd", "oracle"))
    outputs = serve(engine, [1], [30], [60], max_new_tokens=9)
    assert OddOnly.asked[:3] == [0, 1, 2]
    assert all(1 not in ids for ids, _ in drafter.asked)
    assert drafter.asked[0] == ([0, 2], [3, 3])
    assert [output.accepted_tokens for output in outputs] == [6, 0, 6]
    assert [output.token_ids for output in outputs] == [list(range(n, n + 9)) for n in (2, 31, 61)]


# --- slots -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page_size", [1, 4])
def test_drafts_take_no_slots_that_others_need_in_the_pass(drafter: OracleDrafter, page_size: int) -> None:
    """Three requests of 12 slots in a pool of 36: each can finish, and there is never room for all drafts."""
    engine = engine_of(
        slots=36, page_size=page_size, num_draft_tokens=8, schedule_conservativeness=1e-3, disable_radix_cache=True
    )
    drafter.right = 2
    outputs = serve(engine, [1, 2, 3, 4], [40, 41, 42, 43], [80, 81, 82, 83], max_new_tokens=9)
    assert [output.token_ids for output in outputs] == [list(range(n, n + 9)) for n in (5, 44, 84)]
    assert engine.stats().retractions == 0
    assert engine.stats().accepted_tokens > 0
    assert_all_free(engine)


def test_with_no_slot_left_over_there_are_fewer_drafts_and_then_none(drafter: OracleDrafter) -> None:
    engine = engine_of(slots=24, num_draft_tokens=8, disable_radix_cache=True, schedule_conservativeness=1e-3)
    for start in (1, 40, 80):
        engine.add_request([start, start + 1], greedy(20))
    drafter.right = 0
    step(engine)
    step(engine)  # 6 of 24 slots are filled, 3 are needed for the newest tokens: 15 are left over
    assert engine.last_batch is not None
    drafts = (engine.last_batch.seq_lens - engine.last_batch.prefix_lens - 1).tolist()
    assert drafts == [8, 7, 0]
    assert engine.stats().free_slots == 0
    outputs = finish(engine)
    assert [outputs[i].token_ids for i in range(3)] == [list(range(n, n + 20)) for n in (3, 42, 82)]
    assert_all_free(engine)


# --- ends ------------------------------------------------------------------------------------------------------------

ENDS = [
    {},
    {"stop_token_ids": [70]},
    {"stop_token_ids": [70], "min_new_tokens": 8},
    {"stop": ["FG"]},
    {"stop": ["FG"], "include_stop_str_in_output": True},
    {"stop": ["F", "Fx"], "logprobs": 1},
    {"max_new_tokens": 1},
    {"max_new_tokens": 5},
    {"max_new_tokens": 4, "stop_token_ids": [69]},
]


@pytest.mark.parametrize("fields", ENDS, ids=str)
@pytest.mark.parametrize("eos", [(), (71,)])
@pytest.mark.parametrize("right", [2, 7])
def test_requests_end_inside_drafts_where_they_would_end_without(
    drafter: OracleDrafter, fields: dict[str, Any], eos: Sequence[int], right: int
) -> None:
    drafter.right = right
    told = []
    for options in ({"drafter": None}, {"num_draft_tokens": 7}):
        engine = engine_of(eos=eos, **options)
        (output,) = serve(engine, [65], **{"max_new_tokens": 12, **fields})
        (end,) = output.outputs
        told.append((end.token_ids, end.text, end.finish_reason, end.stop_reason, end.logprobs))
        tree = [node.key.tolist() for _, node in engine.radix_cache.nodes()]
        assert tree == [[65, *end.token_ids][: len(end.token_ids)]], "no K/V of what came behind the end"
        assert output.accepted_tokens <= len(end.token_ids) - 1
        assert_all_free(engine)
    assert told[0] == told[1]


def test_drafts_behind_the_end_are_drafted_but_not_accepted(drafter: OracleDrafter) -> None:
    engine = engine_of(num_draft_tokens=6)
    (output,) = serve(engine, [65], max_new_tokens=20, stop_token_ids=[69])
    assert output.token_ids == [66, 67, 68, 69]
    assert (output.drafted_tokens, output.accepted_tokens) == (6, 3)
    assert (engine.stats().drafted_tokens, engine.stats().accepted_tokens) == (6, 3)


# --- streams, aborts, pauses -----------------------------------------------------------------------------------------


def test_pieces_of_a_stream_have_all_tokens_of_a_pass(drafter: OracleDrafter) -> None:
    engine = engine_of(num_draft_tokens=3)
    request_id = engine.add_request([65], greedy(10, stop=["never"]))
    reader, pieces = PieceReader(engine.open_requests.groups[request_id]), []
    while engine.has_unfinished():
        step(engine)
        pieces += reader.read()
    assert [len(piece.token_ids) for piece in pieces] == [1, 4, 4, 1]
    assert [token for piece in pieces for token in piece.token_ids] == list(range(66, 76))
    assert "".join(piece.text for piece in pieces) == "BCDEFGHIJK"
    assert [piece.finish_reason for piece in pieces] == [None, None, None, "length"]


def test_aborts_and_pauses_between_passes_keep_what_was_accepted(drafter: OracleDrafter) -> None:
    drafter.right = 2
    engine = engine_of(page_size=4)
    for start in (1, 30, 60):
        engine.add_request([start, start + 1], greedy(20))
    step(engine)
    step(engine)
    aborted = engine.abort(0)
    assert aborted is not None
    assert aborted.token_ids == [3, 4, 5, 6]
    assert (aborted.finish_reason, aborted.drafted_tokens, aborted.accepted_tokens) == ("abort", 3, 2)
    engine.check_integrity()
    engine.pause(1)
    engine.check_integrity()
    for _ in range(2):
        assert list(step(engine)) == [2]
    engine.resume(1)
    last = finish(engine)
    assert [last[i].token_ids for i in (1, 2)] == [list(range(n, n + 20)) for n in (32, 62)]
    assert_all_free(engine)


# --- faults and counts ------------------------------------------------------------------------------------------------


@pytest.fixture
def broken() -> RuntimeError:
    return RuntimeError("broken on purpose")


def test_an_engine_whose_drafter_raises_resets(drafter: OracleDrafter, broken: RuntimeError) -> None:
    engine = engine_of(rows=2)
    ids = [engine.add_request([start], greedy(10)) for start in (1, 30, 60)]  # the last one waits for a row
    step(engine)
    step(engine)
    drafter.error = broken
    with pytest.raises(RuntimeError, match="broken on purpose"):
        engine.step()
    engine.check_integrity()
    drafter.error = None
    last = finish(engine)
    assert [last[i].error for i in ids] == [broken] * 3
    assert [last[i].token_ids for i in ids] == [[2, 3, 4, 5, 6], [31, 32, 33, 34, 35], []]
    assert engine.stats().failed == 3
    assert_all_free(engine)


@pytest.mark.parametrize(
    ("drafts", "message"),
    [
        ([[7] * 4], "4 drafts"),
        ([[7, V]], f"token {V}"),
        ([[7, -1]], "token -1"),
        ([], "0 lists"),
    ],
)
def test_a_drafter_that_proposes_what_it_must_not_is_named(
    monkeypatch: pytest.MonkeyPatch, drafts: Any, message: str
) -> None:
    class Wrong:
        def propose(self, reqs: Sequence[Req], most: Sequence[int]) -> Any:
            return drafts

    monkeypatch.setitem(DRAFTERS, "wrong", lambda _: Wrong())
    engine = engine_of(drafter="wrong")
    engine.add_request([1], greedy(6))
    step(engine)
    with pytest.raises(RuntimeError, match=f"drafter='wrong'.*{message}"):
        engine.step()
    (output,) = engine.step()
    assert (output.finish_reason, output.token_ids) == ("abort", [2])
    assert_all_free(engine)


@pytest.mark.parametrize("place", ["model", "sampler", "processing"])
def test_a_fault_in_a_verify_pass_frees_the_slots_of_its_drafts(
    drafter: OracleDrafter, broken: RuntimeError, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(rows=2, page_size=4, num_draft_tokens=7)
    ids = [engine.add_request([start], greedy(20)) for start in (1, 30, 60)]
    step(engine)
    step(engine)
    before = {req.request_id: req.output_ids for req in engine.scheduler.running}

    def fail(*args: Any) -> Any:
        raise broken

    with monkeypatch.context() as patch:
        if place == "model":
            patch.setattr(engine.model_runner, "run", fail)
        elif place == "sampler":
            patch.setattr(Sampler, "sample", fail)
        else:
            patch.setattr(Req, "append", fail)
        with pytest.raises(RuntimeError, match="broken on purpose"):
            engine.step()
    engine.check_integrity()
    last = finish(engine)
    resets = place == "processing"
    assert [last[i].error for i in ids] == [broken, broken, broken if resets else None]
    for i in ids[:2]:
        assert last[i].token_ids == before[i], "no token of the pass that failed"
    assert last[2].token_ids == ([] if resets else list(range(61, 81)))
    assert_all_free(engine)


def test_logits_of_a_row_that_hold_nan_end_the_requests_of_the_pass(drafter: OracleDrafter) -> None:
    engine = engine_of()
    engine.add_request([1], greedy(20))
    step(engine)
    forward = engine.model_runner.run

    def spoilt(*args: Any) -> Any:
        output = forward(*args)
        output.logits[-1] = torch.nan
        return output

    engine.model_runner.run = spoilt  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="NaN"):
        engine.step()
    (output,) = engine.step()
    assert output.token_ids == [2]
    assert_all_free(engine)


def test_drafts_are_counted_per_completion_per_request_and_in_all(drafter: OracleDrafter) -> None:
    drafter.right = 2
    engine = engine_of(num_draft_tokens=3, random_seed=0)
    engine.add_request([1], SamplingParams(max_new_tokens=10, n=2, temperature=0.01, seed=1))
    engine.add_request([40], greedy(3))
    last = finish(engine)
    # 1 token, then passes of 3 drafts, 2 of which are right: 3 tokens each, three times
    assert [(each.drafted_tokens, each.accepted_tokens) for each in last[0].outputs] == [(8, 6), (8, 6)]
    assert (last[0].drafted_tokens, last[0].accepted_tokens) == (16, 12)
    assert (last[1].drafted_tokens, last[1].accepted_tokens) == (1, 1)
    stats = engine.stats()
    assert (stats.drafted_tokens, stats.accepted_tokens) == (17, 13)
    assert stats.output_tokens == 23


def test_speculation_stops_where_drafts_are_always_wrong(drafter: OracleDrafter) -> None:
    drafter.right, clock = 0, Clock()
    engine = engine_of(adaptive_drafts=True, slots=4096, clock=clock)
    run = engine.model_runner.run

    def slow_run(*args: Any) -> Any:
        clock.now += 1.0 + 0.05 * len(args[0])  # by the number of rows
        return run(*args)

    engine.model_runner.run = slow_run  # type: ignore[method-assign]
    outputs = [serve(engine, [1], max_new_tokens=60)[0] for _ in range(2)]
    assert all(0 < output.drafted_tokens < 60 for output in outputs)
    asked = len(drafter.asked)
    assert asked < 60, "the drafter is not even asked"

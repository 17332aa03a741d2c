"""What the live page shows of the storeys below a pool: how full they are, what they keep of the tree, who waits."""

import json
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nanoinfer import Engine
from nanoinfer.cache.storeys.files import Fetch
from nanoinfer.cache.tree_observer import path_to
from nanoinfer.server.live.limits import Limits
from nanoinfer.server.live.patch import State, difference
from nanoinfer.server.live.view import View
from nanoinfer.trace import record
from tests.helpers.engines import greedy
from tests.helpers.live import finish, looked_at, merged, step
from tests.helpers.storeys import DictOfFiles, storey_of, with_files
from tests.helpers.traces import assert_same
from tests.server.test_live_shown import check, make
from tests.server.test_live_tape import read, taped

ALL = "".join(map(chr, range(40, 120)))
FIRST, SECOND, THIRD = ALL[:40], ALL[:20] + ALL[30:50], ALL[40:]
changes = st.lists(
    st.one_of(
        st.tuples(
            st.just("add"), st.sampled_from((FIRST, SECOND, THIRD)), st.just(1), st.sampled_from([None, "a key"])
        ),
        st.tuples(st.sampled_from(["abort", "pause", "resume"]), st.integers(0, 3)),
        st.tuples(st.just("flush")),
        st.tuples(st.just("steps"), st.integers(2, 7)),
        st.tuples(st.just("steps"), st.integers(2, 7)),
    ),
    min_size=4,
    max_size=14,
)


COMES_BACK = [each for prompt in (FIRST, THIRD, SECOND, FIRST) for each in (("add", prompt, 1, None), ("steps", 7))]


@example(True, 1, 48, 128, COMES_BACK)
@example(True, 1, 48, 32, [*COMES_BACK, *COMES_BACK])
@settings(max_examples=25)
@given(st.booleans(), st.sampled_from([1, 4]), st.sampled_from([48, 96]), st.sampled_from([32, 128]), changes)
def test_frames_show_what_the_storeys_have(
    has_files: bool, page_size: int, slots: int, host_cache_tokens: int, run: list[Any]
) -> None:
    engine, view = looked_at(
        slots=slots, page_size=page_size, host_cache_tokens=host_cache_tokens, schedule_conservativeness=0.1
    )
    storey_of(engine)
    files = with_files(engine) if has_files else None
    drawn: State = {}
    with record(engine) as trace:
        for what, *more in [*run, ("steps", 4)]:
            make(engine, what, *more)
            for _ in range(more[0] if what == "steps" else 1):
                engine.step()
                view.notes.after_pass(engine)
                state = view.look(engine).state
                drawn = merged(drawn, json.loads(json.dumps(difference(drawn, state))))
                check(drawn, engine, trace.state())
                check_storeys(drawn, engine, view, files)


def check_storeys(drawn: State, engine: Engine, view: View, files: DictOfFiles | None) -> None:
    stats = engine.stats()
    counts = {name: count for name, count in drawn["storeys"].items() if name != "disk_bytes"}
    assert counts == {name: stats[name] for name in counts}
    assert {"host_slots", "host_held_tokens", "disk_held_tokens"} <= counts.keys()
    bytes_ = None if files is None else sum(kv.nbytes for kv in files.kv.values())
    assert drawn["storeys"].get("disk_bytes") == bytes_
    for node, number in view.tree.shown.items():
        tokens = np.concatenate([each.key for each in reversed(path_to(node))])
        fields = drawn["nodes"][str(number)]
        shown = fields.get("host", 0), fields.get("disk", 0)
        assert shown == naively_kept(tokens, node.edge[0], len(node), engine, files), number


def naively_kept(
    tokens: np.ndarray, key: Any, length: int, engine: Engine, files: DictOfFiles | None
) -> tuple[int, int]:
    """Of the last `length` of `tokens`, how many are in whole blocks of them that host memory has, and that files have."""
    host, size = storey_of(engine), storey_of(engine).block_size
    in_host = in_files = 0
    for position in range(len(tokens) - length, len(tokens)):
        begin = position - position % size
        if begin + size <= len(tokens):
            in_host += host.index.reach(tokens[: begin + size], key, begin) > begin
            in_files += files is not None and (repr(key).encode(), tuple(tokens[: begin + size].tolist())) in files.kv
    return in_host, in_files


def test_without_storeys_a_frame_says_nothing_of_them() -> None:
    engine, view = looked_at()
    finish(engine, view, "abcdef")
    assert "storeys" not in view.look(engine).state


def away() -> tuple[Engine, View, DictOfFiles]:
    """What the first prompt left is in files only."""
    engine, view = looked_at(slots=56, host_cache_tokens=64)
    files = with_files(engine)
    finish(engine, view, FIRST, THIRD, ALL[5:45], ALL[25:65], max_new_tokens=1)
    return engine, view, files


def test_a_request_that_waits_for_files_says_for_how_much_and_then_where_it_was() -> None:
    engine, view, files = away()
    read, read_at_once, asked = Future[Any](), files.fetch, list[Any]()

    def read_later(*args: Any) -> Fetch:
        asked.append(args)
        return Fetch(read)

    files.fetch = read_later  # type: ignore[method-assign]
    engine.scheduler.adapter_turns._disk.least_patience_s = 120.0  # type: ignore[attr-defined]
    request_id = engine.add_request(FIRST + "z", greedy(2))
    step(engine, view)

    def shown() -> dict[str, Any]:
        requests = view.look(engine).state["requests"].values()
        return next(fields for fields in requests if fields["id"] == request_id)

    assert (shown()["status"], shown()["fetching"], "fetched" in shown()) == ("waiting", 32, False)
    read.set_result(read_at_once(*asked[0]).result())
    step(engine, view)
    fields = shown()
    assert (fields["status"], fields["cached"], fields["fetched"]) == ("running", 32, {"disk": [0, 32]})
    assert "fetching" not in fields


def test_what_blocks_are_called_is_worked_out_once_and_forgotten_when_nobody_watches() -> None:
    engine, view, _ = away()
    view.look(engine)
    assert view._storeys is not None
    before = dict(view._storeys._blocks)
    view.look(engine)
    after = view._storeys._blocks
    assert before
    assert all(after[node] is blocks for node, blocks in before.items())
    view.clear(engine)
    assert not view._storeys._blocks


def test_a_node_that_was_split_and_has_grown_between_two_frames_is_looked_at_anew() -> None:
    engine, view = looked_at(slots=200, host_cache_tokens=64)
    engine.add_request(FIRST, greedy(21))
    step(engine, view)
    view.look(engine)
    (node,) = view.tree.shown
    finish(engine, view, SECOND)  # of the second, the node loses 20 tokens, and from its own request it gets as many
    assert len(node) == 40
    storey_of(engine).evicting(node)
    drawn = view.look(engine).state
    check_storeys(drawn, engine, view, None)
    assert drawn["nodes"][str(view.tree.number(node))]["host"] == 28, "up to token 48, from token 20 on"


def test_a_saved_tape_has_what_was_fetched_in_both_of_its_pieces(tmp_path: Path) -> None:
    engine, tape = taped(Limits(tape_steps=6), host_cache_tokens=128)
    storey_of(engine)
    in_files = []
    for prompt in (FIRST, THIRD, ALL[5:45], *(FIRST, THIRD) * 4):
        engine.add_request(prompt, greedy(3))
        while engine.has_unfinished():
            tape.keep_up()
            engine.step()
            trace = read(tape, tmp_path)
            assert_same(trace, engine)
        in_files.append(sum(bool(event.fetched) for event in trace.events))
    assert max(in_files) > 1
    assert engine.stats().host_fetched_tokens

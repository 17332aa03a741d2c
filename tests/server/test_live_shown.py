"""What the live page shows is what the engine is: after every step of recorded runs, whatever happens in them."""

import json
from typing import Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nanoinfer import Engine, SamplingParams
from nanoinfer.cache.tree_observer import path_to
from nanoinfer.requests.outputs import tokens_by_tier
from nanoinfer.server.live.feed import difference
from nanoinfer.server.live.view import State, View
from nanoinfer.trace import TraceState, record
from nanoinfer.trace.state import NodeState
from tests.helpers.engines import greedy
from tests.helpers.fetches import Fetches
from tests.helpers.live import cells, finish, looked_at, merged, step
from tests.helpers.storeys import DictOfFiles, storey_of, with_files

SLOTS = 32  # so few that requests are retracted
PROMPTS = ("abcdef", "abcxyz", "abcdefghij", "klm", "k", "abcdxx")
changes = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from(PROMPTS), st.integers(1, 2), st.sampled_from([None, "a key"])),
        st.tuples(st.sampled_from(["abort", "pause", "resume"]), st.integers(0, 3)),
        st.tuples(st.just("flush")),
        st.tuples(st.just("steps"), st.integers(1, 4)),
    ),
    max_size=14,
)
engines = st.fixed_dictionaries(
    {
        "rows": st.integers(1, 3),
        "page_size": st.sampled_from([1, 4]),
        "drafter": st.sampled_from([None, "ngram"]),
        "chunked_prefill_size": st.sampled_from([4, 64]),
        "num_scheduler_steps": st.sampled_from([1, 3]),
        "disable_radix_cache": st.booleans(),
    }
)
RETRACTS = (
    {
        "rows": 3,
        "page_size": 1,
        "drafter": None,
        "chunked_prefill_size": 64,
        "num_scheduler_steps": 1,
        "disable_radix_cache": True,
    },
    [
        ("add", "abcdefghij", 1, None),
        ("add", "abcdefghij", 1, "a key"),
        ("add", "abcxyz", 1, None),
        *3 * [("steps", 4)],
    ],
)


def make(engine: Engine, what: str, *more: Any) -> None:
    """One change of a run."""
    opened = sorted(engine.open_requests.groups)
    if what == "add":
        prompt, n, key = more
        params = SamplingParams(max_new_tokens=5, temperature=float(n > 1), seed=3, n=n, ignore_eos=True)
        engine.add_request(prompt, params, extra_key=key)
    elif what == "flush":
        engine.flush_cache()
    elif what != "steps" and opened:
        getattr(engine, what)(opened[more[0] % len(opened)])


@example(*RETRACTS)
@settings(max_examples=25)
@given(engines, changes)
def test_frames_show_the_engines_numbers_and_the_state_of_the_recorded_run(
    options: dict[str, Any], run: list[Any]
) -> None:
    if options["drafter"]:
        options = options | {"adaptive_drafts": False, "num_scheduler_steps": 1}
    engine, view = looked_at(slots=SLOTS, schedule_conservativeness=0.1, **options)
    drawn: State = {}

    def compare() -> None:
        nonlocal drawn
        state = view.look(engine).state
        drawn = merged(drawn, json.loads(json.dumps(difference(drawn, state))))  # as it comes to a browser
        check(drawn, engine, trace.state())

    with record(engine) as trace:
        for what, *more in [*run, ("steps", 4)]:
            make(engine, what, *more)
            for _ in range(more[0] if what == "steps" else 1):
                engine.step()
                view.notes.after_pass(engine)
                compare()


def check(drawn: State, engine: Engine, state: TraceState) -> None:
    """`drawn`: what a page has put together. `state`: what the recorder's events make; it has never looked at the pools."""
    stats = engine.stats()
    assert {name: drawn["counts"][name] for name in drawn["counts"]} == {name: stats[name] for name in drawn["counts"]}
    assert below(drawn["nodes"], 0) == below_in_trace(state.root)
    shown = {fields["name"]: fields for fields in drawn["requests"].values() if fields["status"] != "ended"}
    wanted = {req.name: req for req in state.requests.values() if req.status != "ended"}
    assert shown.keys() == wanted.keys()
    for name, req in wanted.items():
        fields = shown[name]
        numbers = (
            req.status,
            len(req.request.prompt),
            len(req.tokens),
            req.cached_tokens,
            req.drafted_tokens,
            req.accepted_tokens,
        )
        assert (
            tuple(fields[key] for key in ("status", "prompt", "tokens", "cached", "drafted", "accepted")) == numbers
        ), name
        assert tokens_by_tier(fields["cached"], fields.get("fetched", {})) == req.cached_tokens_by_tier, name
        if req.is_running:
            assert (fields["row"], fields["tree"], fields["held"]) == (req.row, req.tree_len, len(req.slots))
            assert slots_of(fields["slots"]) == state.row_slots(req)
    owners = dict.fromkeys(state.tree_slots(), 1)
    owners |= {slot: 2 for _, node in state.walk() if node.lock_ref for slot in node.value}
    numbers = {fields["name"]: int(number) for number, fields in drawn["requests"].items()}
    owners |= {slot: 4 + numbers[name] for name, slots in state.owners().items() for slot in slots}
    assert cells(drawn) == [owners.get(slot, 0) for slot in range(stats.total_slots)]


def slots_of(runs: list[int]) -> list[int]:
    return [slot for start, length in zip(runs[::2], runs[1::2], strict=True) for slot in range(start, start + length)]


def below(nodes: dict[str, Any], number: int) -> list[Any]:
    """What hangs from a drawn node: slots, locks, hits, and what is below them."""
    children = [(int(name), node) for name, node in nodes.items() if node.get("parent") == number]
    return sorted([slots_of(node["slots"]), node["lock"], node["hits"], below(nodes, name)] for name, node in children)


def below_in_trace(node: NodeState) -> list[Any]:
    return sorted([child.value, child.lock_ref, child.hit_count, below_in_trace(child)] for child in node.children)


# --- storeys below the pool ------------------------------------------------------------------------------------------

ALL = "".join(map(chr, range(40, 120)))
FIRST, SECOND, THIRD = ALL[:40], ALL[:20] + ALL[30:50], ALL[40:]
storey_changes = st.lists(
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
@given(st.booleans(), st.sampled_from([1, 4]), st.sampled_from([48, 96]), st.sampled_from([32, 128]), storey_changes)
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


def away() -> tuple[Engine, View]:
    """What the first prompt left is in files only."""
    engine, view = looked_at(slots=56, host_cache_tokens=64)
    with_files(engine)
    finish(engine, view, FIRST, THIRD, ALL[5:45], ALL[25:65], max_new_tokens=1)
    return engine, view


def test_a_request_that_waits_for_files_says_for_how_much_and_then_where_it_was() -> None:
    engine, view = away()
    reads = engine.cache.storey.below._reader = Fetches()
    request_id = engine.add_request(FIRST + "z", greedy(2))
    step(engine, view)

    def shown() -> dict[str, Any]:
        requests = view.look(engine).state["requests"].values()
        return next(fields for fields in requests if fields["id"] == request_id)

    assert (shown()["status"], shown()["fetching"], "fetched" in shown()) == ("waiting", 32, False)
    reads.run_all()
    step(engine, view)
    fields = shown()
    assert (fields["status"], fields["cached"], fields["fetched"]) == ("running", 32, {"disk": [0, 32]})
    assert "fetching" not in fields


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

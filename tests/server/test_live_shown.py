"""What the live page shows is what the engine is: after every step of recorded runs, whatever happens in them."""

import json
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from nanoinfer import Engine, SamplingParams
from nanoinfer.requests.outputs import tokens_by_tier
from nanoinfer.server.live.patch import State, difference
from nanoinfer.trace import TraceState, record
from nanoinfer.trace.state import NodeState
from tests.helpers.live import cells, looked_at, merged

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

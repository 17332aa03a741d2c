"""What a frame of the live page says: the truth about the engine, within bounds, and nothing that clients have written."""

import gc
import json
import weakref
from collections import Counter
from copy import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoinfer.requests.adapter_key import AdapterKey
from nanoinfer.server.live.feed import difference
from nanoinfer.server.live.limits import Limits
from nanoinfer.server.live.pool_view import FREE, OTHER, TREE
from nanoinfer.server.live.request_view import MOST_REQUESTS, name_of_key
from nanoinfer.server.live.view import State
from tests.helpers.engines import greedy, serve
from tests.helpers.live import cells, finish, looked_at, merged, step

leaves = st.one_of(st.integers(0, 3), st.sampled_from(["", "a", "b"]), st.lists(st.integers(0, 2), max_size=2))
entries = st.dictionaries(st.sampled_from("xyz"), leaves)
states = st.dictionaries(
    st.sampled_from("abc"), st.one_of(leaves, entries, st.dictionaries(st.sampled_from("12"), entries))
)


@given(states, states)
def test_a_difference_makes_one_state_of_the_other(before: State, after: State) -> None:
    assert merged(before, difference(before, after)) == after
    assert difference(after, after) == {}


# --- the truth --------------------------------------------------------------------------------------------------------


def test_a_cell_of_several_slots_shows_the_owner_of_most_of_them() -> None:
    engine, view = looked_at(slots=1000, limits=Limits(cells=100))
    finish(engine, view, "abcdefghijklmnopqr", max_new_tokens=3)  # 20 slots of the tree: lowest first
    state = view.look(engine).state
    assert (state["map"]["shown"], state["map"]["group"]) == (512, 6)
    assert cells(state) == [TREE] * 3 + [FREE] * 83  # of slots 18 to 23, two


def test_more_slots_are_shown_when_more_have_been_in_use() -> None:
    engine, view = looked_at(rows=40, slots=2048)
    assert view.look(engine).state["map"]["shown"] == 512
    for i in range(40):
        engine.add_request([i, *range(40)], greedy(20))
    step(engine, view, 2)
    assert view.look(engine).state["map"]["shown"] == 2048
    engine.abort_all()
    engine.flush_cache()
    assert view.look(engine).state["map"]["shown"] == 2048, "it does not shrink again"


def test_a_request_that_comes_and_ends_between_two_frames_is_seen() -> None:
    engine, view = looked_at()
    view.look(engine)
    finish(engine, view, "abc")
    state = view.look(engine).state
    assert state["passes"] == {"EXTEND": 1, "DECODE": 3}
    (fields,) = state["requests"].values()
    assert (fields["status"], fields["phase"], fields["tokens"]) == ("ended", "extend", 7)
    (fields,) = view.look(engine).state["requests"].values()
    assert fields["phase"] == "ended"


# --- what clients have written ----------------------------------------------------------------------------------------


def frames_of(first: str, second: str, third: str, show_prompts: bool) -> bytes:
    """All frames while three prompts are served, of which the second begins as the first does."""
    engine, view = looked_at(show_prompts)
    states = []
    for prompt in (first, second, third):
        engine.add_request(prompt, greedy(5), extra_key=f"secret of {first}")
    while engine.has_unfinished():
        step(engine, view)
        look = view.look(engine)
        assert (look.excerpts is not None) is show_prompts
        states.append([look.state, str(look.excerpts)])
    return json.dumps(states).encode()


@pytest.mark.parametrize("show_prompts", [False, True])
def test_frames_are_the_same_whatever_was_written_unless_prompts_are_shown(show_prompts: bool) -> None:
    """Not a byte depends on it: neither on texts, nor on token ids, nor on the keys that keep clients apart."""
    one = frames_of("abcdef", "abcxyz", "!?", show_prompts)
    other = frames_of("ghijkl", "ghiopq", "+-", show_prompts)
    assert (one == other) is not show_prompts


def test_namespaces_are_named_without_their_keys() -> None:
    class Adapter:
        id, name = 7, "sea"

    names = [
        name_of_key(key, [Adapter()])
        for key in (None, "secret", AdapterKey(7, None), AdapterKey(7, "secret"), AdapterKey(8, None))
    ]  # type: ignore[list-item]
    assert names == [None, "a key of its own", "adapter sea", "adapter sea, a key of its own", "an unloaded adapter"]


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_a_tree_of_thousands_of_nodes_makes_a_small_frame() -> None:
    engine, view = looked_at(slots=8192)
    pool, tree = engine.cache.token_to_kv_pool, engine.radix_cache
    for i in range(2500):  # fifty subtrees of fifty leaves
        slots = pool.alloc(3)
        assert slots is not None
        pool.free(slots[: tree.insert([i // 50, 200 + i, i], slots)])
    assert len(list(tree.nodes())) == 2550
    engine.add_request([7, 5, 6], greedy(3))
    step(engine, view)
    state = view.look(engine).state
    assert len(json.dumps(state)) < 30_000
    assert len(state["nodes"]) == 1 + Limits().nodes
    shown = Counter(fields.get("parent") for fields in state["nodes"].values())
    for number, fields in state["nodes"].items():
        children = 50 if number == "0" else 0 if fields["tokens"] == 2 else 50 + bool(fields["lock"])
        assert fields["hidden"] == children - shown[int(number)]
    locked = [fields["tokens"] for fields in state["nodes"].values() if fields.get("lock")]
    assert sum(locked) == tree.protected_size() > 0, "those in use are drawn first"


def test_a_crowd_makes_a_frame_that_is_bounded_and_says_what_it_leaves_out() -> None:
    limits = Limits(running=20, waiting=5, rows=4, nodes=10, cells=64)
    engine, view = looked_at(show_prompts=True, limits=limits, rows=50, slots=4096)
    for i in range(300):
        engine.add_request([i % 100, *range(30)], greedy(20))
    step(engine, view, 10)
    state = view.look(engine).state
    statuses = [fields["status"] for fields in state["requests"].values()]
    assert (statuses.count("running"), statuses.count("waiting")) == (20, 5)
    assert (state["counts"]["running"], state["counts"]["waiting"]) == (50, 250)
    assert sum("slots" in fields for fields in state["requests"].values()) == 4
    assert OTHER in cells(state), "slots of requests that are not in the frame"
    assert len(cells(state)) <= 64
    assert len(json.dumps(state)) < 20_000


def test_notes_between_two_frames_are_bounded() -> None:
    engine, view = looked_at(rows=4, slots=64)
    finish(engine, view, "xyz")
    (req,) = view.notes._kinds
    view.notes._kinds = {copy(req): "EXTEND" for _ in range(MOST_REQUESTS)}
    engine.add_request("abc", greedy(2))
    step(engine, view)
    assert len(view.notes._kinds) == MOST_REQUESTS
    assert view.look(engine).state["counts"]["running"] == 1


def test_nothing_is_kept_of_requests_and_nodes_when_nobody_watches() -> None:
    engine, view = looked_at()
    engine.add_request("abc", greedy(3))
    step(engine, view)
    request = weakref.ref(engine.scheduler.running[0])
    view.look(engine)
    finish(engine, view)
    view.look(engine)
    view.clear(engine)
    serve(engine, "xyz")  # the engine itself knows the requests of its last pass
    gc.collect()
    assert request() is None
    assert not view.tree.shown

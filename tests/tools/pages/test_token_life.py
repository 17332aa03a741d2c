"""The explorable of one token's life: slot, owner and reads, compared with a second engine that is looked at directly."""

import pytest

from nanoinfer import LLM
from notebooks.course.explore import token_life
from notebooks.course.explore.lives import lives_of, seen_moments
from notebooks.course.explore.panels.cells import Cells
from notebooks.course.explore.runs import Arrival, serve
from notebooks.course.prompts import FOX
from tests.tools.pages.conftest import Recorded, live


@pytest.mark.parametrize(("request_number", "position"), token_life.TOKENS)
def test_the_slot_and_the_owner_of_a_token_are_those_of_the_live_engine(
    request_number: int, position: int, story: LLM, recorded: Recorded
) -> None:
    trace = recorded(token_life.record_lives).trace
    lives = lives_of(trace, request_number, position)[1:]  # from the first step on
    for engine, life in zip(live(story, token_life.ARRIVALS, token_life.SLOTS), lives, strict=True):
        running = {req.request_id: req for req in engine.scheduler.running}
        rows = {number: engine.cache.rows[req.req_pool_idx, : req.kv_len].tolist() for number, req in running.items()}
        row = rows.get(request_number, [])
        if len(row) > position:
            assert life.slot == row[position]
            in_tree = position < running[request_number].tree_len
            assert life.owner == ("tree" if in_tree else "request")
        for sharer in life.sharers:
            assert rows[sharer][position] == life.slot
        tokens = trace.state().requests[request_number].tokens[: position + 1]
        match, _ = engine.radix_cache.peek_prefix(tokens)
        assert (life.owner == "tree") == (match == position + 1)


@pytest.mark.parametrize(("request_number", "position"), token_life.TOKENS)
def test_a_token_is_read_by_every_query_from_its_own_position_on(
    request_number: int, position: int, recorded: Recorded
) -> None:
    trace = recorded(token_life.record_lives).trace
    life = lives_of(trace, request_number, position)[-1]
    expected: dict[int, int] = {}
    tokens = trace.state().requests[request_number].tokens[: position + 1]
    for event in trace.events:
        for entry in event.batch:
            same = trace.state().requests[entry.request].tokens[: position + 1] == tokens
            queries = sum(place >= position for place in range(entry.start, entry.end))
            if same and queries:
                expected[event.step] = expected.get(event.step, 0) + queries
    assert life.reads == expected


def test_a_token_computed_twice_is_read_through_the_slot_that_the_tree_keeps(story: LLM) -> None:
    trace = serve(story, [Arrival(0, FOX, 3), Arrival(3, FOX, 3)], 64).trace
    known, last = lives_of(trace, 0, 12)[-1], lives_of(trace, 0, 13)[-1]
    assert known.reads == {1: 2, 2: 1, 3: 1, 4: 1, 5: 1, 6: 1}
    # A prompt's last token is always computed: in step 4 into a second slot, which the tree does not take.
    assert last.reads == {1: 1, 2: 1, 3: 1, 5: 1, 6: 1}


def test_a_life_has_all_its_parts(recorded: Recorded) -> None:
    trace = recorded(token_life.record_lives).trace
    fox, answer, last, river = (lives_of(trace, *token) for token in token_life.TOKENS)
    assert not fox[0].slot
    assert fox[0].known
    assert any(life.sharers == (1,) for life in fox)
    assert fox[-1].freed
    assert fox[-1].slot is None
    owners = [life.owner for life in answer]
    assert owners.index("request") < owners.index("tree")
    assert all(life.slot is None and not life.reads for life in last), "nothing comes after the last token"
    assert last[-1].known
    assert not river[0].known
    assert river[-1].freed
    assert len(seen_moments(trace)) == len(fox) == len(trace) + 1
    for frame in recorded(token_life.token_life).frames.values():
        cells = [cell for each in frame.panels if isinstance(each, Cells) for row in each.rows for cell in row.cells]
        assert sum(cell.mark != "" for cell in cells) <= 3

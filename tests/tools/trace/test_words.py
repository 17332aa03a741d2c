"""What a trace says: a sentence for everything that happened, whose counts add up."""

from nanoinfer.trace import Trace, record
from tests.helpers.engines import make_engine, serve


def test_the_sentences_of_a_hit_and_a_split() -> None:
    engine = make_engine()
    with record(engine) as trace:
        serve(engine, "ABCDE", max_new_tokens=2)
        serve(engine, "ABCXYZ", max_new_tokens=1)
    assert trace.describe().splitlines() == [
        "Start: 0 requests running, 0 waiting, 0 tokens in the tree, 256 free slots.",
        "Before this step, request 0 arrives with 5 prompt tokens. Step 1 EXTEND: request 0 is admitted with none of "
        "5 prompt tokens cached; request 0 extends 5 tokens and samples “F”; 5 tokens enter the tree.",
        "Step 2 DECODE: request 0 computes position 5 in slot 5 and samples “G”; request 0 ends (length); 1 token enters "
        "the tree.",
        "Before this step, request 1 arrives with 6 prompt tokens. Step 3 EXTEND: request 1 is admitted with 3 of 6 "
        "prompt tokens cached; a node splits after token 3; request 1 extends 3 tokens and samples “[”; request 1 ends "
        "(length); 3 tokens enter the tree.",
    ]
    assert trace.describe(2) == trace.describe().splitlines()[2]


def test_the_sentences_tell_of_everything_that_goes_wrong(busy: Trace) -> None:
    sentences = busy.describe()
    for words in (
        "for later",
        "is retracted for lack of slots",
        "request 1 is paused and gives back its row and slots",
        "request 1 is resumed",
        "admitted again",
        "the tree evicts",
        "request 0 ends (abort)",
        "ends (error)",
        "The step raised RuntimeError: the model broke.",
        "request 4 (2) arrives",
    ):
        assert words in sentences
    assert sentences.splitlines()[-1].startswith(f"After step {len(busy)}: ")
    assert "evicts" in sentences.splitlines()[-1]


def test_counts_in_the_sentences_add_up(busy: Trace) -> None:
    """Slots that are freed, evicted or given: what a sentence says of each event is what the pool's own count says."""
    import re

    def number(pattern: str, text: str) -> int:
        return sum(int(found) for found in re.findall(pattern, text))

    free, tree = busy.engine["max_total_tokens"], 0
    states = {event.step: (state.free, len(state.tree_slots())) for event, state in busy.states() if event.is_step}
    given = {event.step: sum(e.end - e.start for e in event.batch) for event in busy.events if event.is_step}
    for step in range(1, len(busy) + 1):
        text = busy.describe(step)
        entering = number(r"(\d+) tokens? enters? the tree", text)
        evicted = number(r"evicts (\d+) tokens?", text)
        freed = number(r"(\d+) (?:duplicate )?slots? (?:is|are) freed", text)
        tree += entering - evicted
        free += evicted + freed - given[step]
        assert (free, tree) == states[step], text

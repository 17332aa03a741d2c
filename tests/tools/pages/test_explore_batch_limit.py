"""The page about arrivals and the batch limit: its runs, by a queue of one line and by what must hold of any queue."""

from random import Random

import pytest

from nanoinfer.cluster.simulate.distributions import Arrivals
from notebooks.course.explore.batch_limit import (
    ANSWER,
    LIMITS,
    PROMPT,
    RATES,
    SECONDS,
    WARM_UP,
    _sentence,
    load_of,
    percentile,
)


def one_after_the_other(rate: float) -> list[tuple[float, float]]:
    """Seconds to the first and to the last token of each request that is counted, if each is served alone."""
    rng, free_at, found = Random(16), 0.0, []
    for arrival in Arrivals(rate).times(Random(61), SECONDS):
        prompt, answer = PROMPT.draw(rng), ANSWER.draw(rng)
        first = max(arrival, free_at) + 0.010 + 0.001 * prompt
        free_at = first + (answer - 1) * (0.010 + 0.0005)
        if arrival >= WARM_UP:
            found.append((first - arrival, free_at - arrival))
    return found


@pytest.mark.parametrize("rate", [1, 3])
def test_with_one_at_a_time_it_is_the_queue_of_a_single_server(rate: int) -> None:
    load, times = load_of(rate, 1), one_after_the_other(rate)
    assert load.first == pytest.approx(sorted(first for first, _ in times))
    assert load.last == pytest.approx(sorted(last for _, last in times))
    assert {round(each, 9) for each in load.between} == {0.0105}
    assert load.is_too_much == (rate == 3)


def test_more_at_a_time_wait_less_for_the_first_token_and_longer_for_each_other_one() -> None:
    few, many = load_of(8, 8), load_of(8, 32)
    assert percentile(many.first, 99) < percentile(few.first, 50) / 5
    assert percentile(many.between, 50) > 1.2 * percentile(few.between, 50)
    assert (few.is_too_much, many.is_too_much) == (True, False)
    assert len(few.last) == len(many.last), "the same requests"


def test_sentences_say_what_would_help() -> None:
    assert "Hardly any waits" in _sentence(1, 4)
    assert "With 2 at a time, more requests share each pass" in _sentence(3, 1)
    assert "With 4 at a time, more requests share each pass" in _sentence(4, 1)
    assert "the queue grows" in _sentence(10, 16)
    assert "many share each pass" in _sentence(10, 32)


def test_the_range_is_the_interesting_one() -> None:
    """The least limit is too small for all rates but the first ones, and the largest one for none."""
    assert not load_of(RATES[0], LIMITS[0]).is_too_much
    assert load_of(RATES[-1], LIMITS[0]).is_too_much
    assert not load_of(RATES[-1], LIMITS[-1]).is_too_much

"""limited: a loop without an end becomes a hint, whatever it catches, and nothing stays behind."""

import sys

import pytest

from notebooks.course import Hint
from notebooks.course.tables import limited


def test_a_loop_without_an_end_becomes_the_hint() -> None:
    before, count = sys.gettrace(), 0
    with pytest.raises(Hint, match="goes on"), limited(1000, "goes on"):
        _forever()
    assert sys.gettrace() is before
    with limited(1000, "goes on"):
        count = _up_to(300)
    assert count == 300


def test_other_exceptions_pass_through() -> None:
    with pytest.raises(ZeroDivisionError), limited(1000, "goes on"):
        _ = 1 / 0


def _forever() -> None:
    count = 0
    while True:
        try:
            count += 1
        except Exception:
            count = 0


def _up_to(most: int) -> int:
    count = 0
    while count < most:
        count += 1
    return count

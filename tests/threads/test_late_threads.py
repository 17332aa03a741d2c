"""tests/late_threads.py: threads are late where it says, and no longer than it says."""

import inspect
from collections.abc import Iterator
from pkgutil import resolve_name
from threading import Event
from typing import Any

import pytest

from tests.helpers.waiting import Worker
from tests.late_threads import PLACES, Lateness

SEEN: list[Any] = []


class Scene:
    def act(self, what: str) -> str:
        """Says it again."""
        SEEN.append(what)
        if what == "fail":
            raise LookupError(what)
        return what


@pytest.fixture(autouse=True)
def another_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A thread that has nobody to meet is never late."""
    SEEN.clear()
    monkeypatch.setattr(Scene, "act", Scene.act)  # so that it is put back
    end = Event()
    other = Worker(end.wait)
    yield
    end.set()
    other.result()


def late(when: str, is_meant: bool = True, share: float = 1.0) -> Lateness:
    """Scene.act is late from now on, by half a second, up to one second; the naps are noted."""
    lateness = Lateness(0.5, 1.0, share)
    lateness._sleep = SEEN.append
    lateness.make_late(Scene, "act", when, lambda: is_meant)
    return lateness


@pytest.mark.parametrize(("when", "seen"), [("before", [0.5, "a"]), ("after", ["a", 0.5])])
def test_a_method_is_late_before_or_after_it_and_does_what_it_did(when: str, seen: list[Any]) -> None:
    late(when)
    assert Scene().act("a") == "a"
    assert seen == SEEN
    assert Scene.act.__doc__ == "Says it again."


def test_it_is_late_when_the_method_raises_too() -> None:
    late("after")
    with pytest.raises(LookupError):
        Scene().act("fail")
    assert SEEN == ["fail", 0.5]


def test_only_the_threads_that_are_meant_are_late_and_only_for_a_while() -> None:
    late("before", is_meant=False)
    Scene().act("a")
    assert SEEN == ["a"]
    lateness = late("before")
    for _ in range(3):
        Scene().act("b")
    assert SEEN == ["a", 0.5, "b", 0.5, "b", "b"]
    lateness.left = 0.1
    Scene().act("c")
    assert SEEN[-2:] == [0.5, "c"]


def test_a_share_of_the_occasions_is_drawn() -> None:
    lateness = late("before", share=0.25)
    lateness.left = 1e6
    for _ in range(1000):
        Scene().act("a")
    assert 200 <= SEEN.count(0.5) <= 300


def test_every_place_is_a_method_that_exists() -> None:
    for name, (owner, method, when, _) in PLACES.items():
        assert inspect.isfunction(getattr(resolve_name(owner), method)), name
        assert when in ("before", "after")

"""Would a busy machine make a right program fail? `pytest -p tests.late_threads --late engine-gave-turn -n 4`.

A thread may be stopped anywhere for as long as the machine likes. Here, threads are late in one place whenever they come
there, at most `--late-budget` seconds in each test. What fails or hangs then is a test that counts on a thread to be quick,
or a defect of the engine. `--late all` is late in any of the places, by chance (`--late-seed`).
"""

import random
import threading
import time
from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any

import pytest

HANG_S = 25.0  # whoever waits so long, without a busy machine, waits for ever
SHARE = 0.1  # of all occasions, with `--late all`


def _engine() -> bool:
    return threading.current_thread().name.startswith("nanoinfer-engine")


def _other() -> bool:
    return not _engine()


def _any() -> bool:
    return True


TURNS, LOOP = "nanoinfer.threads.turns:Turns", "nanoinfer.engine.engine_loop:EngineLoop"
GATE, THREAD, EVENTS = "tests.helpers.async_engines:Gate", "threading:Thread", "asyncio:BaseEventLoop"
# By name: whose method, whether a thread is late before or after it, and which threads are.
PLACES: dict[str, tuple[str, str, str, Callable[[], bool]]] = {
    "engine-wants-turn": (TURNS, "_wait", "before", _engine),
    "engine-gave-turn": (TURNS, "_give_back", "after", _engine),
    "others-want-turn": (TURNS, "_wait", "before", _other),
    "others-gave-turn": (TURNS, "_give_back", "after", _other),
    "has-turn": (TURNS, "_wait", "after", _any),
    "posted": (LOOP, "post", "after", _any),
    "runs-command": (LOOP, "_run", "before", _any),
    "comes-to-gate": (GATE, "__call__", "before", _any),
    "leaves-gate": (GATE, "__call__", "after", _any),
    "thread-begins": (THREAD, "run", "before", _any),
    "thread-started": (THREAD, "start", "after", _any),
    "event-set": ("threading:Event", "set", "after", _any),
    "tells-event-loop": (EVENTS, "call_soon_threadsafe", "before", _any),
    "told-event-loop": (EVENTS, "call_soon_threadsafe", "after", _any),
    "event-loop-turns": (EVENTS, "_run_once", "before", _any),
}


class Lateness:
    """`nap` sleeps `seconds` with a probability of `share`, if there is more than one thread, as often as the `budget` of a
    test allows."""

    def __init__(self, seconds: float, budget: float, share: float = 1.0, seed: int = 0):
        self.seconds, self.budget, self.share = seconds, budget, share
        self.left = budget
        self._random, self._sleep = random.Random(seed), time.sleep  # some tests replace it

    def nap(self) -> None:
        if self.left > 0 and threading.active_count() > 1 and self._random.random() < self.share:
            self.left -= self.seconds
            self._sleep(self.seconds)

    def make_late(self, owner: Any, name: str, when: str, is_meant: Callable[[], bool]) -> None:
        """Replace a method by one that naps before or after it, in the threads that are meant."""
        method = getattr(owner, name)

        def late(*arguments: Any, **keywords: Any) -> Any:
            if when == "before" and is_meant():
                self.nap()
            try:
                return method(*arguments, **keywords)
            finally:
                if when == "after" and is_meant():
                    self.nap()

        late.__name__, late.__qualname__, late.__doc__ = method.__name__, method.__qualname__, method.__doc__
        setattr(owner, name, late)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("late threads")
    group.addoption("--late", choices=[*PLACES, "all"], help="where threads are late")
    group.addoption("--late-seconds", type=float, default=0.06, help="how late (default: 0.06)")
    group.addoption("--late-budget", type=float, default=1.5, help="seconds per test, at most (default: 1.5)")
    group.addoption("--late-seed", type=int, default=0, help="of `--late all` (default: 0)")


def pytest_configure(config: pytest.Config) -> None:
    chosen = config.getoption("--late")
    if chosen is None:
        return
    resolve_name("tests.helpers.waiting").HANG_S = HANG_S
    lateness = Lateness(
        config.getoption("--late-seconds"),
        config.getoption("--late-budget"),
        SHARE if chosen == "all" else 1.0,
        config.getoption("--late-seed"),
    )
    for name, (owner, method, when, is_meant) in PLACES.items():
        if chosen in (name, "all"):
            lateness.make_late(resolve_name(owner), method, when, is_meant)
    config.pluginmanager.register(_PerTest(lateness))


class _PerTest:
    def __init__(self, lateness: Lateness):
        self._lateness = lateness

    def pytest_runtest_setup(self) -> None:
        self._lateness.left = self._lateness.budget

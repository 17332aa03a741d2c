"""How tests grade the made-up notebook 90: with time limits that nothing reaches unless a test brings it about."""

import select
import signal
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from notebooks.tools import submission
from notebooks.tools.submission import GRACE, Graded, grade
from tests.helpers.waiting import HANG_S, until
from tests.sample_series import save

IDS = ["90.1", "90.2", "90.3"]


def graded(checks: Path, folder: Path, content: dict[str, Any], **settings: Any) -> Graded:
    """Grade `content`, saved in `folder`, with the checks in `checks`."""
    limits = {"timeout": HANG_S, "total": 20 * HANG_S, **settings}
    return grade(save(folder, "90_sample.ipynb", content), checks=[checks], **limits)


def outcomes(result: Graded) -> list[str]:
    """What came of the three exercises."""
    return [result.outcomes[id] for id in IDS]


# A submission's lines: what is left of the time for its cell or check is over at once, if that time was set at all.
TIME_FLIES = (
    f"import signal\nsignal.setitimer({signal.ITIMER_REAL}, signal.getitimer({signal.ITIMER_REAL})[0] and 0.001)"
)


class GradersClock:
    """The grader's clock, in place of the real one: it goes on by a second whenever the grader looks at it, and by `leap`
    seconds whenever a submission says that it hangs. Until then the grader waits for messages, however long they take.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, leap: float = HANG_S + GRACE):
        self._told, self._leap, self._looks, self._leapt = folder / "hangs", leap, count(), 0.0
        self.hangs = f"open({str(self._told)!r}, 'w').close()"  # what a submission says
        monkeypatch.setattr(submission, "time", SimpleNamespace(monotonic=self._now))
        monkeypatch.setattr(submission, "select", SimpleNamespace(select=self._select))

    def _now(self) -> float:
        return next(self._looks) + self._leapt

    def _select(self, reading: list[int], *_: Any) -> tuple[list[int], list[int], list[int]]:
        until(lambda: select.select(reading, [], [], 0)[0] or self._told.exists(), "a message of the submission")
        ready = select.select(reading, [], [], 0)  # asked again: what it said before it hung comes first
        if not ready[0]:
            self._told.unlink()
            self._leapt += self._leap
        return ready

"""PassLog: what was in each pass of an engine that serves, and how long it took with all that is between passes."""

import time
from collections.abc import Callable, Sequence
from math import sqrt

from nanoinfer.cluster.calibrate import describe_pass
from nanoinfer.cluster.costs import MeasuredPass, PassCosts, fit
from nanoinfer.engine.engine import Engine
from nanoinfer.requests.outputs import RequestOutput

REFITS = 5


class PassLog:
    """Wraps `engine.step`. A pass takes from the end of the one before, if requests were left then, else from the call of
    `step`: handing out tokens and whatever else the same thread does between two passes is in it."""

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.perf_counter):
        self._engine, self._inner, self._clock = engine, engine.step, clock
        self._passes: list[MeasuredPass] = []
        self._ended: float | None = None  # the pass before, if requests were left
        engine.step = self._step  # type: ignore[method-assign]

    def take(self) -> list[MeasuredPass]:
        """The passes since the last call. Between two steps."""
        taken, self._passes = self._passes, []
        return taken

    def _step(self) -> list[RequestOutput]:
        began = self._clock() if self._ended is None else self._ended
        outputs = self._inner()
        ended = self._clock()
        if self._engine.last_batch is not None:
            self._passes.append(describe_pass(self._engine, ended - began))
        self._ended = ended if self._engine.has_unfinished() else None
        return outputs


def fit_served(passes: Sequence[MeasuredPass], source: str = "") -> PassCosts:
    """The costs of passes as they come in traffic, where equal ones take now longer and now shorter: all of them together
    take as long as was measured. (`fit` alone divides each error by what was measured, and so leans to the short ones.)

    ValueError as in `fit`.
    """
    costs = fit(passes, source)
    for _ in range(REFITS):  # each error is divided by the root of what is expected
        costs = fit(passes, source, [each.seconds / sqrt(costs.seconds(each)) for each in passes])
    return costs

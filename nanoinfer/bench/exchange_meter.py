"""ExchangeMeter: how long rank 0 of a split model spends in what all ranks do together."""

import time
from collections.abc import Callable
from typing import Any

from nanoinfer.parallel.communicator import Communicator


class ExchangeMeter:
    """From now on, `seconds` counts the time inside `communicator`: sending, receiving, and waiting for a slower rank."""

    def __init__(self, communicator: Communicator):
        self.seconds = 0.0
        for name in ("gather_all", "gather", "broadcast"):
            setattr(communicator, name, self._timed(getattr(communicator, name)))

    def _timed(self, exchange: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            start = time.perf_counter()
            try:
                return exchange(*arguments)
            finally:
                self.seconds += time.perf_counter() - start

        return timed

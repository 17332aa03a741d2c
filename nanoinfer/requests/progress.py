"""Progress: the bar that `generate` shows for a list of prompts."""

import time
from collections.abc import Callable, Sequence
from types import TracebackType

from nanoinfer.requests.outputs import RequestOutput


class Progress:
    """Shows how many of `total` requests have ended, and their output tokens per second so far: `with Progress(...)`.

    Unless it is `shown`, nothing is drawn and nothing is imported. `clock` returns seconds.
    """

    def __init__(self, total: int, shown: bool, clock: Callable[[], float] = time.perf_counter):
        self._total, self._shown, self._clock = total, shown, clock
        self._tokens, self._began = 0, clock()

    def __enter__(self) -> "Progress":
        if self._shown:
            from tqdm.auto import tqdm

            self._bar = tqdm(total=self._total, desc="generate", unit="req")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._shown:
            self._bar.close()

    def ended(self, outputs: Sequence[RequestOutput]) -> None:
        """Count requests that have ended; `outputs` are their last outputs."""
        if not self._shown or not outputs:
            return
        self._tokens += sum(len(completion.token_ids) for output in outputs for completion in output.outputs)
        seconds = max(self._clock() - self._began, 1e-9)
        self._bar.set_postfix_str(f"{self._tokens / seconds:,.0f} tok/s", refresh=False)
        self._bar.update(len(outputs))

"""StepNotes: what the engine's thread notes after every pass, for the frame that follows."""

from collections import Counter
from collections.abc import Sequence

from nanoinfer.engine.engine import Engine
from nanoinfer.requests.req import Req

STRENGTH = ("DECODE", "VERIFY", "EXTEND")  # of several passes in one frame, a request is shown in the last of these
MOST_REQUESTS = 1024  # that are noted between two frames; the frame's counts are of all of them


class StepNotes:
    """How many passes of which kind there were since the last `take`, and which requests were in them.

    A frame is made a few times per second, a pass takes milliseconds: without these notes, a frame would show only what its
    last pass did, and a short request would never be seen. Used in the engine's thread alone.
    """

    def __init__(self) -> None:
        self._passes: Counter[str] = Counter()
        self._kinds: dict[Req, str] = {}
        self._last: tuple[str, Sequence[Req]] = ("", [])  # the pass that was noted last: most passes are like it

    def after_pass(self, engine: Engine) -> None:
        """Note the pass that has just been made; the tape's recorder calls this."""
        batch = engine.last_batch
        if batch is None:
            return
        mode = batch.forward_mode.name
        self._passes[mode] += 1
        if (mode, batch.reqs) == self._last:
            return
        self._last = mode, batch.reqs
        for req in batch.reqs:
            before = self._kinds.get(req)
            if before is None:
                if len(self._kinds) < MOST_REQUESTS:
                    self._kinds[req] = mode
            elif STRENGTH.index(before) < STRENGTH.index(mode):
                self._kinds[req] = mode

    def take(self) -> tuple[dict[str, int], dict[Req, str]]:
        """Passes by kind, and each request's strongest kind; then forget both."""
        passes, kinds = dict(self._passes), self._kinds
        self._passes.clear()
        self._kinds, self._last = {}, ("", [])
        return passes, kinds

"""The processes of the other ranks, as rank 0 sees them: whether they live, how they ended, and their end."""

import os
import signal
import subprocess
import sys
import time
from typing import Protocol

from nanoinfer.parallel.meeting import Meeting

SECONDS_TO_END = 5.0  # after that, a process that has been asked to end is killed
SECONDS_TO_LOOK = 5.0  # how long a process may take from closing its connections until the system knows how it ended
SECONDS_BETWEEN_LOOKS = 0.02


class Members(Protocol):
    """All ranks but this one, which is rank 0."""

    def ended(self) -> list[str]:
        """A sentence about each rank that has ended: which it was, and how it ended. The likeliest cause comes first."""
        ...

    def end(self, patiently: bool) -> None:
        """See to it that none is left; `patiently`: they know already, so give them some time. May be called again."""
        ...


class StartedRanks:
    """Processes that rank 0 has started, each as `python -m nanoinfer.parallel.worker`: it imports nothing of the program
    that uses nanoinfer, so this may be a notebook, or a script without a main guard."""

    def __init__(self, meeting: Meeting, port: int):
        self._meeting, self._owner = meeting, os.getpid()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        size = meeting.shard.size
        command = [sys.executable, "-P", "-m", "nanoinfer.parallel.worker", "--size", str(size), "--port", str(port)]
        # What this process can import, the others can, too, wherever it has found it.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        try:
            for rank in range(1, size):
                self._processes[rank] = subprocess.Popen(
                    [*command, "--rank", str(rank), "--parent", str(os.getpid())],
                    stdin=subprocess.DEVNULL,
                    env=environment,
                    start_new_session=True,  # the terminal's Ctrl-C is for rank 0
                )
        except BaseException:
            self.end(patiently=False)
            raise

    @property
    def pids(self) -> list[int]:
        """The processes' ids, by rank from 1 on."""
        return [process.pid for process in self._processes.values()]

    def ended(self) -> list[str]:
        """As in Members. One that was killed, or said why it failed, comes before those that only lost it."""
        ended = []
        for rank, process in self._processes.items():
            if (code := process.poll()) is not None:
                said = self._meeting.failure_of(rank)
                sentence = f"rank {rank} of {self._meeting.shard.size} (process {process.pid}) {_how(code)}"
                ended.append((code >= 0 and said is None, sentence + (f": {said}" if said else "")))
        return [sentence for _, sentence in sorted(ended)]

    def end(self, patiently: bool) -> None:
        """As in Members. Does nothing in a forked process, whose ranks these are not."""
        if os.getpid() != self._owner:
            return
        deadline = time.monotonic() + (SECONDS_TO_END if patiently else 0)
        while time.monotonic() < deadline and any(process.poll() is None for process in self._processes.values()):
            time.sleep(SECONDS_BETWEEN_LOOKS)
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()


class RanksOfTorchrun:
    """Processes that torchrun has started. It ends all of them when one fails."""

    def ended(self) -> list[str]:
        """As in Members: torchrun knows, and says it."""
        return []

    def end(self, patiently: bool) -> None:
        """As in Members: a rank ends when its connection to rank 0 does."""


def first_ended(members: Members) -> str | None:
    """What is known about the rank because of which a connection was lost; None if nothing becomes known in time."""
    deadline = time.monotonic() + SECONDS_TO_LOOK
    while not (ended := members.ended()):
        if time.monotonic() > deadline:
            return None
        time.sleep(SECONDS_BETWEEN_LOOKS)
    return ended[0]


def _how(code: int) -> str:
    if code >= 0:
        return f"has ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"

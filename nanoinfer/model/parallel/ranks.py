"""Ranks: rank 0's way to all the others. It tells them what to do, does its part of it, and notices when one ends; and the
processes of the others, as rank 0 sees them."""

import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from nanoinfer.errors import RankError
from nanoinfer.model.parallel.communicator import Communicator, GroupCommunicator
from nanoinfer.model.parallel.messages import Message
from nanoinfer.model.parallel.rendezvous import SECONDS_BETWEEN_LOOKS, Rendezvous
from nanoinfer.model.parallel.shard import torchrun_rank

LOST = 3  # the exit code of a rank that has lost its connection, because another one has ended
SECONDS_TO_END = 5.0  # after that, a process that has been asked to end is killed
SECONDS_TO_LOOK = 5.0  # how long a process may take from closing its connections until the system knows how it ended


class Workers:
    """All ranks but this one, which is rank 0; here, those that torchrun has started. It ends all of them when one fails,
    and says so."""

    def ended(self) -> list[str]:
        """A sentence about each rank that has ended: which it was, and how it ended. The likeliest cause comes first."""
        return []

    def end(self, patiently: bool) -> None:
        """See to it that none is left; `patiently`: they know already, so give them some time. May be called again."""


class StartedRanks(Workers):
    """Processes that rank 0 has started, each as `python -m nanoinfer.model.parallel.worker`: it imports nothing of the
    program that uses nanoinfer, so this may be a notebook, or a script without a main guard."""

    def __init__(self, size: int, port: int):
        self._size, self._owner = size, os.getpid()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        command = [sys.executable, "-P", "-m", "nanoinfer.model.parallel.worker"]
        # What this process can import, the others can, too, wherever it has found it.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        try:
            for rank in range(1, size):
                self._processes[rank] = subprocess.Popen(
                    [*command, *map(str, (rank, size, port, os.getpid()))],
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
        """As in Workers: those that only lost their connection come last. Why one failed, it has said on standard error."""
        codes = {rank: code for rank, process in self._processes.items() if (code := process.poll()) is not None}
        return [
            f"rank {rank} of {self._size} (process {self._processes[rank].pid}) {_how(codes[rank])}"
            for rank in sorted(codes, key=lambda rank: codes[rank] == LOST)
        ]

    def end(self, patiently: bool) -> None:
        """As in Workers. Does nothing in a forked process, whose ranks these are not."""
        if os.getpid() != self._owner:
            return
        deadline = time.monotonic() + (SECONDS_TO_END if patiently else 0)
        while time.monotonic() < deadline and any(process.poll() is None for process in self._processes.values()):
            time.sleep(SECONDS_BETWEEN_LOOKS)
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()


def _how(code: int) -> str:
    if code >= 0:
        return f"has ended with exit code {code}"
    return f"was killed by {signal.Signals(-code).name}"


class Ranks:
    """`size` ranks, this process included, which is rank 0. `communicator`: what the layers use.

    `broken`: why they can do nothing any more; None while they can. `threads`: on how many processors each rank computes
    (None: as it was started).

    When the last reference is gone, or Python exits, the other ranks end. If this process is killed, they notice, and end.
    """

    def __init__(self, communicator: Communicator, workers: Workers, threads: int | None = None):
        self.communicator, self.workers, self.threads = communicator, workers, threads
        self.size = communicator.shard.size
        self.broken: BaseException | None = None
        self._owner, self._is_closed = os.getpid(), False
        # At exit, the engine's loop closes it, after the last pass.
        weakref.finalize(self, workers.end, False).atexit = False

    @classmethod
    def start(cls, size: int) -> "Ranks":
        """Start the other ranks, or take those that torchrun has started. RankError if one ends before all are connected;
        ValueError if torchrun has started another number, or if this is not its rank 0. No process is left behind then.
        """
        given = torchrun_rank()
        if given is not None:
            if given.size != size:
                raise ValueError(f"tensor_parallel_size={size}: must be torchrun's WORLD_SIZE={given.size}")
            if given.rank != 0:
                raise ValueError(
                    f"RANK={given.rank}: only rank 0 of torchrun has the engine; the other ranks call "
                    "nanoinfer.model.parallel.worker.serve_rank(Rendezvous.under_torchrun())"
                )
            return cls(GroupCommunicator(Rendezvous.under_torchrun()), Workers())
        rendezvous, port = Rendezvous.hosted(size)
        workers = StartedRanks(size, port)

        try:
            rendezvous.wait_for_others(lambda: workers.ended() == [])
            communicator = GroupCommunicator(rendezvous)
        except BaseException as error:
            ended = workers.ended()
            workers.end(patiently=False)
            if ended:
                raise RankError(f"a process of the model has ended while it started: {ended[0]}") from error
            raise
        return cls(communicator, workers, max(1, torch.get_num_threads() // size))

    @contextmanager
    def doing(self, message: Message) -> Iterator[None]:
        """Tell all others `message`, and do rank 0's part of it in this block.

        If a rank ends, or this block raises, nothing can be done together any more: the others are ended, and what is
        raised is kept as `broken`. RankError if that had happened before.
        """
        self._check()
        encoded = message.encode()
        try:
            self.communicator.send(encoded)
            with self.communicator.together():
                yield
        except BaseException as error:
            raise self._fail(error) from error.__cause__

    def close(self) -> None:
        """End the other ranks, between two things that are done together. May be called again."""
        if self._is_closed or self._owner != os.getpid():
            return
        self._is_closed = True
        is_well = self.broken is None
        if is_well:
            self.broken = RankError("the processes of the model have been shut down")
            try:
                self.communicator.send(Message("end").encode())
            except RankError:  # one has ended already
                self.workers.end(patiently=False)
        self.workers.end(patiently=True)
        if is_well:
            self.communicator.close()

    def why_broken(self) -> BaseException | None:
        """`broken`, or what it will be because a rank has ended since the last pass. May be called from any thread."""
        if self.broken is None and (ended := self.workers.ended()):
            return _ended(ended[0])
        return self.broken

    def _check(self) -> None:
        if self.broken is not None:
            raise RankError(str(self.broken)) from self.broken
        if ended := self.workers.ended():
            raise self._fail(RankError(ended[0]))

    def _first_ended(self) -> str | None:
        """What is known about the rank because of which a connection was lost; None if nothing becomes known in time."""
        deadline = time.monotonic() + SECONDS_TO_LOOK
        while not (ended := self.workers.ended()) and time.monotonic() < deadline:
            time.sleep(SECONDS_BETWEEN_LOOKS)
        return ended[0] if ended else None

    def _fail(self, error: BaseException) -> BaseException:
        """Note what has happened, end the other ranks, and return what to raise."""
        if isinstance(error, RankError):
            error = _ended(self._first_ended() or str(error))
        self.broken = error
        self.workers.end(patiently=False)
        return error


def _ended(cause: str) -> RankError:
    return RankError(f"a process of the model has ended, and the engine with it: {cause}")

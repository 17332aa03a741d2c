"""Ranks: rank 0's way to all the others. It tells them what to do, does its part of it, and notices when one ends."""

import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from nanoinfer.errors import RankError
from nanoinfer.parallel.communicator import Communicator, join
from nanoinfer.parallel.meeting import Meeting
from nanoinfer.parallel.members import (
    Members,
    RanksOfTorchrun,
    StartedRanks,
    first_ended,
)
from nanoinfer.parallel.messages import Message
from nanoinfer.parallel.shard import torchrun_rank


class Ranks:
    """`size` ranks, this process included, which is rank 0. `communicator`: what the layers use.

    `broken`: why they can do nothing any more; None while they can. `threads`: on how many processors each rank computes
    (None: as it was started).

    When the last reference is gone, or Python exits, the other ranks end. If this process is killed, they notice, and end.
    """

    def __init__(self, communicator: Communicator, members: Members, threads: int | None = None):
        self.communicator, self.members, self.threads = communicator, members, threads
        self.size = communicator.shard.size
        self.broken: BaseException | None = None
        self._owner, self._is_closed = os.getpid(), False
        self._finalizer = weakref.finalize(self, members.end, False)

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
                    "nanoinfer.parallel.worker.serve_rank(Meeting.under_torchrun())"
                )
            return cls(join(Meeting.under_torchrun()), RanksOfTorchrun())
        meeting, port = Meeting.hosted(size)
        members = StartedRanks(meeting, port)

        def check() -> None:
            if ended := members.ended():
                raise RankError(f"a process of the model has ended while it started: {ended[0]}")

        try:
            communicator = join(meeting, check)
        except BaseException:
            members.end(patiently=False)
            raise
        return cls(communicator, members, max(1, torch.get_num_threads() // size))

    @contextmanager
    def doing(self, message: Message) -> Iterator[None]:
        """Tell all others `message`, and do rank 0's part of it in this block.

        If a rank ends, or this block raises, nothing can be done together any more: the others are ended, and what is
        raised is kept as `broken`. RankError if that had happened before.
        """
        self._check()
        encoded = message.encode()
        try:
            self.communicator.tell(encoded)
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
                self.communicator.tell(Message("end").encode())
            except RankError:  # one has ended already
                self.members.end(patiently=False)
        self.members.end(patiently=True)
        if is_well:
            self.communicator.close()

    def why_broken(self) -> BaseException | None:
        """`broken`, or what it will be because a rank has ended since the last pass. May be called from any thread."""
        ended = self.members.ended() if self.broken is None and self._owner == os.getpid() else []
        return _ended(ended[0]) if self.broken is None and ended else self.broken

    def _check(self) -> None:
        if self._owner != os.getpid():
            raise RankError("this process was forked from the one that has the other ranks of the model: load it again")
        if self.broken is not None:
            raise RankError(str(self.broken)) from self.broken
        if ended := self.members.ended():
            raise self._fail(RankError(ended[0]))

    def _fail(self, error: BaseException) -> BaseException:
        """Note what has happened, end the other ranks, and return what to raise."""
        if isinstance(error, RankError):
            error = _ended(first_ended(self.members) or str(error))
        self.broken = error
        self.members.end(patiently=False)
        return error


def _ended(cause: str) -> RankError:
    return RankError(f"a process of the model has ended, and the engine with it: {cause}")

"""Models that are split over ranks which are threads of this process: all of nanoinfer/parallel/ but the processes.

Starting a process takes seconds, and most tests are about numbers. The threads run the Worker that processes run, and
rank 0 sends them the same messages.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from nanoinfer import LLM
from nanoinfer.errors import RankError
from nanoinfer.parallel.communicator import Communicator
from nanoinfer.parallel.ranks import Members, Ranks
from nanoinfer.parallel.shard import Shard
from nanoinfer.parallel.worker import Worker
from tests.helpers.waiting import HANG_S


class Room:
    """Where the threads of `size` ranks exchange tensors."""

    def __init__(self, size: int):
        self.size = size
        self.tensors: list[torch.Tensor | None] = [None] * size
        self._changed = threading.Condition()
        self._arrived = self._meetings = 0
        self._is_left = False

    def wait(self) -> None:
        """Until all ranks are here. RankError when one never will be. (A threading.Barrier that is broken behind a meeting
        raises also in threads that were at it and have not gone on yet.)"""
        with self._changed:
            meeting = self._meetings
            self._arrived += 1
            if self._arrived == self.size:
                self._arrived, self._meetings = 0, meeting + 1
                self._changed.notify_all()
            self._changed.wait_for(lambda: self._meetings > meeting or self._is_left, HANG_S)
            if self._meetings == meeting:
                raise RankError("a thread has left the room")

    def leave(self) -> None:
        """No thread comes any more: those that wait, and whoever comes, get a RankError."""
        with self._changed:
            self._is_left = True
            self._changed.notify_all()


class ThreadCommunicator(Communicator):
    """The rank `rank` of `room`."""

    def __init__(self, room: Room, rank: int):
        super().__init__(Shard(rank, room.size))
        self._room = room

    def gather_all(self, x: torch.Tensor) -> list[torch.Tensor]:
        self._room.tensors[self.shard.rank] = x.clone()
        self._room.wait()
        found = [each.clone() for each in self._room.tensors if each is not None]
        self._room.wait()
        assert len({(each.shape, each.dtype) for each in found}) == 1, "ranks do different things"
        return found

    def gather(self, x: torch.Tensor) -> list[torch.Tensor] | None:
        found = self.gather_all(x)
        return found if self.shard.rank == 0 else None

    def broadcast(self, x: torch.Tensor) -> None:
        if self.shard.rank == 0:
            self._room.tensors[0] = x.clone()
        self._room.wait()
        source = self._room.tensors[0]
        assert source is not None
        x.copy_(source)
        self._room.wait()

    def close(self) -> None:
        pass  # there is no library


class ThreadMembers(Members):
    """The other ranks. One that fails leaves the room in which the others wait."""

    def __init__(self, room: Room):
        self.room = room
        self.errors: dict[int, BaseException] = {}
        self._threads = [threading.Thread(target=self._run, args=(rank,)) for rank in range(1, room.size)]
        for thread in self._threads:
            thread.start()

    def _run(self, rank: int) -> None:
        try:
            Worker(ThreadCommunicator(self.room, rank)).run()
        except RankError:
            pass  # another one has failed
        except BaseException as error:
            self.errors[rank] = error
            self.room.leave()

    def ended(self) -> list[str]:
        return [f"rank {rank}: {error!r}" for rank, error in self.errors.items()]

    def end(self, patiently: bool) -> None:
        if not patiently:
            self.room.leave()
        for thread in self._threads:
            thread.join(HANG_S)
            assert not thread.is_alive()


@contextmanager
def split_llm(path: Path | str, size: int, **options: Any) -> Iterator[LLM]:
    """`LLM(path, tensor_parallel_size=size, **options)`, whose ranks are threads. They have ended afterwards."""
    members: list[ThreadMembers] = []

    def start(cls: type[Ranks], wanted: int) -> Ranks:
        room = Room(wanted)
        members.append(ThreadMembers(room))
        return cls(ThreadCommunicator(room, 0), members[0])

    with patch.object(Ranks, "start", classmethod(start)):
        llm = LLM(path, tensor_parallel_size=size, **options)
    try:
        yield llm
    finally:
        llm.shutdown()

"""Communicator: what the ranks of a split model do together; and GroupCommunicator, which does it over process groups of
torch.distributed: gloo on the host, NCCL or HCCL on devices.

The groups are made directly, not by `init_process_group`, whose one group per process may belong to the user's program.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from nanoinfer.errors import RankError
from nanoinfer.model.parallel.rendezvous import FOR_EVER, LOOPBACK, Rendezvous
from nanoinfer.model.parallel.shard import Shard

FRAME = 8192  # bytes of a message that are sent at once; most messages are shorter
_LENGTH = 8  # bytes at the beginning that say how long the message is


class Communicator(ABC):
    """A rank's connection to all others. Every rank has to call the same methods in the same order, with tensors of the
    same shapes; each call waits for the others.

    That is why collectives are allowed only inside `together`, which all ranks enter for the same reason. Elsewhere they
    raise a RuntimeError: a single rank that called one would wait for ever.
    """

    def __init__(self, shard: Shard):
        self.shard = shard
        self._together = False

    @contextmanager
    def together(self) -> Iterator[None]:
        """All ranks do the same inside this block."""
        self._together = True
        try:
            yield
        finally:
            self._together = False

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' `x`, in every rank: the same bits in each. May change `x` in place.

        The parts are added in the order of the ranks. (An all-reduce of the library would add them in an order that
        depends on where in the tensor they are, so that a token's bits would depend on its place in the batch.)
        Floating-point parts are added in float32.
        """
        exact = not x.dtype.is_floating_point or x.dtype is torch.float32
        total, *others = self._gather_all(x if exact else x.float())
        for part in others:
            total += part
        return total if exact else total.to(x.dtype)

    def gather_columns(self, x: torch.Tensor, widths: Sequence[int]) -> torch.Tensor | None:
        """The columns of all ranks side by side, in rank 0; None in the others. `x` [T, widths[rank]]."""
        self.check()
        parts = self.gather(_padded_bytes(x, max(widths)))
        return None if parts is None else _side_by_side(parts, x.dtype, widths)

    def all_gather_columns(self, x: torch.Tensor, widths: Sequence[int]) -> torch.Tensor:
        """The same in every rank."""
        return _side_by_side(self._gather_all(_padded_bytes(x, max(widths))), x.dtype, widths)

    def barrier(self) -> None:
        """Return when all ranks are here."""
        self._gather_all(torch.zeros(1, dtype=torch.int32))

    def send(self, message: bytes) -> None:
        """Rank 0: send `message` to all others, which wait in `receive`."""
        frame = torch.zeros(FRAME, dtype=torch.uint8)
        head = len(message).to_bytes(_LENGTH, "little") + message[: FRAME - _LENGTH]
        frame[: len(head)] = torch.frombuffer(bytearray(head), dtype=torch.uint8)
        self.broadcast(frame)
        if rest := message[FRAME - _LENGTH :]:
            self.broadcast(torch.frombuffer(bytearray(rest), dtype=torch.uint8))

    def receive(self) -> bytes:
        """The other ranks: the next message of rank 0, however long it takes until it comes."""
        frame = torch.zeros(FRAME, dtype=torch.uint8)
        self.broadcast(frame)
        head = frame.numpy().tobytes()
        length = int.from_bytes(head[:_LENGTH], "little")
        if length <= FRAME - _LENGTH:
            return head[_LENGTH : _LENGTH + length]
        rest = torch.zeros(length - (FRAME - _LENGTH), dtype=torch.uint8)
        self.broadcast(rest)
        return head[_LENGTH:] + rest.numpy().tobytes()

    def check(self) -> None:
        """RuntimeError outside of `together`."""
        if not self._together:
            raise RuntimeError(
                f"this model is split over {self.shard.size} processes: only the engine of its LLM can run it, because all "
                "of them have to take part"
            )

    def _gather_all(self, x: torch.Tensor) -> list[torch.Tensor]:
        self.check()
        return self.gather_all(x.contiguous())

    # What a library has to provide. `x` is contiguous and has the same shape and dtype in all ranks.

    @abstractmethod
    def gather_all(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Every rank's `x`, in every rank, by rank. The first may be changed in place afterwards."""

    @abstractmethod
    def gather(self, x: torch.Tensor) -> list[torch.Tensor] | None:
        """Every rank's `x`, by rank, in rank 0; None in the others."""

    @abstractmethod
    def broadcast(self, x: torch.Tensor) -> None:
        """Overwrite `x`, on the host, with rank 0's."""

    @abstractmethod
    def close(self) -> None:
        """Return when no thread of the library is left. Between two things that are done together; nothing may be called
        after it."""


def _padded_bytes(x: torch.Tensor, width: int) -> torch.Tensor:
    """As bytes, because not all libraries know all types."""
    return torch.nn.functional.pad(x, (0, width - x.shape[1])).contiguous().view(torch.uint8)


def _side_by_side(parts: Sequence[torch.Tensor], dtype: torch.dtype, widths: Sequence[int]) -> torch.Tensor:
    return torch.cat([part.view(dtype)[:, :width] for part, width in zip(parts, widths, strict=True)], dim=1)


class GroupCommunicator(Communicator):
    """Connects to all ranks, which are at the rendezvous or come to it. RankError if the connection to one of them is lost,
    which happens at once when that process ends."""

    def __init__(self, rendezvous: Rendezvous):
        super().__init__(rendezvous.shard)
        self._store = rendezvous.store
        self._host = _gloo(dist.PrefixStore("gloo", rendezvous.store), self.shard.rank, self.shard.size)
        self._device_groups: dict[str, Any] = {}

    def gather_all(self, x: torch.Tensor) -> list[torch.Tensor]:
        """As in Communicator."""
        parts = [torch.empty_like(x) for _ in range(self.shard.size)]
        _wait(lambda: self._group_of(x).allgather([parts], [x]))
        return parts

    def gather(self, x: torch.Tensor) -> list[torch.Tensor] | None:
        """As in Communicator."""
        parts = [torch.empty_like(x) for _ in range(self.shard.size)] if self.shard.rank == 0 else None
        options = dist.GatherOptions()
        options.rootRank = 0
        _wait(lambda: self._group_of(x).gather([] if parts is None else [parts], [x], options))
        return parts

    def broadcast(self, x: torch.Tensor) -> None:
        """As in Communicator."""
        options = dist.BroadcastOptions()
        options.rootRank = 0
        _wait(lambda: self._host.broadcast([x], options))

    def close(self) -> None:
        """As in Communicator. A thread of gloo still has tensors for a moment after others have seen the result; to let go
        of them it needs Python, and if that is ending just then, the process is aborted."""
        self._device_groups.clear()
        self._host = None

    def _group_of(self, x: torch.Tensor) -> Any:
        """The group for the device that `x` is on. All ranks use it for the first time at the same moment."""
        kind = x.device.type
        if kind == "cpu":
            return self._host
        if kind not in self._device_groups:
            store = dist.PrefixStore(kind, self._store)
            self._device_groups[kind] = _OF_DEVICE[kind](store, self.shard.rank, self.shard.size)
        return self._device_groups[kind]


def _wait(start: Callable[[], Any]) -> None:
    try:
        start().wait()
    except RuntimeError as error:
        raise RankError("the connection to another rank is lost") from error


def _gloo(store: dist.Store, rank: int, size: int) -> Any:
    """On the loopback interface, unless the environment names another one."""
    interface = os.environ.get("GLOO_SOCKET_IFNAME")
    where = {"interface": interface} if interface else {"hostname": LOOPBACK}
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._devices, options._timeout = [gloo.create_device(**where)], FOR_EVER
    return gloo(store, rank, size, options)


def _nccl(store: dist.Store, rank: int, size: int) -> Any:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timedelta(hours=1)
    return dist.ProcessGroupNCCL(store, rank, size, options)


def _hccl(store: dist.Store, rank: int, size: int) -> Any:
    from nanoinfer.device import import_torch_npu

    return import_torch_npu()._C._distributed_c10d.ProcessGroupHCCL(store, rank, size, timedelta(hours=1))


_OF_DEVICE = {"cuda": _nccl, "npu": _hccl}  # written for them, not yet run on several devices

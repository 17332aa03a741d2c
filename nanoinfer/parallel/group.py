"""GroupCommunicator: a Communicator over a process group of torch.distributed: gloo on the host, NCCL or HCCL on devices.

The groups are made directly, not by `init_process_group`, whose one group per process may belong to the user's program.
"""

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from nanoinfer.errors import RankError
from nanoinfer.parallel.communicator import Communicator
from nanoinfer.parallel.meeting import FOR_EVER, LOOPBACK, Meeting, WatchedStore


def join(meeting: Meeting, check: Callable[[], None] | None = None) -> "GroupCommunicator":
    """Wait until all ranks are here, and connect to them. `check` is called meanwhile; what it raises ends the waiting."""
    if check is None:
        return GroupCommunicator(meeting, meeting.store)
    store = WatchedStore(meeting.store, check)
    try:
        return GroupCommunicator(meeting, store)
    except BaseException as error:
        if store.problem is not None and store.problem is not error:
            raise store.problem from None
        raise


class GroupCommunicator(Communicator):
    """RankError if the connection to another rank is lost, which happens at once when that process ends."""

    def __init__(self, meeting: Meeting, store: dist.Store):
        super().__init__(meeting.shard)
        self._store = store
        self._host = _gloo(dist.PrefixStore("gloo", store), self.shard.rank, self.shard.size)
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

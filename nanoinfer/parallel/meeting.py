"""Meeting: where the ranks of a model find each other, and say why they failed. It is a store of torch.distributed: a
dictionary of bytes in the process that hosts it."""

import socket
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from nanoinfer.parallel.shard import Shard

LOOPBACK = "127.0.0.1"
# Longer than any wait. A rank waits while its engine is idle. It learns from lost connections that another one has ended.
FOR_EVER = timedelta(days=3650)
SECONDS_BETWEEN_LOOKS = 0.02


class Meeting:
    """`shard` joins the others by `store`."""

    def __init__(self, shard: Shard, store: dist.Store):
        self.shard, self.store = shard, store

    @classmethod
    def hosted(cls, size: int) -> tuple["Meeting", int]:
        """Rank 0's, and the port at which the others come to it. The system chooses a free one, and only this machine can
        connect to it."""
        with socket.socket() as listener:
            listener.bind((LOOPBACK, 0))
            listener.listen()
            port = listener.getsockname()[1]
            store = dist.TCPStore(
                LOOPBACK,
                port,
                is_master=True,
                wait_for_workers=False,
                timeout=FOR_EVER,
                master_listen_fd=listener.detach(),
            )
        return cls(Shard(0, size), store), port

    @classmethod
    def at_port(cls, rank: int, size: int, port: int) -> "Meeting":
        """Another rank's, on the same machine."""
        return cls(Shard(rank, size), dist.TCPStore(LOOPBACK, port, is_master=False, timeout=FOR_EVER))

    @classmethod
    def under_torchrun(cls) -> "Meeting":
        """The one that torchrun has prepared for this process."""
        store, rank, size = next(dist.rendezvous("env://", timeout=FOR_EVER))
        return cls(Shard(rank, size), dist.PrefixStore("nanoinfer", store))

    def note_failure(self, error: BaseException) -> None:
        """Say why this rank ends. Does nothing if the store is gone."""
        try:
            self.store.set(f"failed/{self.shard.rank}", f"{type(error).__name__}: {error}")
        except RuntimeError:
            return

    def failure_of(self, rank: int) -> str | None:
        """What a rank has said before it ended; None if it could say nothing."""
        try:
            key = f"failed/{rank}"
            return self.store.get(key).decode() if self.store.check([key]) else None
        except RuntimeError:
            return None


class WatchedStore(dist.Store):
    """`store`, but each wait looks again and again whether what is waited for can still come: `check` raises if not."""

    def __init__(self, store: dist.Store, check: Callable[[], None]):
        super().__init__()
        self._store, self._check = store, check
        self.problem: BaseException | None = None  # what `check` raised; it may look different after a way through C++

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Until all `keys` are there, whatever `timeout` says."""
        try:
            while not self._store.check(list(keys)):  # a short wait of its own would write a warning each time
                self._check()
                time.sleep(SECONDS_BETWEEN_LOOKS)
        except BaseException as problem:
            self.problem = problem
            raise

    def get(self, key: str) -> bytes:
        """Wait for `key`; its value."""
        self.wait([key])
        return self._store.get(key)

    def set(self, key: str, value: Any) -> None:
        """As in torch."""
        self._store.set(key, value)

    def add(self, key: str, value: int) -> int:
        """As in torch."""
        return self._store.add(key, value)

    def check(self, keys: Sequence[str]) -> bool:
        """As in torch."""
        return self._store.check(list(keys))

    def delete_key(self, key: str) -> bool:
        """As in torch."""
        return self._store.delete_key(key)

    def num_keys(self) -> int:
        """As in torch."""
        return self._store.num_keys()

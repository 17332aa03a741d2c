"""Rendezvous: where the ranks of a model find each other. It is a store of torch.distributed: a dictionary of bytes in the
process that hosts it."""

import socket
import time
from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist

from nanoinfer.errors import RankError
from nanoinfer.model.parallel.shard import Shard

LOOPBACK = "127.0.0.1"
# Longer than any wait. A rank waits while its engine is idle. It learns from lost connections that another one has ended.
FOR_EVER = timedelta(days=3650)
CONNECTING = timedelta(seconds=20)  # once all ranks are there
SECONDS_BETWEEN_LOOKS = 0.02


class Rendezvous:
    """`shard` joins the others by `store`."""

    def __init__(self, shard: Shard, store: dist.Store):
        self.shard, self.store = shard, store

    @classmethod
    def hosted(cls, size: int) -> tuple["Rendezvous", int]:
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
    def at_port(cls, rank: int, size: int, port: int) -> "Rendezvous":
        """Another rank's, on the same machine. Rank 0 learns that it is there."""
        rendezvous = cls(Shard(rank, size), dist.TCPStore(LOOPBACK, port, is_master=False, timeout=FOR_EVER))
        rendezvous.store.set(f"here/{rank}", "")
        return rendezvous

    @classmethod
    def under_torchrun(cls) -> "Rendezvous":
        """The one that torchrun has prepared for this process."""
        store, rank, size = next(dist.rendezvous("env://", timeout=FOR_EVER))
        return cls(Shard(rank, size), dist.PrefixStore("nanoinfer", store))

    def wait_for_others(self, all_live: Callable[[], bool]) -> None:
        """Rank 0 of a hosted one: return when the others are there, RankError once not `all_live`. From then on, connecting
        to them takes hardly any time."""
        keys = [f"here/{rank}" for rank in range(1, self.shard.size)]
        while not self.store.check(keys):  # a wait of the store's own could not look who lives
            if not all_live():
                raise RankError("a rank has ended before it was there")
            time.sleep(SECONDS_BETWEEN_LOOKS)
        self.store.set_timeout(CONNECTING)

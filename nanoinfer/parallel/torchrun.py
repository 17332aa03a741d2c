"""Processes that torchrun has started: `torchrun --nproc-per-node 2 -m nanoinfer generate ...`."""

import os
from collections.abc import Mapping

from nanoinfer.parallel.shard import Shard

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def torchrun_rank(environment: Mapping[str, str] = os.environ) -> Shard | None:
    """Which rank of how many this process is; None if torchrun has not started it, or it is the only one."""
    if any(name not in environment for name in VARIABLES):
        return None
    shard = Shard(int(environment["RANK"]), int(environment["WORLD_SIZE"]))
    return shard if shard.size > 1 else None

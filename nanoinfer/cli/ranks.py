"""Commands that torchrun has started several times: rank 0 is the command, and the others are its model's other ranks."""

import argparse

SPLIT_COMMANDS = ("generate", "chat", "serve")


def world_size() -> int | None:
    """How many processes torchrun has started; None without torchrun."""
    from nanoinfer.parallel.shard import torchrun_rank

    shard = torchrun_rank()
    return None if shard is None else shard.size


def run_other_rank(args: argparse.Namespace) -> int | None:
    """In a process that is not rank 0: serve rank 0, and return the exit code when that has ended. None in rank 0, and
    without torchrun. ValueError if the command does not run so, or for another `--tensor-parallel-size`.
    """
    from nanoinfer.parallel.shard import torchrun_rank

    shard = torchrun_rank()
    if shard is None:
        return None
    command = f"{args.command} {args.what}" if args.command == "bench" else args.command
    if command not in SPLIT_COMMANDS:
        raise ValueError(f"{command}: must not be started by torchrun; {', '.join(SPLIT_COMMANDS)} can be")
    size = getattr(args, "tensor_parallel_size", None)
    if size not in (None, shard.size):
        raise ValueError(f"--tensor-parallel-size {size}: must be torchrun's WORLD_SIZE={shard.size}, or left out")
    if shard.rank == 0:
        return None
    from nanoinfer.parallel.meeting import Meeting
    from nanoinfer.parallel.worker import serve_rank

    return serve_rank(Meeting.under_torchrun())

"""The loop that trains the story model and its draft model: steps, checkpoints, exact resume.

Step `i` draws its batch from a generator seeded with `(seed, i)`, so that a resumed run sees the same batches as an
uninterrupted one. Most steps read short sequences; every `LONG_EVERY`-th reads long ones, so that every position up to the
limit is trained.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

SHORT, LONG, LONG_EVERY = 256, 1024, 5


def add_arguments(parser: argparse.ArgumentParser, lr: float, warmup: int) -> None:
    """The options that `train_steps` and `resume` read, but for `--checkpoint` and `--steps`."""
    parser.add_argument("--lr", type=float, default=lr, help="peak learning rate")
    parser.add_argument("--warmup", type=int, default=warmup, help="steps until the peak")
    parser.add_argument("--save-every", type=int, default=100, help="steps between checkpoints")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoint")


def draw_batch(ids: np.ndarray, starts: np.ndarray, rng: np.random.Generator, length: int, tokens: int) -> torch.Tensor:
    """`tokens` ids as [tokens // length, length], int64; every sequence starts at a document."""
    usable = starts[: np.searchsorted(starts, len(ids) - length, side="right")]
    picked = rng.choice(usable, size=tokens // length)
    return torch.from_numpy(np.stack([ids[start : start + length] for start in picked]).astype(np.int64))


def batch_of_step(step: int, ids: np.ndarray, starts: np.ndarray, seed: int, tokens: int) -> torch.Tensor:
    """What a step reads of the documents `ids`, which begin at `starts`: int64 [tokens // length, length]."""
    length = LONG if step % LONG_EVERY == LONG_EVERY - 1 else SHORT
    return draw_batch(ids, starts, np.random.default_rng((seed, step)), length, tokens)


def learning_rate(step: int, steps: int, peak: float, warmup: int) -> float:
    """Linear warm-up, then a cosine down to a hundredth of the peak."""
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    return peak * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress)))


def resume(args: argparse.Namespace, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[int, float]:
    """With `--resume`, bring both back from the checkpoint. Returns the next step, and the seconds that all before took."""
    if not args.resume:
        return 0, 0.0
    state = torch.load(args.checkpoint)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"], state["seconds"]


def train_steps(
    args: argparse.Namespace,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    done_before: tuple[int, float],
    loss_of: Callable[[int], torch.Tensor],
    report: Callable[[], str],
    saved: Callable[[], object] = lambda: None,
) -> float:
    """Make the steps that are missing; `done_before`: what `resume` returned. Returns the seconds that all steps took.

    `loss_of(step)`: the loss whose gradient the step follows. At every checkpoint, `report()` is printed, and `saved()` is
    called when the checkpoint is written.
    """
    first, seconds = done_before
    clock = time.perf_counter() - seconds
    bar = tqdm(range(first, args.steps), initial=first, total=args.steps, desc="training", unit="step", mininterval=5)
    for step in bar:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args.steps, args.lr, args.warmup)
        loss = loss_of(step)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
        done = step + 1
        if done % args.save_every == 0 or done == args.steps:
            bar.write(f"step {done}: {report()}")
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": done}
            state["seconds"] = time.perf_counter() - clock
            partial = args.checkpoint.with_suffix(".part")
            torch.save(state, partial)
            os.replace(partial, args.checkpoint)
            saved()
    return time.perf_counter() - clock

"""The loop that trains the bundled models: a run that was interrupted ends as one that was not."""

import argparse
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import nn

DATA = Path(__file__).parents[2] / "data"


@pytest.fixture(scope="module")
def loop() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DATA))  # `data` has scripts, and is no package
        yield import_module("training_loop")


def train(loop: ModuleType, checkpoint: Path, *options: str, until: int = 10) -> tuple[nn.Module, list[str]]:
    """Ten steps of a small network, of which a run may make only those before `until`."""
    parser = argparse.ArgumentParser()
    loop.add_arguments(parser, lr=0.1, warmup=2)
    args = parser.parse_args(["--save-every", "3", *options], argparse.Namespace(checkpoint=checkpoint, steps=10))
    torch.manual_seed(0)
    network, events = nn.Linear(4, 1), []
    optimizer = torch.optim.AdamW(network.parameters(), lr=args.lr)

    def loss_of(step: int) -> torch.Tensor:
        if step == until:
            raise KeyboardInterrupt
        events.append(f"step {step}")
        numbers = torch.from_numpy(np.random.default_rng((args.seed, step)).random((8, 4))).float()
        return (network(numbers)[:, 0] - numbers.sum(1)).square().mean()

    def report() -> str:
        events.append("report")
        return "fine"

    def saved() -> None:
        events.append(f"saved {torch.load(checkpoint)['step']}")

    done_before = loop.resume(args, network, optimizer)
    try:
        seconds = loop.train_steps(args, network, optimizer, done_before, loss_of, report, saved)
        assert seconds >= done_before[1]
    except KeyboardInterrupt:
        pass
    return network, events


def test_a_run_that_is_resumed_ends_as_one_that_was_not_interrupted(loop: ModuleType, tmp_path: Path) -> None:
    whole, events = train(loop, tmp_path / "whole.pt")
    assert [event for event in events if "step" not in event] == ["report", "saved 3", "report", "saved 6", "report",
                                                                  "saved 9", "report", "saved 10"]  # fmt: skip
    _, before = train(loop, tmp_path / "parts.pt", until=8)
    parts, after = train(loop, tmp_path / "parts.pt", "--resume")
    assert before[-1] == "step 7"
    assert after[0] == "step 6", "it goes on from the last checkpoint"
    for found, wanted in zip(parts.parameters(), whole.parameters(), strict=True):
        assert torch.equal(found, wanted)
    assert not list(tmp_path.glob("*.part"))


def test_the_learning_rate_rises_then_falls_to_a_hundredth(loop: ModuleType) -> None:
    rates = [loop.learning_rate(step, 100, 1.0, 10) for step in range(101)]
    assert rates[:10] == pytest.approx([step / 10 for step in range(1, 11)])
    assert rates[10] == max(rates) == 1.0
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[100] == pytest.approx(0.01)


def test_every_fifth_step_reads_long_sequences_that_begin_with_documents(loop: ModuleType) -> None:
    ids, starts = np.arange(5000, dtype=np.uint16), np.arange(0, 5000, 50)
    for step in range(10):
        batch = loop.batch_of_step(step, ids, starts, 0, 2048)
        assert batch.shape == ((2, 1024) if step % 5 == 4 else (8, 256))
        assert (batch[:, 0] % 50 == 0).all()
        assert torch.equal(batch, loop.batch_of_step(step, ids, starts, 0, 2048))

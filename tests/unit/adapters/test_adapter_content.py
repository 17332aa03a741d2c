"""An adapter's digest: its content, and nothing else."""

from dataclasses import replace
from pathlib import Path

import torch

from nanoinfer.adapters.adapter import Adapter
from nanoinfer.adapters.content import adapter_digest
from nanoinfer.adapters.projections import LowRank


def make(**changes: object) -> Adapter:
    one = LowRank(torch.arange(8.0).view(2, 4), torch.arange(6.0).view(3, 2), 0.5)
    two = LowRank(torch.ones(1, 4), torch.ones(5, 1), 2.0)
    return Adapter("a", Path("a"), {"q": replace(one, **changes), "v": two})


def test_name_place_and_order_do_not_count() -> None:
    adapter = make()
    other = Adapter("b", Path("elsewhere"), dict(reversed(adapter.parts.items())))
    assert other.id != adapter.id
    assert adapter_digest(other) == adapter_digest(adapter) == adapter_digest(make())
    assert adapter_digest(adapter.again()) == adapter_digest(adapter)


def test_everything_else_counts() -> None:
    a, b = make().parts["q"].a, make().parts["q"].b
    others = [make(a=a + torch.eye(2, 4) * 1e-6), make(b=b.flip(0)), make(scale=0.25), make(a=a.bfloat16())]
    others += [make(a=a.view(4, 2)), make(a=a.double())]
    parts = make().parts
    others += [Adapter("a", Path("a"), {"k": parts["q"], "v": parts["v"]}), Adapter("a", Path("a"), {"q": parts["q"]})]
    others += [Adapter("a", Path("a"), {"q": parts["v"], "v": parts["q"]}), Adapter("a", Path("a"), {})]
    digests = {adapter_digest(each) for each in (make(), *others)}
    assert len(digests) == len(others) + 1

"""Checks of notebook 13: the product by groups, and the key of the cache."""

from collections.abc import Hashable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import a_kind, expect
from notebooks.course.tables import Mistake, Wrong, compare


class _Looked(list[Tensor]):
    """A list that counts how often its entries are asked for by number."""

    times = 0

    def __getitem__(self, index: Any) -> Any:
        self.times += 1
        return super().__getitem__(index)


@exercise("13.1", "One product per adapter", points=2)
def _(given: Given) -> str:
    grouped, generator = given["grouped"], torch.Generator().manual_seed(13)
    ranks, scales, cases = [1, 4, 2], [2.0, 0.5, 1.5], []
    for of_rows in ([0], [1, 1], [0, 1, 2], [2, 0, 2, 1], [1, -1, 1, 0], [-1, -1], [0] * 30 + [2] * 30):
        a = [torch.randn(rank, 12, generator=generator) for rank in ranks]
        b = [torch.randn(10, rank, generator=generator) for rank in ranks]
        cases.append((torch.randn(len(of_rows), 12, generator=generator), torch.tensor(of_rows), a, b, scales))
    mistakes: dict[str, Mistake] = {
        "`scales` is missing.": "unscaled",
        "A row with −1 has no adapter, so its result is 0. (a[-1] is the last of the list.)": "last",
    }
    hint = "a tensor [T, outputs]: a row gets scale × b @ (a @ x) of its own adapter, and 0 without one"
    compare(grouped, _grouped, cases, mistakes, hint=hint, atol=1e-4)
    x, rows, *lists, _ = cases[-1]
    a, b = (_Looked(each) for each in lists)
    grouped(x, rows, a, b, scales)
    times = max(a.times, b.times)
    together = "Take all rows of an adapter together, so that its A and B are read once."
    expect(times < 20, f"30 rows of adapter 0 and 30 of adapter 2: you look up a matrix {times} times. {together}")
    return "ranks 1, 4 and 2, rows in any order, and rows without an adapter"


def _grouped(
    x: Tensor, of_rows: Tensor, a: list[Tensor], b: list[Tensor], scales: list[float], wrong: Wrong = ()
) -> Tensor:
    y = torch.zeros(len(x), 10)
    for row, i in enumerate(of_rows.tolist()):
        if i >= 0 or "last" in wrong:
            y[row] = (1.0 if "unscaled" in wrong else scales[i]) * (b[i] @ (a[i] @ x[row]))
    return y


@exercise("13.2", "The key of the cache")
def _(given: Given) -> str:
    cache_key, loaded = given["cache_key"], []

    def key(name: str | None, number: int = 0, extra: Hashable = None) -> Any:
        adapter = None if name is None else SimpleNamespace(name=name, id=number)
        loaded.append(adapter)  # so that no two are at the same address
        found = cache_key(adapter, extra)
        try:
            hash(found)
        except TypeError:
            expect(False, f"A key must be hashable, because it is a dictionary's. {a_kind(found)} isn't.")
        return found

    old = "'rhymes' is unloaded, and another adapter is loaded under that name. It finds the K/V of the old one."
    expect(key("rhymes", 1) != key("rhymes", 2), old)
    address = "Two requests with the same adapter get different keys. Use the adapter's `id` attribute."
    expect(key("rhymes", 1) == key("rhymes", 1), f"{address} (Python's id() is an address: each object has its own.)")
    expect(key(None) == key(None), "Two requests with the base model get different keys, so they share nothing.")
    expect(key(None) != key("rhymes", 1), "The base model's key is an adapter's, too.")
    customers = "Two customers have different `extra_key`s. They must not share K/V, but their keys are equal."
    for name, number in (("rhymes", 1), (None, 0)):
        expect(key(name, number, "customer 1") != key(name, number, "customer 2"), customers)
    for one, other in ((None, "None"), (1, "1"), ((1, 2), "(1, 2)")):
        same = f"extra_key={one!r} and extra_key={other!r} are different, but give the same key. Leave it as it is."
        expect(key(None, extra=one) != key(None, extra=other), same)
    two = "One customer uses two adapters. Their K/V differs, but their keys are equal."
    expect(key("rhymes", 1, "customer 1") != key("sea", 2, "customer 1"), two)
    taken = {key("rhymes", 1): "no extra_key", key("rhymes", 1, "c"): "extra_key='c'"}
    for extra in (1, "1", "rhymes", (1, None), (1, "c"), ("rhymes", None), *taken):
        chosen = f"A caller who uses the base model says extra_key={extra!r}, and gets the key of adapter 1."
        expect(key(None, extra=extra) not in taken, f"{chosen} Say in every key whether there is an adapter.")
    return "old names, two customers, and callers whose extra_key looks like a key"

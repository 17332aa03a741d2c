"""Checks of notebook 13: bytes of adapters, the product by groups, rows in tiles, the cache key, and slots on the "
"device."""

from collections.abc import Hashable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import a_kind, expect, expect_equal
from notebooks.course.tables import Mistake, Wrong, compare

Shapes = list[tuple[int, int]]


@exercise("13.1", "What an adapter weighs")
def _(given: Given) -> str:
    layer = [(256, 256), (64, 256), (64, 256), (256, 256), (448, 256), (448, 256), (256, 448)]
    mistakes: dict[str, Mistake] = {
        "That is B alone. A, [rank, inputs], is read, too.": "no_a",
        "That is A alone. B, [outputs, rank], is read, too.": "no_b",
        "That is the whole of b @ a, as large as the weight. An adapter keeps only the two thin matrices.": (
            lambda shapes, rank, width: sum(out * size for out, size in shapes) * width
        ),
        "That is how many numbers it has. Each takes `width` bytes.": lambda shapes, rank, width: _bytes(
            shapes, rank, 1
        ),
        "That is the first projection. Add up all of them.": lambda shapes, rank, width: _bytes(
            shapes[:1], rank, width
        ),
    }
    cases = [([(30, 20)], 1, 1), ([(30, 20), (10, 20)], 2, 4), (6 * layer, 8, 2)]
    hint = "the bytes are wrong. A has rank × inputs numbers, B outputs × rank"
    compare(given["adapter_bytes"], _bytes, cases, mistakes, hint=hint)
    sizes = [
        ([(30, 20)], 10_000, 2, 10, 1),
        ([(30, 20)], 10_000, 1, 50, 4),
        (6 * layer, 12_000_000, 16, 10, 4),
        (32 * [(4096, 4096)], 16_000_000_000, 16, 10, 2),
        ([(1000, 1000)], 1000, 1, 10, 1),
    ]
    mistakes = {
        "With this rank, a *single* adapter takes as much. There are several.": "one",
        "That is 100 % of the weights, not `percent`.": "all",
        "Round down. (Where not even rank 1 fits, return 0.)": "up",
    }
    hint = (
        "the largest rank, a whole number, with which all adapters together take at most so many percent of the weights"
    )
    compare(given["largest_rank"], _rank, sizes, mistakes, hint=hint)
    return "one projection and all of a model's, and weights that are too small for any rank"


def _bytes(shapes: Shapes, rank: int, width: int, wrong: Wrong = ()) -> int:
    return rank * width * sum(out * ("no_b" not in wrong) + size * ("no_a" not in wrong) for out, size in shapes)


def _rank(shapes: Shapes, weight_bytes: int, adapters: int, percent: int, width: int, wrong: Wrong = ()) -> int:
    needed = _bytes(shapes, 1, width) * (1 if "one" in wrong else adapters)
    return (100 if "all" in wrong else percent) * weight_bytes // (100 * needed) + ("up" in wrong)


class _Looked(list[Tensor]):
    """A list that counts how often its entries are asked for by number."""

    times = 0

    def __getitem__(self, index: Any) -> Any:
        self.times += 1
        return super().__getitem__(index)


@exercise("13.2", "One product per adapter", points=2)
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


@exercise("13.3", "Rows in tiles", points=2)
def _(given: Given) -> str:
    tiles_of, rng = given["tiles_of"], np.random.default_rng(13)
    cases: list[tuple[list[int], int]] = [
        ([0, 0, 0], 6),
        ([0, 1, 0], 6),
        ([2, -1, 0, 2], 6),
        ([-1, -1], 6),
        ([5] * 13, 6),
        ([1, 0, 1, 0, 1, 0, 1], 2),
        *((rng.integers(-1, 4, rng.integers(0, 40)).tolist(), int(rng.integers(1, 7))) for _ in range(50)),
    ]
    mistakes: dict[str, Mistake] = {
        "A row without an adapter (−1) is in no tile.": "with_none",
        "Sort the rows by adapter. Rows with the same adapter stay in their order.": "falling",
        "A tile has at most `most` rows: divide what is more.": "undivided",
        "`first` is a slot in `rows`, not the number of a row.": "by_row",
    }

    def call(of_rows: list[int], most: int) -> Any:
        rows, tiles = tiles_of(of_rows, most)
        return [int(row) for row in rows], [tuple(map(int, tile)) for tile in tiles]

    hint = (
        "`rows, tiles`: the rows with an adapter, sorted by it, and (adapter, first, count) for each tile, as few as "
    )
    hint += "possible: for each adapter, in order, full ones and then the rest"
    compare(call, _tiled, cases, mistakes, hint=hint)
    return "56 passes, tiles of 1 to 6 rows"


def _tiled(of_rows: list[int], most: int, wrong: Wrong = ()) -> tuple[list[int], list[tuple[int, ...]]]:
    rows, tiles = list[int](), list[tuple[int, ...]]()
    for adapter in sorted(set(of_rows) - (set() if "with_none" in wrong else {-1})):
        own = [row for row, each in enumerate(of_rows) if each == adapter]
        size = len(own) if "undivided" in wrong else most
        for begin in range(0, len(own), size):
            first = own[begin] if "by_row" in wrong else len(rows) + begin
            tiles.append((adapter, first, min(size, len(own) - begin)))
        rows += own[::-1] if "falling" in wrong else own
    return rows, tiles


@exercise("13.4", "The key of the cache")
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


class _Reference:
    def __init__(self, size: int):
        self.adapters: list[str | None] = [None] * size
        self.order: list[str] = []  # least recently used first

    def obtain(self, adapter: str, in_use: set[str]) -> int | None:
        if adapter not in self.adapters:
            if None in self.adapters:
                slot = self.adapters.index(None)
            else:
                idle = [each for each in self.order if each not in in_use]
                if not idle:
                    return None
                slot = self.adapters.index(idle[0])
                self.order.remove(idle[0])
            self.adapters[slot] = adapter
        else:
            self.order.remove(adapter)
        self.order.append(adapter)
        return self.adapters.index(adapter)


# What is asked for, with the adapters in use, of two slots; and why the last answer is what it is.
NONE = set[str]()
AB = [("a", NONE), ("b", NONE)]
PLAYS = [
    ([("a", NONE)], "All slots are free. Note in `self.adapters` which adapter is in the slot"),
    (AB, "The second adapter gets a free slot: nothing has to leave yet"),
    ([*AB, ("b", NONE)], "'b' is on the device already. It keeps its slot"),
    ([*AB, ("a", NONE), ("c", NONE)], "'a' came first, but was used last: 'b' has to go"),
    ([*AB, ("c", {"a"})], "'a' was used longest ago, but a running request uses it: its rows would get 'c'"),
    ([*AB, ("c", {"a", "b"})], "Running requests use all adapters that are there. 'c' has to wait: return None"),
    ([*AB, ("a", {"a", "b"})], "An adapter that is in use and is asked for again keeps its slot"),
]


@exercise("13.5", "A slot on the device", points=2)
def _(given: Given) -> str:
    cls = given["Slots"]
    for play, why in PLAYS:
        _play(cls, 2, play, why)
    rng = np.random.default_rng(5)
    for size in (1, 2, 3, 5):
        names = ["abcdefgh"[i] for i in rng.integers(8, size=200)]
        _play(cls, size, [(name, {each for each in "abcdefgh" if rng.random() < 0.3}) for name in names], "")
    return "the least recently used goes, those in use stay, through 800 calls"


def _play(cls: Any, size: int, play: list[tuple[str, set[str]]], why: str) -> None:
    slots, reference = cls(size), _Reference(size)
    for number, (adapter, in_use) in enumerate(play):
        kept, want = set(in_use), reference.obtain(adapter, in_use)
        got = slots.obtain(adapter, kept)
        expect(kept == in_use, "You changed `in_use`, which belongs to the caller.")
        before = [name for name, _ in play[max(0, number - 4) : number]]
        said = f"{size} slots, after {before}: obtain({adapter!r}, {sorted(in_use)})."
        expect_equal(got, want, f"{said} {why}")
        expect_equal(list(slots.adapters), reference.adapters, f"{said} Then these adapters are there. {why}")

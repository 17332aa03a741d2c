"""Checks of notebook 13: bytes of adapters, the product by groups, and rows in tiles. nb13_names.py has the cache key and
the places."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import a_kind, expect, expect_equal
from notebooks.course.several import several

Shapes = Sequence[tuple[int, int]]


# --- 13.1 -------------------------------------------------------------------------------------------------------------


@exercise("13.1", "What an adapter weighs")
def _(given: Given) -> str:
    adapter_bytes, largest_rank = given["adapter_bytes"], given["largest_rank"]
    layer = [(256, 256), (64, 256), (64, 256), (256, 256), (448, 256), (448, 256), (256, 448)]
    with several() as part:
        with part("bytes"):
            sizes: list[tuple[Shapes, int, int]] = [
                ([(30, 20)], 1, 1),
                ([(30, 20), (10, 20)], 2, 4),
                (6 * layer, 8, 2),
            ]
            for shapes, rank, width in sizes:
                got, said = adapter_bytes(shapes, rank, width), f"shapes={_short(shapes)}, rank={rank}, width={width}"
                _about_bytes(got, shapes, rank, width, said)
        with part("rank", "bytes"):
            cases: list[tuple[Shapes, int, int, int, int]] = [
                ([(30, 20)], 10_000, 2, 10, 1),
                ([(30, 20)], 10_000, 1, 50, 4),
                (6 * layer, 12_000_000, 16, 10, 4),
                (32 * [(4096, 4096)], 16_000_000_000, 16, 10, 2),
                ([(1000, 1000)], 1000, 1, 10, 1),
            ]
            for case in cases:
                _about_rank(largest_rank(*case), *case)
    return "one projection and all of a model's, and weights that are too small for any rank"


def _short(shapes: Shapes) -> str:
    return str(list(shapes)) if len(shapes) < 3 else f"[{shapes[0]}, {shapes[1]}, ... {len(shapes)} in all]"


def _about_bytes(got: Any, shapes: Shapes, rank: int, width: int, said: str) -> None:
    outs, ins = sum(out for out, _ in shapes), sum(size for _, size in shapes)
    want = rank * (outs + ins) * width
    expect(isinstance(got, int | float | np.number), f"Return a number of bytes, not {a_kind(got)}.")
    known = {
        rank * outs * width: "that is B alone. A, [rank, inputs], is read, too.",
        rank * ins * width: "that is A alone. B, [outputs, rank], is read, too.",
        sum(out * size for out, size in shapes)
        * width: "that is the whole of b @ a, as large as the weight. An adapter keeps only the two thin matrices.",
        rank * (outs + ins): "that is how many numbers it has. Each takes `width` bytes.",
        rank * sum(shapes[0]) * width: "that is the first projection. Add up all of them.",
    }
    expect(got == want or got not in known, f"{said}: {known.get(got, '')}")
    expect_equal(int(got), want, f"{said}: A has rank × inputs numbers, B outputs × rank.")


def _about_rank(got: Any, shapes: Shapes, weight_bytes: int, adapters: int, percent: int, width: int) -> None:
    said = (
        f"shapes={_short(shapes)}, weight_bytes={weight_bytes}, adapters={adapters}, percent={percent}, width={width}"
    )
    expect(
        isinstance(got, int | np.integer) and not isinstance(got, bool),
        f"Return a whole number (an int), not {a_kind(got)}: there is no half rank.",
    )
    of_rank_1 = sum(map(sum, shapes)) * width
    want = percent * weight_bytes // (100 * adapters * of_rank_1)
    one = percent * weight_bytes // (100 * of_rank_1)
    if want != one:
        expect(got != one, f"{said}: with rank {got}, a *single* adapter takes as much. There are {adapters}.")
    if want:
        expect(got != weight_bytes // (adapters * of_rank_1), f"{said}: that is 100 % of the weights, not {percent} %.")
    expect(
        got <= want,
        f"{said}: {adapters} of rank {got} take {got * adapters * of_rank_1:,} bytes. {percent} % are "
        f"{percent * weight_bytes // 100:,}.{'' if want else ' Not even rank 1 fits: return 0.'}"
        f"{' Round down.' if got == want + 1 else ''}",
    )
    expect_equal(int(got), want, f"{said}: a larger rank fits as well.")


# --- 13.2 -------------------------------------------------------------------------------------------------------------


class _Looked(list[torch.Tensor]):
    """A list that counts how often its entries are asked for by number."""

    times = 0

    def __getitem__(self, index: Any) -> Any:
        self.times += 1
        return super().__getitem__(index)


@exercise("13.2", "One product per adapter", points=2)
def _(given: Given) -> str:
    grouped = given["grouped"]
    generator = torch.Generator().manual_seed(13)
    ranks, scales = [1, 4, 2], [2.0, 0.5, 1.5]
    for of_rows in ([0], [1, 1], [0, 1, 2], [2, 0, 2, 1], [1, -1, 1, 0], [-1, -1], [0] * 30 + [2] * 30):
        x = torch.randn(len(of_rows), 12, generator=generator)
        a = _Looked(torch.randn(rank, 12, generator=generator) for rank in ranks)
        b = _Looked(torch.randn(10, rank, generator=generator) for rank in ranks)
        kept, rows = x.clone(), torch.tensor(of_rows)
        got = grouped(x, rows, a, b, scales)
        want, unscaled, negative = torch.zeros(len(x), 10), torch.zeros(len(x), 10), torch.zeros(len(x), 10)
        for row, adapter in enumerate(of_rows):
            made = list(b)[adapter] @ (list(a)[adapter] @ kept[row])
            negative[row] = scales[adapter] * made
            if adapter >= 0:
                want[row], unscaled[row] = scales[adapter] * made, made
        said = f"of_rows={of_rows}" if len(of_rows) < 9 else "30 rows of adapter 0 and 30 of adapter 2"
        expect(isinstance(got, torch.Tensor), f"Return a tensor [T, outputs], not {a_kind(got)}.")
        expect(torch.equal(x, kept), f"{said}: you changed `x`, which the layer itself still needs.")
        expect(
            tuple(got.shape) == tuple(want.shape),
            f"{said}: the result must be [{len(of_rows)}, 10], one row per row of x, but is {list(got.shape)}.",
        )
        if not torch.allclose(got, want, atol=1e-4):
            expect(not torch.allclose(got, unscaled, atol=1e-4), f"{said}: `scales` is missing.")
            expect(
                not torch.allclose(got, negative, atol=1e-4),
                f"{said}: a row with −1 has no adapter, so its result is 0. (a[-1] is the last of the list.)",
            )
            expect(
                not torch.allclose(got[want.any(1)], want[want.any(1)], atol=1e-4),
                f"{said}: rows without an adapter get 0.",
            )
        expect_equal(got, want, f"{said}: a row gets scale × b @ (a @ x) of its own adapter.", atol=1e-4)
        expect(
            max(a.times, b.times) < 20,
            f"{said}: you look up a matrix {max(a.times, b.times)} times. Take all rows of an adapter together, so that "
            "its A and B are read once.",
        )
    return "ranks 1, 4 and 2, rows in any order, and rows without an adapter"


# --- 13.3 -------------------------------------------------------------------------------------------------------------


@exercise("13.3", "Rows in tiles", points=2)
def _(given: Given) -> str:
    tiles_of = given["tiles_of"]
    rng = np.random.default_rng(13)
    cases: list[tuple[list[int], int]] = [
        ([0, 0, 0], 6),
        ([0, 1, 0], 6),
        ([2, -1, 0, 2], 6),
        ([-1, -1], 6),
        ([5] * 13, 6),
        ([1, 0, 1, 0, 1, 0, 1], 2),
        *((rng.integers(-1, 4, rng.integers(0, 40)).tolist(), int(rng.integers(1, 7))) for _ in range(50)),
    ]
    for of_rows, most in cases:
        answer = tiles_of(list(of_rows), most)
        said = f"tiles_of({of_rows}, {most})"
        expect(isinstance(answer, tuple) and len(answer) == 2, f"{said}: return two lists, `rows, tiles`.")
        try:
            rows, tiles = [int(row) for row in answer[0]], [tuple(map(int, tile)) for tile in answer[1]]
        except (TypeError, ValueError):
            expect(False, f"{said}: `rows` is a list of numbers, and each tile is (adapter, first, count).")
        want_rows, want_tiles = _tiled(of_rows, most)
        without = [row for row in rows if 0 <= row < len(of_rows) and of_rows[row] < 0]
        expect(not without, f"{said}: row {(without or [0])[0]} has no adapter, so it is in no tile.")
        expect_equal(
            sorted(rows), sorted(want_rows), f"{said}: `rows` must have each row with an adapter exactly once."
        )
        expect_equal(
            rows, want_rows, f"{said}: sort the rows by adapter. Rows with the same adapter stay in their order."
        )
        expect(all(len(tile) == 3 for tile in tiles), f"{said}: each tile is (adapter, first, count).")
        for adapter, first, count in tiles:
            tile = f"{said}: the tile {(adapter, first, count)}"
            expect(count <= most, f"{tile} has {count} rows. At most {most} are computed side by side.")
            expect(count > 0, f"{tile} has no rows.")
            expect(
                first >= 0 and first + count <= len(rows),
                f"{tile} ends outside `rows`, which has {len(rows)} entries. `first` is a place in `rows`, not the number "
                "of a row.",
            )
            others = {of_rows[row] for row in rows[first : first + count]} - {adapter}
            expect(
                not others, f"{tile} has rows of adapter {min(others, default=0)}, too. `first` is a place in `rows`."
            )
        rule = "Make as few tiles as possible: for each adapter, in order, full ones and then the rest."
        expect(len(tiles) == len(want_tiles), f"{said}: {len(tiles)} tiles instead of {len(want_tiles)}. {rule}")
        for i, (tile_of, want_tile) in enumerate(zip(tiles, want_tiles, strict=True)):
            expect(tile_of == want_tile, f"{said}: tiles[{i}] is {tile_of} and must be {want_tile}. {rule}")
    return "56 passes, tiles of 1 to 6 rows"


def _tiled(of_rows: Sequence[int], most: int) -> tuple[list[int], list[tuple[int, ...]]]:
    rows, tiles = list[int](), list[tuple[int, ...]]()
    for adapter in sorted(set(of_rows) - {-1}):
        own = [row for row, each in enumerate(of_rows) if each == adapter]
        for begin in range(0, len(own), most):
            tiles.append((adapter, len(rows) + begin, min(most, len(own) - begin)))
        rows += own
    return rows, tiles

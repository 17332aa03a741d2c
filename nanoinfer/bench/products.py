"""How fast a model's linear layers multiply: every shape, several numbers of rows, all kernels and kinds of weights.

A way to multiply is a kind of kernels, or a kind of quantized weights with the fastest kernels. The ways take turns. Each
goes through many copies of the weights, as a pass goes through layers, so that they do not stay in a small cache.
"""

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

import torch
from tqdm.auto import tqdm

from nanoinfer.bench.machine import read_bandwidth
from nanoinfer.bench.markdown import table
from nanoinfer.bench.peak import multiply_peaks, peak_of
from nanoinfer.errors import KernelsUnavailableError
from nanoinfer.kernels import select_kernels
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.families import find_family
from nanoinfer.model.layers.linear import Linear
from nanoinfer.registry import QUANTIZATIONS

ROWS = (1, 4, 16, 64, 512, 2048)
KERNELS = ("cpp", "onednn")
COPIES_BYTES, MOST_COPIES = 2**28, 32  # of the checkpoint's weights, per shape and way
TURN_S = 0.02  # how long a way multiplies before it is the next one's turn; at least one product

Multiply = Iterator[Any]  # the copies, for ever


@dataclass(frozen=True)
class Shape:
    """A linear layer [out, in] that a model has `count` times; `name`: the path of the first one."""

    name: str
    out_features: int
    in_features: int
    count: int

    def __str__(self) -> str:
        return f"{self.name.rpartition('.')[2]} {self.out_features}x{self.in_features}"


@dataclass(frozen=True)
class Product:
    """Figures of one shape, number of rows and way. `seconds`: of one product, the median over rounds.

    `weight_bytes`: what the packed weights take; `ratio`: how many times as fast as the first way, median over rounds.
    """

    shape: str
    rows: int
    way: str
    seconds: float
    operations: int
    weight_bytes: int
    ratio: float


@dataclass(frozen=True)
class Results:
    """All products, and what they are compared with: GB/s (before and after) and GFLOP/s of the machine. `missing`: ways
    that cannot be used, and why."""

    model: str
    dtype: str
    threads: int
    bandwidth_gb_s: list[float]
    peaks_gflop_s: dict[str, float]
    products: list[Product]
    missing: dict[str, str]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def linear_shapes(path: Path) -> list[Shape]:
    """The shapes of a checkpoint's linear layers, in the order of the pass. Reads the config, not the weights."""
    config = ModelConfig.from_pretrained(path)
    network = find_family(config.architecture)(config, 1, torch.float32, torch.device("meta"))
    first: dict[tuple[str, int, int], str] = {}
    count: dict[tuple[str, int, int], int] = {}
    for name, module in network.named_modules():
        if isinstance(module, Linear):
            assert module.weight is not None
            key = (name.rpartition(".")[2], *module.weight.shape)
            first.setdefault(key, name)
            count[key] = count.get(key, 0) + 1
    return [Shape(name, key[1], key[2], count[key]) for key, name in first.items()]


def measure_products(
    path: Path,
    dtype: str,
    threads: int,
    rows: Sequence[int] = ROWS,
    rounds: int = 5,
    copies_bytes: int = COPIES_BYTES,
    bandwidth_bytes: int = 2**30,
    peak_s: float = 0.2,
) -> Results:
    """Measure all shapes of the checkpoint in `path`. ValueError naming an argument that is out of range."""
    for name, value in (("rows", min(rows, default=0)), ("rounds", rounds), ("threads", threads)):
        if value < 1:
            raise ValueError(f"{name}={value}: must be at least 1")
    before, shapes = torch.get_num_threads(), linear_shapes(path)
    torch.set_num_threads(threads)
    try:
        peaks, bandwidth = multiply_peaks(threads, peak_s), [read_bandwidth(threads, bandwidth_bytes)]
        products: list[Product] = []
        missing: dict[str, str] = {}
        with tqdm(total=len(shapes) * len(rows), desc="bench products", unit="product") as bar:
            for shape in shapes:
                ways = _ways(shape, getattr(torch, dtype), copies_bytes, missing)
                for number in rows:
                    bar.set_postfix_str(f"{shape}, {number} rows")
                    x = torch.randn(number, shape.in_features).to(getattr(torch, dtype))
                    products += _take_turns(shape, x, ways, rounds)
                    bar.update(1)
        bandwidth.append(read_bandwidth(threads, bandwidth_bytes))
    finally:
        torch.set_num_threads(before)
    return Results(path.name, dtype, threads, bandwidth, peaks, products, missing)


def _ways(
    shape: Shape, dtype: torch.dtype, copies_bytes: int, missing: dict[str, str]
) -> dict[str, tuple[Multiply, int]]:
    """Way → copies of the packed weights, and the bytes of one. Notes in `missing` why a way cannot be used."""
    size = shape.out_features * shape.in_features * dtype.itemsize
    copies = max(1, min(MOST_COPIES, copies_bytes // size))
    weight = (torch.randn(shape.out_features, shape.in_features) / shape.in_features**0.5).to(dtype)
    wanted = [(name, name, None) for name in KERNELS]
    wanted += [(str(kind), "auto", kind) for kind in QUANTIZATIONS if kind is not None]
    ways: dict[str, tuple[Multiply, int]] = {}
    for way, kernels_name, kind in wanted:
        try:
            kernels = select_kernels(kernels_name, dtype, torch.device("cpu"))
            packed = [QUANTIZATIONS[kind](weight, None, kernels, shape.name) for _ in range(copies)]
        except (KernelsUnavailableError, ValueError) as error:
            missing[way] = str(error)
            continue
        ways[way] = (cycle(packed), size if kind is None else _bytes_of(packed[0]) or size)
    return ways


def _bytes_of(weights: Any) -> int:
    """Bytes of the tensors that an object has as attributes, also inside tuples and lists."""
    total, values = 0, list(vars(weights).values())
    for value in values:  # the list grows during the loop
        if isinstance(value, torch.Tensor):
            total += value.nbytes
        elif isinstance(value, tuple | list):
            values += value
    return total


def _take_turns(shape: Shape, x: torch.Tensor, ways: Mapping[str, tuple[Multiply, int]], rounds: int) -> list[Product]:
    order, seconds = list(ways), {way: list[float]() for way in ways}
    for way in order:  # warm up
        _seconds(x, ways[way][0], 0.0)
    for number in range(rounds):
        random.Random(number).shuffle(order)
        for way in order:
            seconds[way].append(_seconds(x, ways[way][0], TURN_S))
    operations = 2 * len(x) * shape.out_features * shape.in_features
    first = next(iter(seconds.values()), [])
    return [
        Product(
            str(shape),
            len(x),
            way,
            median(each),
            operations,
            ways[way][1],
            median(a / b for a, b in zip(first, each, strict=True)),
        )
        for way, each in seconds.items()
    ]


def _seconds(x: torch.Tensor, copies: Multiply, at_least: float) -> float:
    """Seconds per product, over as many as take `at_least` seconds together."""
    calls, start = 0, time.perf_counter()
    while True:
        next(copies).multiply(x)
        calls += 1
        taken = time.perf_counter() - start
        if taken >= at_least:
            return taken / calls


def format_products(results: Results) -> str:
    """What the machine can do, and a table: one row per shape, number of rows and way."""
    bandwidth = sum(results.bandwidth_gb_s) / len(results.bandwidth_gb_s)
    lines = []
    for product in results.products:
        peak = peak_of(results.peaks_gflop_s, "int8" if product.way == "int8" else results.dtype)
        speed = product.operations / product.seconds / 1e9
        read = product.weight_bytes / product.seconds / 1e9
        share = f"{speed / peak:.0%}" if peak else ""
        cells = [f"{product.seconds * 1e6:.0f}", f"{speed:.0f}", share, f"{read:.1f}", f"{read / bandwidth:.0%}"]
        lines.append([product.shape, str(product.rows), product.way, *cells, f"{product.ratio:.2f}"])
    peaks = ", ".join(f"{name} {speed:.0f}" for name, speed in results.peaks_gflop_s.items()) or "unknown"
    first = results.products[0].way if results.products else ""
    head = [
        f"{results.model}, {results.dtype}, {results.threads} threads; read bandwidth before and after "
        f"{', '.join(f'{value:.1f}' for value in results.bandwidth_gb_s)} GB/s; multiply peak {peaks} GFLOP/s",
        *(f"not measured: {way}: {reason}" for way, reason in results.missing.items()),
        "",
        table(
            [
                "layer, out x in",
                "rows",
                "way",
                "us",
                "GFLOP/s",
                "of peak",
                "GB/s of weights",
                "of bandwidth",
                f"x {first}",
            ],
            lines,
        ),
    ]
    return "\n".join(head)

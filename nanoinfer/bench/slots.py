"""What it costs to allocate slots: SlotAllocator compared with a mask that is searched from the start.

    python -m nanoinfer.bench.slots [--json FILE]

A call is one `alloc` and the `free` of what it returned. The two allocators take turns, and a figure is the median of the
rounds. The mask makes the same checks, so only the search and the bookkeeping differ.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch

from nanoinfer.bench.markdown import table
from nanoinfer.cache.indices import Indices, checked_size
from nanoinfer.cache.slot_allocator import SlotAllocator

SIZES = (256, 1024, 4096, 16_384, 65_536, 2**20, 2**22)
PAGE_SIZES = (1, 16)
CALLS = {"decode 1": 1, "decode 8": 8, "decode 32": 32, "prefill 256": 256, "prefill 2048": 2048}  # slots, at least
ROUNDS = 11
ROUND_S = 2e-4  # how long the calls of a round take together; a round has at least one call

# Which pages of a pool are free.
STATES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "fresh": lambda pages: pages >= 0,
    "stretches": lambda pages: pages % 64 < 24,
    "every second": lambda pages: pages % 2 == 1,
    "one in 10": lambda pages: np.random.default_rng(0).permutation(pages) % 10 == 0,
    "one in 50": lambda pages: np.random.default_rng(0).permutation(pages) % 50 == 0,
    "one per block": lambda pages: pages % 4096 == 4095,
    "only the last": lambda pages: pages >= pages.size - 128,
}


class MaskAllocator(SlotAllocator):
    """The plain way: one bool per page, searched from the start in each call. It has the same checks and results."""

    def alloc(self, need_size: int) -> np.ndarray | None:
        """Like SlotAllocator's, but looks at the whole pool."""
        count = checked_size(need_size, self.page_size) // self.page_size
        pages = np.flatnonzero(self._is_free)[:count]
        if pages.size < count:
            return None
        self._is_free[pages] = False
        return self._slots(pages).astype(np.int32)

    def free(self, slots: Indices) -> None:
        """Like SlotAllocator's."""
        self._is_free[self._freeable_pages(slots)] = True


@dataclass(frozen=True)
class Result:
    """Median microseconds of one call (`alloc` and `free`), and how many times as fast as the mask SlotAllocator is."""

    page_size: int
    size: int
    state: str
    call: str
    slots_us: float
    mask_us: float
    ratio: float  # median of the rounds' ratios


def measure(sizes: Sequence[int] = SIZES, rounds: int = ROUNDS, round_s: float = ROUND_S) -> list[Result]:
    """Measure every combination of pool, state and call that has enough free slots. `sizes`: multiples of 16."""
    results = []
    for page_size in PAGE_SIZES:
        for size in sizes:
            for state, allocators in _pools(size, page_size):
                for call, tokens in CALLS.items():
                    need = max(tokens // page_size, 1 if "prefill" in call else tokens) * page_size
                    if need <= allocators[0].free_slots().size:
                        slots_us, mask_us, ratio = _compare(allocators, need, rounds, round_s)
                        results.append(Result(page_size, size, state, call, slots_us, mask_us, ratio))
    return results


def _pools(size: int, page_size: int) -> Iterator[tuple[str, tuple[SlotAllocator, SlotAllocator]]]:
    """For each state, a SlotAllocator and a MaskAllocator in that state."""
    for state, free_pages in STATES.items():
        free = np.repeat(free_pages(np.arange(size // page_size)), page_size)
        allocators = SlotAllocator(size, page_size), MaskAllocator(size, page_size)
        for allocator in allocators:
            allocator.alloc(size)
            allocator.free(np.flatnonzero(free))
        yield state, allocators


def _compare(
    allocators: tuple[SlotAllocator, SlotAllocator], need: int, rounds: int, round_s: float
) -> tuple[float, float, float]:
    first = [min(_seconds(allocator, need, 1) for _ in range(3)) for allocator in allocators]  # warms up, too
    calls = [max(int(round_s / max(seconds, 1e-9)), 1) for seconds in first]
    times = []
    for i in range(rounds):
        turn = (0, 1) if i % 2 else (1, 0)
        taken = {which: _seconds(allocators[which], need, calls[which]) for which in turn}
        times.append((taken[0], taken[1]))
    ours, masks = zip(*times, strict=True)
    return median(ours) * 1e6, median(masks) * 1e6, median(mask / our for our, mask in times)


def _seconds(allocator: SlotAllocator, need: int, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        slots = allocator.alloc(need)
        assert slots is not None
        allocator.free(torch.from_numpy(slots))
    return (time.perf_counter() - start) / calls


def format_results(results: Sequence[Result]) -> str:
    """One row per pool: SlotAllocator's microseconds, and for each state the ratio of the worst call."""
    rows = []
    for page_size, size in dict.fromkeys((result.page_size, result.size) for result in results):
        pool = [result for result in results if (result.page_size, result.size) == (page_size, size)]
        times = [result.slots_us for result in pool]
        ratios = [[result.ratio for result in pool if result.state == state] for state in STATES]
        rows.append(
            [f"{size:,}", str(page_size), f"{median(times):.1f}", f"{max(times):.1f}"]
            + [f"{min(of_state):.2f}" if of_state else "" for of_state in ratios]
        )
    worst = min(results, key=lambda result: result.ratio)
    return "\n".join(
        (
            "alloc(n) and free: SlotAllocator's time in microseconds, and how many times as long a mask takes",
            f"(the lowest ratio of these n: {', '.join(CALLS)})",
            "",
            table(["slots", "page", "median us", "most us", *STATES], rows),
            "",
            f"lowest ratio: {worst.ratio:.2f}, {worst.call} of {worst.size:,} slots in pages of {worst.page_size}, "
            f"{worst.state}",
            f"median ratio: {median(result.ratio for result in results):.2f} of {len(results)} cases",
        )
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print the table, write the numbers."""
    parser = argparse.ArgumentParser(prog="python -m nanoinfer.bench.slots", description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=list(SIZES), help="pool sizes in slots, multiples of 16"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to FILE")
    arguments = parser.parse_args(argv)
    results = measure(arguments.sizes, arguments.rounds)
    print(format_results(results))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

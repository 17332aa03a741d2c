"""Checks of notebook 12: predictions from bytes and operations, and the buffers of a captured pass. nb12_tile.py
has the product in C++, nb12_sums.py the sum that depends on the batch."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import a_kind, expect, expect_equal
from notebooks.course.limits import limited
from notebooks.course.several import find_mistakes, several

SIZE, WIDTH = 6, 100  # of the recorded pass; entries of a row
LINES = 1_000_000  # of Python that one call of `busy_from` may run


# --- 12.1 -------------------------------------------------------------------------------------------------------------


@exercise("12.1", "Tokens per second")
def _(given: Given) -> str:
    tokens_per_second = given["tokens_per_second"]
    cases = [
        ((1000, 10, 2, 50, 4000.0), 4.0),
        ((12_000_000, 2560, 1, 100, 6_128_000_000.0), 500.0),
        ((12_000_000, 2560, 16, 100, 8_048_000_000.0), 8000.0),
        ((1000, 10, 4, 0, 500.0), 2.0),
        ((16_000_000_000, 131_072, 8, 4096, 3.35e12), 8 * 3.35e12 / (16_000_000_000 + 8 * 4096 * 131_072)),
    ]
    answers = [(tokens_per_second(*sizes), want, sizes) for sizes, want in cases]
    mistakes: dict[str, dict[str, bool]] = {
        "That is how many passes are made per second. Each pass makes a token for every request.": {"of_one": True},
        "K/V is read, too: `context` tokens of every request.": {"without_kv": True},
        "You count the K/V of one request. A pass reads that of every request.": {"kv_of_one": True},
        "The weights are read once per pass, however many requests are in it.": {"weights_for_each": True},
    }

    def gives(made: Any) -> bool:
        options = {name: value for mistake in made for name, value in mistake.items()}
        return all(_close(got, _mistaken_speed(*sizes, **options)) for got, _, sizes in answers)

    for got, _, _ in answers:
        expect(isinstance(got, int | float), f"Return a number, not {a_kind(got)}.")
    if not all(_close(got, want) for got, want, _ in answers):
        hint = find_mistakes(mistakes, gives)
        expect(hint is None, hint or "")
    for got, want, (weights, kv, requests, context, bandwidth) in answers:
        case = f"weight_bytes={weights}, kv_bytes={kv}, requests={requests}, context={context}, bandwidth={bandwidth}"
        expect_equal(float(got), want, f"The speed is wrong for {case}.", rtol=1e-9)
    return "with and without K/V, for one request and for many"


def _mistaken_speed(
    weights: int,
    kv: int,
    requests: int,
    context: int,
    bandwidth: float,
    *,
    of_one: bool = False,
    kv_of_one: bool = False,
    weights_for_each: bool = False,
    without_kv: bool = False,
) -> float:
    read_kv = (1 if kv_of_one else requests) * context * kv if not without_kv else 0
    size = weights * (requests if weights_for_each else 1) + read_kv
    return (1 if of_one else requests) * bandwidth / size


def _close(got: float, want: float) -> bool:
    return abs(got - want) <= 1e-9 * abs(want)


# --- 12.2 -------------------------------------------------------------------------------------------------------------


@exercise("12.2", "Where the weights stop mattering")
def _(given: Given) -> str:
    busy_from = given["busy_from"]
    cases = [  # where reading and computing take equally long, all times are exact in floats, however they are computed
        (100, 4, 0, 0, 1000, 10_000),
        (1024, 2, 0, 0, 1024, 8192),
        (100, 4, 0, 10, 1000, 10_010),
        (1024, 4, 4, 64, 1024, 4096),
        (1000, 4, 100, 64, 1000, 10_000),
        (128, 4, 16, 1, 1024, 16_384),
        (1_000_000, 1, 0, 64, 1_000_000, 1000),
        (8_000_000_000, 2, 0, 131_072, 2_000_000_000_000, 301_000_000_000_000),
        (100_000, 1, 24_999, 1, 1024, 8192),
    ]
    for case in cases:
        weights, width, context, kv, bandwidth, flops = case
        want = _first_busy(*case)
        sizes = f"weights={weights}, weight_bytes={width}, context={context}, kv_bytes={kv}"
        said = f"{sizes}, bandwidth={bandwidth}, flops={flops}"
        never = (
            f"reading the K/V of one more request takes {context * kv / bandwidth:.4g} seconds, and its arithmetic "
            f"{2 * weights / flops:.4g}, so arithmetic never catches up. Return None."
        )
        endless = f"the answer is {want}" if want else f"no number can be found by trying: {never}"
        with limited(LINES, f"{said}: your code goes on and on ({LINES:,} lines of Python so far), but {endless}"):
            got = busy_from(*case)
        if want is None:
            expect(got is None, f"{said}: {never}")
            continue
        expect(
            got is not None,
            f"{said}: there is such a batch size, {want}. None is for contexts that are too long; to find out, compare "
            "the times of one request.",
        )
        expect(
            isinstance(got, int | np.integer) and not isinstance(got, bool),
            f"Return a whole number (an int) or None, not {a_kind(got)}: a batch has no half requests.",
        )
        expect(got >= 1, f"{said}: {got} requests? A pass has at least one.")
        halved = _first_busy(weights, width, context, kv, bandwidth, 2 * flops)
        expect(
            got != halved or got == want,
            f"{said}: you count one operation per weight and request. It is two: a multiplication and an addition.",
        )
        without = _first_busy(weights, width, 0, 0, bandwidth, flops)
        expect(got != without or got == want, f"{said}: K/V is missing. Each request reads that of its context.")
        expect(got >= want, f"{said}: with {got}, reading still takes longer than computing. The first is {want}.")
        expect_equal(int(got), want, f"{said}: a smaller batch is enough.")
    return "float32 and int8 weights, short contexts, a batch of 100,000, and contexts that are too long"


def _first_busy(weights: int, width: int, context: int, kv: int, bandwidth: int, flops: int) -> int | None:
    """By doubling and halving, all in whole numbers."""

    def busy(requests: int) -> bool:
        return 2 * weights * requests * bandwidth >= (weights * width + requests * context * kv) * flops

    high = 1
    while not busy(high):
        high *= 2
        if high > 1 << 62:
            return None
    low = 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if busy(middle) else (middle, high)
    return high


# --- 12.3 -------------------------------------------------------------------------------------------------------------

NAMES = ("input_ids", "positions", "seq_lens", "slots", "starts")
PADDING = {"input_ids": 0, "positions": 0, "seq_lens": 0, "slots": -1, "starts": 0}
WHY = {
    "input_ids": "Token 0 exists in every vocabulary, so its embedding can be looked up.",
    "positions": "Position 0 is in every table of angles.",
    "seq_lens": "With length 0, attention reads nothing.",
    "slots": "Slot -1 means nowhere. In any other slot, the K/V of padding would overwrite a request's.",
    "starts": "It must be a place inside the table.",
}


@exercise("12.3", "The buffers of a captured pass", points=2)
def _(given: Given) -> str:
    fill_buffers = given["fill_buffers"]
    rng = np.random.default_rng(12)
    arrays = {name: rng.integers(100, 1000, SIZE) for name in NAMES}
    buffers = SimpleNamespace(**arrays)
    with several() as part:
        for count in (SIZE, 3, 1, 4):  # each finds what the one before has left
            before = {name: array.copy() for name, array in arrays.items()}
            batch: dict[str, np.ndarray] = {
                "token_ids": rng.integers(1, 2048, count),
                "rows": rng.permutation(32)[:count],
                "lens": rng.integers(1, WIDTH, count).astype(np.int32),
                "slots": rng.permutation(4096)[:count],
            }
            kept = {name: array.copy() for name, array in batch.items()}
            fill_buffers(buffers, batch["token_ids"], batch["rows"], batch["lens"], batch["slots"], WIDTH)
            said = f"A batch of {count} in a pass of {SIZE}: `{{}}`"
            with part("batch"):
                for name in batch:
                    expect(
                        np.array_equal(batch[name], kept[name]), f"You changed `{name}`, which belongs to the caller."
                    )
            with part("in place"):
                for name in NAMES:
                    expect(
                        getattr(buffers, name, None) is arrays[name],
                        f"`{name}` isn't the same array as before. The recorded pass still reads that: write into it.",
                    )
            wanted = {
                "input_ids": kept["token_ids"],
                "positions": kept["lens"] - 1,
                "seq_lens": kept["lens"],
                "slots": kept["slots"],
                "starts": kept["rows"] * WIDTH,
            }
            for name in NAMES:
                with part(name, "batch", "in place"):
                    array = arrays[name]
                    _about_values(name, array[:count], kept, wanted[name], said.format(name))
                    behind = array[count:]
                    expect(
                        not len(behind)
                        or not np.array_equal(behind, before[name][count:])
                        or (behind == PADDING[name]).all(),
                        f"{said.format(name)} still has the previous pass's values behind the batch. Those requests "
                        "would be computed again.",
                    )
                    expect(
                        (behind == PADDING[name]).all(),
                        f"{said.format(name)} must be {PADDING[name]} behind the batch, but is {behind.tolist()}. "
                        f"{WHY[name]}",
                    )
    return "batches of 6, 3, 1 and 4 requests, one after the other"


def _about_values(name: str, got: np.ndarray, batch: dict[str, np.ndarray], want: np.ndarray, said: str) -> None:
    if name == "positions":
        expect(
            not np.array_equal(got, batch["lens"]),
            f"{said} are the lengths. The newest token of a request of 5 is at position 4: positions count from 0.",
        )
    if name == "starts":
        expect(
            not np.array_equal(got, batch["rows"]) or np.array_equal(want, batch["rows"]),
            f"{said} are the numbers of the rows. Row r begins at r * width in the flat table.",
        )
    expect_equal(got.tolist(), want.tolist(), f"{said} is wrong for the batch.")

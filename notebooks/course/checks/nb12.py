"""Checks of notebook 12: the buffers of a captured graph."""

from types import SimpleNamespace

import numpy as np

from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import expect, expect_equal

SIZE, WIDTH = 6, 100  # of the recorded pass; entries of a row


NAMES = ("input_ids", "positions", "seq_lens", "slots", "starts")
WHY = {
    "input_ids": "Token 0 exists in every vocabulary, so its embedding can be looked up.",
    "positions": "Position 0 is in every table of angles. The newest token of a request of 5 is at position 4.",
    "seq_lens": "With length 0, attention reads nothing.",
    "slots": "Slot -1 means nowhere. In any other slot, the K/V of padding would overwrite a request's.",
    "starts": "Row r begins at r * width in the flat table. Behind the batch, it must be a place inside the table: 0.",
}


@exercise("12.1", "The buffers of a captured graph", points=2)
def _(given: Given) -> str:
    fill_buffers, rng = given["fill_buffers"], np.random.default_rng(12)
    arrays = {name: rng.integers(100, 1000, SIZE) for name in NAMES}
    buffers = SimpleNamespace(**arrays)
    for count in (SIZE, 3, 1, 4):  # each finds what the one before has left
        batch: dict[str, np.ndarray] = {
            "token_ids": rng.integers(1, 2048, count),
            "rows": rng.permutation(32)[:count],
            "lens": rng.integers(1, WIDTH, count).astype(np.int32),
            "slots": rng.permutation(4096)[:count],
        }
        kept = {name: array.copy() for name, array in batch.items()}
        fill_buffers(buffers, *batch.values(), WIDTH)
        for name in batch:
            expect(np.array_equal(batch[name], kept[name]), f"You changed `{name}`, which belongs to the caller.")
        for name in NAMES:
            old = f"`{name}` isn't the same array as before. The recorded pass still reads that: write into it."
            expect(getattr(buffers, name, None) is arrays[name], old)
        wanted = kept["token_ids"], kept["lens"] - 1, kept["lens"], kept["slots"], kept["rows"] * WIDTH
        for name, want in zip(NAMES, wanted, strict=True):
            padding = [-1 if name == "slots" else 0] * (SIZE - count)
            said = f"A batch of {count} in a pass of {SIZE}: `{name}`, and behind the batch {padding[:1]}, not what is left"
            expect_equal(arrays[name].tolist(), [*want.tolist(), *padding], f"{said} of the previous pass. {WHY[name]}")
    return "batches of 6, 3, 1 and 4 requests, one after the other"

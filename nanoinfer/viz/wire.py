"""wire: bytes as they go over a connection, one cell per byte, coloured by the part that they belong to."""

from collections.abc import Iterator, Sequence

import numpy as np

from nanoinfer.viz.lettering import SMALL, TINY
from nanoinfer.viz.palette import BARS, GRID, MUTED, Style
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.sheet import Sheet
from nanoinfer.viz.words import count

STYLES: tuple[Style, ...] = (BARS[2], BARS[1], BARS[0], BARS[3])  # by size: the most bytes are on the lightest
COLUMNS = 64
GUTTER, HEIGHT = 36.0, 19.0
Data = bytes | bytearray | np.ndarray
ESCAPES = {0x20: "·", 0x0D: "\\r", 0x0A: "\\n", 0x09: "\\t"}


def wire(parts: Sequence[tuple[str, Data]], *, title: str | None = None, caption: str | None = None) -> Picture:
    """`parts` in order, as (label, bytes); a label may come several times. Each line of the bytes begins a row, with the
    number of its first byte. A byte that is no printable ASCII is shown as `\\r`, `\\n`, `\\t` or in hexadecimal.

    Instead of bytes, an integer array `[n]` has what is no text: uint8 are bytes in hexadecimal, and a wider number is one
    cell as wide as its bytes. It has no lines.
    """
    checked = [(label, data) for label, data in parts if len(data)]
    if not all(isinstance(data, bytes | bytearray | np.ndarray) for _, data in checked):
        raise ValueError("parts: must be (label, bytes or integers [n])")
    labels = list(dict.fromkeys(label for label, _ in checked))
    sizes = {label: sum(_size(data) for each, data in checked if each == label) for label in labels}
    total = sum(sizes.values())
    by_size = sorted(labels, key=lambda label: -sizes[label])
    styles = {label: STYLES[i] for i, label in enumerate(by_size)}
    sheet = Sheet(title, f"{count(total, 'byte')} on the wire", caption=caption)
    width = (sheet.right - sheet.left - GUTTER) / COLUMNS
    column = at = 0
    for label, data in checked:
        style = styles[label]
        for text, taken, ends_row in _cells(data):
            if column + taken > COLUMNS:
                sheet.y, column = sheet.y + HEIGHT + 2, 0
            if column == 0:
                sheet.text(sheet.left + GUTTER - 8, sheet.y + HEIGHT / 2, str(at), size=TINY, ha="right", colour=MUTED)
            x, wide = sheet.left + GUTTER + width * column, width * taken
            size = SMALL if len(text) == 1 or taken > 1 else TINY
            sheet.cell(x, sheet.y, wide, HEIGHT, style, edge=GRID, name=f"byte {at}")
            sheet.text(x + wide / 2, sheet.y + HEIGHT / 2, text, size=size, colour=style.text, ha="center")
            at, column = at + taken, column + taken
            if ends_row or column == COLUMNS:
                sheet.y, column = sheet.y + HEIGHT + 2, 0
    sheet.y += HEIGHT + 8 if column else 6
    sheet.legend([(styles[label], f"{label}: {count(sizes[label], 'byte')}") for label in labels])
    said = ", ".join(f"{label} {size}" for label, size in sizes.items())
    return sheet.picture(f"{count(total, 'byte')}: {said}.")


def shown(byte: int) -> str:
    """A byte as text: its ASCII character, an escape, or two hexadecimal digits."""
    return ESCAPES.get(byte) or (chr(byte) if 0x21 <= byte < 0x7F else f"{byte:02x}")


def _cells(data: Data) -> Iterator[tuple[str, int, bool]]:
    """Per cell: what it says, how many bytes it is wide, and whether a line ends with it."""
    if isinstance(data, np.ndarray):
        for number in data.tolist():
            yield (f"{number:02x}" if data.dtype == np.uint8 else str(number)), data.itemsize, False
    else:
        for byte in data:
            yield shown(byte), 1, byte == 0x0A


def _size(data: Data) -> int:
    return data.nbytes if isinstance(data, np.ndarray) else len(data)

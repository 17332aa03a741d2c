"""Numbers and tokens as short text, the same in every picture; and the check that a picture was given what it draws."""

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nanoinfer.cache.indices import Indices, as_int_array, consecutive_runs


def runs(numbers: np.ndarray | Sequence[int], limit: int = 4) -> str:
    """Slots in their order as runs of neighbours: `0-6, 16-20`; after `limit` runs `…`."""
    found = run_list(numbers)
    shown = [span(start, end) for start, end in found[:limit]]
    return ", ".join(shown) + (", …" if len(found) > limit else "") if found else "none"


def slots(numbers: np.ndarray | Sequence[int], limit: int = 4) -> str:
    """`slot 3`, or `slots 0-6, 16-20`."""
    return f"slot{'' if len(numbers) == 1 else 's'} {runs(numbers, limit)}"


def run_list(numbers: np.ndarray | Sequence[int]) -> list[tuple[int, int]]:
    """Numbers, in their order, as runs of neighbours: `[(first, last), ...]`, `last` inclusive."""
    return [(start, end - 1) for start, end in consecutive_runs(np.asarray(numbers, dtype=np.int64))]


def span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def count(number: int, noun: str) -> str:
    """`1 slot`, `2 slots`, `2 passes`."""
    plural = noun[:-1] + "ies" if noun.endswith("y") and noun[-2] not in "aeiou" else noun + "s"
    plural = noun + "es" if noun.endswith("s") else plural
    return f"{number:,} {noun if number == 1 else plural}"


def num_bytes(size: float) -> str:
    """Bytes as B, kB, MB or GB (a kB is 1,000 bytes)."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:,.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "0 %"


def number(value: float) -> str:
    """Three significant digits, or all of a whole number."""
    if abs(value) >= 1e15:
        return f"{value:.3g}"
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def duration(seconds: float) -> str:
    """In milliseconds, or in microseconds below one of them."""
    return f"{number(1e3 * seconds)} ms" if seconds >= 1e-3 else f"{number(round(1e6 * seconds))} µs"


def ratio(value: float) -> str:
    """Two places behind the point below 10, one below 100."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def visible(text: str) -> str:
    """Token text with its white space shown: a space as ·, a line end as ⏎."""
    return one_line(text).replace(" ", "·")


def one_line(text: str) -> str:
    """`text` with line ends, tabs and returns as signs, and with ▯ for what else cannot be printed."""
    if text.isascii() and text.isprintable():
        return text
    shown = text.replace("\n", "⏎").replace("\t", "⇥").replace("\r", "␍")
    return "".join("▯" if unicodedata.category(char) in ("Cc", "Cs") else char for char in shown)


SPACE_NOTE = "· in a token is a space."
ENDS_NOTE = "In a text, · is a space at its beginning or end and ⏎ a line end."


def visible_ends(text: str) -> str:
    """The text of several tokens: spaces within it as they are, those at its beginning and end as ·, a line end as ⏎."""
    inner = text.strip(" ")
    lead = len(text) - len(text.lstrip(" "))
    return "·" * lead + visible(inner).replace("·", " ") + "·" * (len(text) - lead - len(inner))


NO_SLOT = "–"  # of an entry that is not in use: 0 would be a slot


def slots_of_several(given: Mapping[str, np.ndarray]) -> dict[int, list[str]]:
    """Slot → the labels whose slots it is among, for every slot that more than one of them has."""
    found: dict[int, list[str]] = {}
    for label, numbers in given.items():
        for slot in dict.fromkeys(numbers.tolist()):
            found.setdefault(slot, []).append(label)
    return {slot: labels for slot, labels in found.items() if len(labels) > 1}


def plural_list(words: Sequence[str], limit: int = 8) -> str:
    more = f" and {len(words) - limit} more" if len(words) > limit else ""
    return ", ".join(words[:limit]) + more


def abridged(total: int, limit: int) -> list[int | None]:
    """Indices `0..total-1`, at most `limit` entries; where some are left out, one None stands for them."""
    if total <= limit:
        return list(range(total))
    tail = max(1, (limit - 1) // 3)
    head = max(1, limit - 1 - tail)
    return [*range(head), None, *range(total - tail, total)]


def is_a(value: Any, kind: type) -> bool:
    """Whether `value` is a `kind`, or of a class of that name: a class grown in a notebook is as good as the package's."""
    return isinstance(value, kind) or kind.__name__ in (base.__name__ for base in type(value).__mro__)


def checked_slots(name: str, slots: Indices, size: int) -> np.ndarray:
    """`slots` as int64 [k]; ValueError when one is outside the pool."""
    array = as_int_array(slots, name)
    outside = array[(array < 0) | (array >= size)]
    if outside.size:
        raise ValueError(f"{name}: slot {outside[0]} is outside 0..{size - 1}")
    return array


def checked_lens(name: str, lens: Mapping[int, int], rows: int, most: int) -> dict[int, int]:
    """`{row: length}` with plain ints; ValueError when a row or a length is out of range."""
    for row, length in lens.items():
        if not 0 <= row < rows:
            raise ValueError(f"{name}: row {row!r} is outside 0..{rows - 1}")
        if not 0 <= length <= most:
            raise ValueError(f"{name}[{row}]={length!r}: must be in 0..{most}")
    return {int(row): int(length) for row, length in lens.items()}

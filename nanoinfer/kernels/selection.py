"""Selection: which of several implementations was chosen, and why no faster one. The chosen object carries it."""

from dataclasses import dataclass
from typing import Any

AS_ASKED = "as asked for"


@dataclass(frozen=True)
class Selection:
    """`name`: as in the option that chooses (`cpp`, `torch_native`). `reason`: why no faster one runs; "" for the fastest.

    `str()` gives both: "torch (not cpp: no C++ compiler: ...)".
    """

    name: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})" if self.reason else self.name


def selected(chosen: Any, name: str, reason: str = "") -> Any:
    """Set the attribute `selection` of `chosen`, which is kernels or an attention backend, and return it."""
    chosen.selection = Selection(name, reason)
    return chosen


def selection_of(chosen: object) -> Selection:
    """The Selection that `selected` gave to `chosen`; for an object that was made by hand, the name of its class."""
    selection = getattr(chosen, "selection", None)
    return selection if isinstance(selection, Selection) else Selection(type(chosen).__name__)

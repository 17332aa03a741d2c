"""Selection: which of several implementations runs, and why it is not the fastest; kept on the object that was chosen."""

from dataclasses import dataclass
from typing import Any

AS_ASKED = "as asked for"


@dataclass(frozen=True)
class Selection:
    """`name` as in the option that chooses (`cpp`, `torch_native`); `reason`: why no faster one runs, "" for the fastest.

    As text both in one: "torch (not cpp: no C++ compiler: ...)".
    """

    name: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})" if self.reason else self.name


def selected(chosen: Any, name: str, reason: str = "") -> Any:
    """`chosen`, kernels or an attention backend, which now says so in its attribute `selection`."""
    chosen.selection = Selection(name, reason)
    return chosen


def selection_of(chosen: object) -> Selection:
    """What was said when `chosen` was selected; of an object that was made by hand, the name of its class."""
    selection = getattr(chosen, "selection", None)
    return selection if isinstance(selection, Selection) else Selection(type(chosen).__name__)

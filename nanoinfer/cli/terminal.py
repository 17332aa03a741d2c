"""Colours, and tables that fit the terminal's width."""

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "cyan": "36"}


def styled(text: object, style: str) -> str:
    """`text` in the given style if standard output is a terminal (and NO_COLOR is not set); otherwise unchanged."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return str(text)
    return f"\033[{CODES[style]}m{text}\033[0m"


def one_line(error: BaseException) -> str:
    """An exception's message on one line. For an error of the operating system: the file, then the reason, no number."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        text = f"{error.filename}: {error.strerror}"
    return " ".join(text.split()) or type(error).__name__


def terminal_width() -> int | None:
    """Columns of the terminal that standard output goes to, or the number in COLUMNS; None for files and pipes."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit():
        return shutil.get_terminal_size().columns
    return None


def filled(text: str, limit: int | None, indent: str = "") -> str:
    """`text` in lines of at most `limit` characters, indented from the second line on. None: the text unchanged."""
    return text if limit is None else textwrap.fill(text, limit, subsequent_indent=indent)


def shortened(text: str, limit: int) -> str:
    """`text` on one line, or only its beginning and its end if it is longer than `limit`."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit // 2]} ... {line[-limit // 2 :]}"


def table(head: Sequence[str], rows: Iterable[Sequence[object]], left: Sequence[int] = (0,)) -> str:
    """A table as text, whose cells may be `styled`. Columns that are not in `left` are right-aligned. In a terminal that is
    too narrow, cells are wrapped."""
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=any(head), header_style="bold")
    for i, name in enumerate(head):
        grid.add_column(name, justify="left" if i in left else "right", overflow="fold")
    for row in rows:
        grid.add_row(*(Text.from_ansi(str(cell)) for cell in row))
    console = Console(width=terminal_width() or 10_000, highlight=False)
    with console.capture() as captured:
        console.print(grid)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())

"""Colours, for output to terminals only."""

import os
import sys

CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}


def styled(text: object, *styles: str) -> str:
    """`text` in the given styles when standard output is a terminal (and NO_COLOR is not set), else unchanged."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return str(text)
    return f"\033[{';'.join(CODES[style] for style in styles)}m{text}\033[0m"

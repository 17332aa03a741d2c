"""What became of a notebook's cells: which of them Python could not read, so that none of their lines ran."""

import re
import warnings
from ast import PyCF_ALLOW_TOP_LEVEL_AWAIT
from collections.abc import Collection, Sequence


def unread(cells: Sequence[object], names: Collection[str]) -> str | None:
    """Where and why Python cannot read the newest of these `cells` (sources, in the order in which they were run) that
    gives one of `names` a value or a member. None if it can, or there is no such cell."""
    any_name = "|".join(map(re.escape, names))
    others = rf"@extend\(\s*(?:{any_name})\b|(?:{any_name})\s*(?::[^=]*)?=(?!=)"
    gives = re.compile(rf"^(?:(?:async\s+)?(?:def|class)\s+(?:{any_name})\b|{others})", re.MULTILINE)
    # Also `deff name(...):`, which is no definition.
    misspelt = re.compile(rf"^(?:(?:\w+\s+){{1,2}}(?:{any_name})\b|{others})", re.MULTILINE)
    for cell in reversed(cells) if names else ():
        if not isinstance(cell, str):
            continue
        if misspelt.search(cell) and (problem := _problem(cell)):
            return problem
        if gives.search(cell):
            return None
    return None


def _problem(cell: str) -> str | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(cell, "<cell>", "exec", PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    except SyntaxError as error:
        if error.lineno is None:
            return f"{type(error).__name__}: {error.msg}"
        line = (cell.splitlines()[error.lineno - 1 : error.lineno] or [""])[0].strip()
        return f"line {error.lineno} of its cell: {line}\n  {type(error).__name__}: {error.msg}"
    except (ValueError, RecursionError, MemoryError):  # of what no notebook's cell says
        pass
    return None

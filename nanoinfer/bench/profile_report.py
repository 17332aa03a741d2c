"""Tables of profiles."""

from collections.abc import Mapping
from typing import Any

from nanoinfer.bench.markdown import table

BOOKKEEPING = ("schedule", "process")  # the parts that make up the scheduler's share
# Parts in the order of a step; any others come last.
ORDER = (
    "schedule",
    "metadata",
    "forward: embed",
    "forward: norm",
    "forward: qkv",
    "forward: rotary",
    "forward: K/V store",
    "forward: attention",
    "forward: o",
    "forward: mlp",
    "forward: lm_head",
    "forward: other",
    "sample",
    "process",
    "other",
)


def format_profile(profile: Mapping[str, Any]) -> str:
    """One workload's profile: one row per part, with its milliseconds per step and its share for each kind of step."""
    kinds = {name: kind for name, kind in profile.items() if name != "idle"}
    parts = sorted({part for kind in kinds.values() for part in kind["parts"]}, key=_place)
    rows = []
    for part in parts:
        row = [part]
        for kind in kinds.values():
            seconds = kind["parts"].get(part, 0.0)
            row += [f"{seconds / kind['steps'] * 1000:.3f}", f"{seconds / kind['seconds']:.1%}"]
        rows.append(row)
    head, total, scheduler = ["part"], ["whole step"], []
    for name, kind in kinds.items():
        head += [f"{name}, {kind['steps']} steps: ms", "share"]
        total += [f"{kind['seconds'] / kind['steps'] * 1000:.3f}", ""]
        spent = sum(kind["parts"].get(part, 0.0) for part in BOOKKEEPING)
        scheduler.append(f"{name} {spent / kind['seconds']:.1%}")
    share = f"scheduler's share ({' and '.join(BOOKKEEPING)}): {', '.join(scheduler)}"
    return f"{table(head, [*rows, total])}\n\n{share}"


def _place(part: str) -> tuple[int, str]:
    """Sorting key: parts in the order of a step, any others last."""
    return (ORDER.index(part) if part in ORDER else len(ORDER), part)

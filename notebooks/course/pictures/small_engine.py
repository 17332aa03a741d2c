"""computed_tokens, small_memory: the passes and the memory of the engine that notebook 01 builds of lists."""

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from nanoinfer.requests.tokenizer import Tokenizer
from nanoinfer.viz.palette import ROLES, Style, owner_style
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.sheet import Heading, Sheet
from notebooks.course.prompts import BEAR, FOX, HELLO, RIVER, STORY

NAMES = {FOX: "FOX", RIVER: "RIVER", BEAR: "BEAR", HELLO: "HELLO", STORY: "STORY"}
Request = dict[str, Any]
Passes = Sequence[tuple[Sequence[Request], int]]  # of each pass: its requests, and how many tokens of each it computed


def computed_tokens(passes: Passes, *, to_scale: bool = False, **heading: Unpack[Heading]) -> Picture:
    """One line per request, one column per pass, as wide as the tokens that it computes if `to_scale`."""
    sheet = Sheet(**heading)
    widths, left = [len(batch) * new if to_scale else 1 for batch, new in passes], 90
    scale, words = (sheet.right - left) / sum(widths), []
    edges = [left + scale * sum(widths[:i]) for i in range(len(passes) + 1)]
    if not to_scale:
        sheet.text(sheet.left, sheet.y + 6, "pass")
        for i in range(len(passes)):
            sheet.text((edges[i] + edges[i + 1]) / 2, sheet.y + 6, str(i + 1), ha="center")
        sheet.y += 18
    for number, request in enumerate(_requests(passes)):
        name, style = NAMES.get(request["prompt"], f"request {number}"), owner_style(f"request {number}", number)
        computed = [new if request in batch else 0 for batch, new in passes]
        sheet.text(sheet.left, sheet.y + 12, name)
        for i, new in enumerate(computed):
            if new:
                wide = edges[i + 1] - edges[i]
                sheet.cell(edges[i], sheet.y, wide, 24, style, str(new), size=7.5 if wide > 10 else 6)
        words.append(f"{name}: {', '.join(map(str, computed))}")
        sheet.y += 28
    return sheet.picture("; ".join(words) + ".")


def small_memory(state: Mapping[str, Any], tokenizer: Tokenizer, **heading: Unpack[Heading]) -> Picture:
    """One field per slot. `state` has the engine's lists by name: `memory`, `free`, `cache`, `running`, `passes`."""
    sheet, size, free = Sheet(**heading), len(state["memory"]), state["free"]
    holds: dict[int, tuple[Style, str]] = {}
    for number, request in enumerate(_requests(state["passes"])):
        for slot, token in zip(request["slots"], request["tokens"], strict=False):  # the newest token has no slot
            holds.setdefault(slot, (owner_style(f"request {number}", number), tokenizer.decode(token)))
    known = set(state["cache"].values()) | {slot for request in state["running"] for slot in request["slots"]}
    lost = [slot for slot in range(size) if slot not in known and slot not in free]
    for slot in range(size):
        style, word = holds[slot] if slot in known else (ROLES["leaked" if slot in lost else "free"], "")
        x, y = sheet.left + 30 + slot % 16 * 52, sheet.y + slot // 16 * 24
        if slot % 16 == 0:
            sheet.text(x - 6, y + 12, str(slot), ha="right")
        sheet.cell(x, y, 52, 24, style, str(slot) if slot in lost else word.strip(), edge="#9a9a9a")
    sheet.y += 24 * (size // 16) + 8
    return sheet.picture(f"{size} slots: {len(free)} free, {len(state['cache'])} in the cache, lost: {lost or 'none'}.")


def _requests(passes: Passes) -> list[Request]:
    return list({id(request): request for batch, _ in passes for request in batch}.values())

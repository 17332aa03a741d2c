"""engine_map: the whole engine on one small map, with "you are here"."""

from collections.abc import Sequence
from typing import NamedTuple

from nanoinfer.viz.lettering import SMALL, TINY, text_width
from nanoinfer.viz.palette import INK, MUTED, PLAIN, ROLES
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.sheet import Sheet
from nanoinfer.viz.words import plural_list

TOP, LOW, TALL = 44.0, 160.0, 54.0  # where the two lines of parts are, and how high a part is
WIDTH, PITCH = 117.0, 151.0  # of a part; from one part to the next
HERE = ROLES["highlight"]
OWNERS = "the life of a slot"


class Part(NamedTuple):
    """A part of the engine: its column and line on the map, what it does, and the notebooks that are about it."""

    column: int
    y: float
    what: str
    notebooks: tuple[int, ...]

    @property
    def x(self) -> float:
        return 14 + PITCH * self.column

    @property
    def middle(self) -> float:
        return self.x + WIDTH / 2


PARTS: dict[str, Part] = {
    "requests": Part(0, TOP, "prompts come in", (2, 16, 17)),
    "scheduler": Part(1, TOP, "which request is next?", (10, 11, 14)),
    "batch": Part(2, TOP, "several at once", (4, 10, 13, 14)),
    "input metadata": Part(3, TOP, "what, and where", (6, 18)),
    "model": Part(4, TOP, "a score for each token", (2, 12, 13, 14, 20, 21)),
    "sampler": Part(5, TOP, "picks the next token", (2, 15)),
    "radix tree": Part(1, LOW, "shared beginnings", (8, 13, 17, 19)),
    "rows": Part(2, LOW, "position → slot", (5, 18)),
    "slots": Part(3, LOW, "each token's K/V", (5, 18, 19)),
    "attention": Part(4, LOW, "extend and decode", (3, 7)),
    OWNERS: Part(1, LOW, "what owns a slot, and what frees it", (9,)),
}
NUMBERS = range(22)  # of the notebooks


def engine_map(here: str | int | Sequence[str | int] = ()) -> Picture:
    """The parts of the engine, how a request goes through them, and the number of the notebook about each.

    `here`: what to mark as "you are here": the number of a notebook (all its parts; 1 is the whole engine), the name of a
    part (`"scheduler"`), or several of them. Raises ValueError for a part or a notebook that there is not.
    """
    marked = _marked(here)
    sheet = Sheet()
    _ways(sheet)
    framed = marked if len(marked) < len(PARTS) else set()
    _owners(sheet, LOW, OWNERS in framed)
    for name, part in PARTS.items():
        if name != OWNERS:
            _part(sheet, name, part, part.y, name in framed)
    _tag(sheet, marked)
    sheet.y = LOW + TALL + 30
    said = [f"{name} ({', '.join(f'{n:02}' for n in part.notebooks)})" for name, part in PARTS.items()]
    where = f" You are here: {plural_list([name for name in PARTS if name in marked], 10)}." if marked else ""
    return sheet.picture(f"The engine's parts, with the notebooks about them: {', '.join(said)}.{where}")


def _marked(here: str | int | Sequence[str | int]) -> set[str]:
    """The names of the parts to mark."""
    marked = set[str]()
    for each in map(str, [here] if isinstance(here, str | int) else here):
        number = int(each) if each.isdigit() else -1
        marked |= {name for name, part in PARTS.items() if name == each or number in (1, *part.notebooks)}
        if number not in NUMBERS and each not in PARTS:
            raise ValueError(
                f"here={each!r}: must be one of {', '.join(PARTS)}, or a notebook's number, 0..{NUMBERS[-1]}"
            )
    return marked


def _ways(sheet: Sheet) -> None:
    """The arrows, before the parts are drawn over their ends."""
    top, low = TOP + TALL / 2, LOW + TALL / 2
    for column in range(5):
        sheet.arrow([14 + PITCH * column + WIDTH, 14 + PITCH * (column + 1)], [top, top])
    # The loop: the new token goes back, and its request is scheduled again.
    back, scheduler, sampler = TOP - 28, PARTS["scheduler"].x + 102, PARTS["sampler"].x + 102
    sheet.arrow([sampler, sampler, scheduler, scheduler], [TOP, back, back, TOP])
    sheet.text(
        560, back, "one new token per request, then again", size=TINY, ha="center", colour=MUTED, behind="#ffffff"
    )
    upper, lower = TOP + TALL, LOW
    for name, words, both in (
        ("radix tree", "finds the prefix", True),
        ("rows", "gets slots", False),
        ("slots", "names slots", False),
        ("attention", "in every layer", True),
    ):
        x = PARTS[name].x + 102
        sheet.arrow([x, x], [upper, lower])
        if both:
            sheet.arrow([x, x], [lower, upper])
        sheet.text(x + 6, upper + 14, words, size=TINY, colour=MUTED)
    for name in ("radix tree", "rows"):
        sheet.arrow([PARTS[name].x + WIDTH, PARTS[name].x + PITCH], [low, low])
    start, end = PARTS["slots"].x + WIDTH, PARTS["attention"].x
    sheet.arrow([start, end], [low - 7] * 2)
    sheet.arrow([end, start], [low + 9] * 2)
    for i, words in enumerate(("reads the K/V of earlier tokens,", "writes that of the new ones")):
        sheet.text(PARTS["attention"].x, lower + TALL + 12 + 12 * i, words, size=TINY, colour=MUTED)


def _owners(sheet: Sheet, y: float, marked: bool) -> None:
    """The frame around tree, rows and slots: who owns each slot."""
    x, width = PARTS["radix tree"].x - 10, 2 * PITCH + WIDTH + 20
    edge, line = (HERE.face, 2.6) if marked else (MUTED, 1.0)
    part = PARTS[OWNERS]
    sheet.rect(x, y - 12, width, TALL + 38, edge=edge, line=line, dashed=not marked, name=f"part {OWNERS}")
    words = f"{OWNERS}: {part.what}   {part.notebooks[0]:02}"
    sheet.text(x + width / 2, y + TALL + 13, words, size=SMALL, ha="center", colour=INK if marked else MUTED)


def _part(sheet: Sheet, name: str, part: Part, y: float, marked: bool) -> None:
    sheet.rect(part.x, y, WIDTH, TALL, PLAIN, edge=MUTED, line=0.9, name=f"part {name}")
    if marked:
        sheet.rect(part.x - 3, y - 3, WIDTH + 6, TALL + 6, edge=HERE.face, line=2.6, name=f"here {name}")
    sheet.text(part.middle, y + 12, name, weight="bold", ha="center")
    sheet.text(part.middle, y + 26, part.what, size=TINY, ha="center", width=WIDTH - 2)
    numbers = (" · " if len(part.notebooks) < 6 else "·").join(f"{n:02}" for n in part.notebooks)
    sheet.text(part.middle, y + 42, numbers, size=SMALL, ha="center", colour=MUTED)


def _tag(sheet: Sheet, marked: set[str]) -> None:
    """The words "you are here", at the first of the marked parts."""
    name = next((name for name in PARTS if name in marked), None)
    if name is None:
        return
    words = "you are here: the whole engine" if len(marked) == len(PARTS) else "you are here"
    width = text_width(words, SMALL, "bold") + 12
    part = PARTS[name]
    x, y = (part.x - 14, part.y - 27) if name == OWNERS else (part.x - 4, part.y - 16)
    if len(marked) == len(PARTS):
        x, y = 6, TOP - 36
        sheet.rect(6, y, 888, LOW + TALL + 68 - TOP, edge=HERE.face, line=2.6, name="here everywhere")
    sheet.rect(x, y, width, 15, HERE, name="you are here")
    sheet.text(x + 6, y + 7.5, words, size=SMALL, weight="bold", colour=HERE.text)

"""Lanes: a timeline, one lane per request and one column per step, with the pool's occupancy in a strip above it."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from nanoinfer.viz.palette import GRID, MUTED, PHASE_STYLES, ROLES
from nanoinfer.viz.sheet import SMALL, Sheet, text_width
from notebooks.course.explore.panels.base import LOOKS, Panel

MARKED = ROLES["highlight"].face


@dataclass(frozen=True)
class Span:
    """Steps `start` to `end - 1` (counted from 0) in `phase`: a name of the palette's PHASE_STYLES. `text` fits in it or is
    only said."""

    start: int
    end: int
    phase: str
    text: str = ""


@dataclass(frozen=True)
class Lane:
    """A request's line. `ends`: the step after which it ended, if it did."""

    label: str
    spans: Sequence[Span]
    look: str = ""
    ends: int | None = None


@dataclass(frozen=True)
class Strip:
    """For each step how much each owner holds, [(look, how much), ...], of at most `size`; `label` says what it is."""

    label: str
    size: float
    steps: Sequence[Sequence[tuple[str, float]]]


@dataclass(frozen=True)
class Flag:
    """Something that happened at the beginning of a step (counted from 0): a line through the picture, said below it."""

    step: int
    text: str


@dataclass(frozen=True)
class Lanes(Panel):
    """`steps`: how many; a strip has as many. `at`: the step to look at, marked, or the first of those up to `until`.

    `legend`: (look or phase, meaning). `widths`: how wide each step's column is, where they are not all the same, and
    `whole`: how wide the picture; the same in all frames, so that they can be compared. `scale`: what is written below its
    two ends.
    """

    kind: ClassVar[str] = "lanes"
    title: str
    steps: int
    lanes: Sequence[Lane]
    strip: Strip | None = None
    at: int | None = None
    legend: Sequence[tuple[str, str]] = ()
    note: str = ""
    flags: Sequence[Flag] = ()
    widths: Sequence[float] = ()
    whole: float | None = None
    scale: Sequence[str] = ()
    until: int | None = None

    def words(self) -> str:
        said = []
        for lane in self.lanes:
            spans = ", ".join(
                f"{span.phase} in step{'' if span.end == span.start + 1 else 's'} {_steps(span)}" for span in lane.spans
            )
            said.append(f"{lane.label}: {spans or 'not there'}")
        said += [flag.text for flag in self.flags]
        return f"{self.title}. {'; '.join(said)}."

    def edges(self) -> list[float]:
        """Where the steps begin, and where the last one ends, as shares of the width."""
        widths = self.widths or [1] * self.steps
        whole = self.whole or sum(widths)
        return [end / whole for end in itertools.accumulate(widths, initial=0)]

    def ticks(self) -> list[tuple[float, str]]:
        """Round numbers of steps, or of `widths`, below a drawn picture: where, as a share of it, and which."""
        whole = self.whole or sum(self.widths) or self.steps
        every = next(
            n for power in itertools.count() for n in (10**power, 2 * 10**power, 5 * 10**power) if whole / n <= 8
        )
        middle = 0 if self.widths else 0.5  # of the step's column
        places = [((n - middle) / whole, str(n)) for n in range(every, int(whole) + 1, every)]
        return [(place, text) for place, text in places if 0.12 < place < 0.9 and whole > 8]

    def data(self) -> dict[str, Any]:
        """In the legend, classes of the page: `p-...` for phases, `o-...` for looks."""
        legend = [(f"{'p' if look in PHASE_STYLES else 'o'}-{look}", text) for look, text in self.legend]
        ends = list(self.scale) or ["step 1", f"step {self.steps}"]
        return super().data() | {"legend": legend, "edges": [round(edge, 5) for edge in self.edges()], "scale": ends}

    def draw(self, sheet: Sheet) -> None:
        x0 = sheet.left + 130
        places = [x0 + (sheet.right - x0) * edge for edge in self.edges()]
        if self.flags:
            for flag in self.flags:
                sheet.text(places[flag.step], sheet.y + 5, "!", weight="bold", ha="center", colour=MARKED)
            sheet.y += 14
        top = sheet.y
        if self.strip is not None:
            sheet.text(x0 - 8, sheet.y + 28, self.strip.label, ha="right", width=122)
            for i, parts in enumerate(self.strip.steps):
                y = sheet.y + 56
                for look, held in parts:
                    height = 56 * held / self.strip.size
                    y -= height
                    sheet.rect(places[i], y, places[i + 1] - places[i], height, LOOKS[look])
            sheet.rect(x0, sheet.y, places[-1] - x0, 56, edge=GRID)
            sheet.y += 62
        for lane in self.lanes:
            sheet.text(x0 - 8, sheet.y + 7, lane.label, ha="right", width=122)
            for span in lane.spans:
                style = PHASE_STYLES[span.phase]
                left, right = places[span.start], places[span.end]
                sheet.rect(left, sheet.y, right - left, 14, style, edge="#ffffff")
                if span.text and right - left > text_width(span.text, SMALL):
                    sheet.text((left + right) / 2, sheet.y + 7, span.text, size=SMALL, ha="center", colour=style.text)
            sheet.y += 18
        for flag in self.flags:
            sheet.line([places[flag.step]] * 2, [top - 2, sheet.y - 2], colour=MARKED, line=1.6)
        if self.at is not None:
            left, right = places[self.at], places[(self.at if self.until is None else self.until) + 1]
            sheet.rect(left, top - 2, right - left, sheet.y - top, edge=MARKED, line=1.6)
        begin, end = self.scale or ("step 1", f"step {self.steps}")
        sheet.text(x0, sheet.y + 6, begin, size=SMALL, colour=MUTED)
        sheet.text(sheet.right, sheet.y + 6, end, size=SMALL, colour=MUTED, ha="right")
        for place, text in self.ticks():
            sheet.text(x0 + (sheet.right - x0) * place, sheet.y + 6, text, size=SMALL, colour=MUTED, ha="center")
        sheet.y += 18
        for flag in self.flags:
            sheet.caption(f"! {flag.text}")
        sheet.legend([(PHASE_STYLES.get(look) or LOOKS[look], text) for look, text in self.legend])


def _steps(span: Span) -> str:
    return f"{span.start + 1}" if span.end == span.start + 1 else f"{span.start + 1} to {span.end}"

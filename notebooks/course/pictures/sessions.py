"""session_steps, padded_batch: which sessions had a row in which decode pass, and what padding them wastes."""

from collections.abc import Mapping, Sequence
from typing import Unpack

from nanoinfer.viz.lettering import SMALL, TINY, text_width
from nanoinfer.viz.palette import GRID, INK, MUTED, ROLES, request_style
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.sheet import Heading, Sheet
from nanoinfer.viz.words import count, percent

HEIGHT = 19.0


def session_steps(
    steps: Sequence[Mapping[int, int]], *, max_rows: int | None = None, **heading: Unpack[Heading]
) -> Picture:
    """Requests (down) × decode passes (across), filled where the request was computed; below, the rows of each pass.

    `steps`: what `OfflineScheduler.step` returned, {request id: token id}, in order; {} is a step without a pass.
    `max_rows`: rows that a pass may have; what is not used of them is drawn, too.
    """
    ids = sorted({request_id for step in steps for request_id in step})
    rows = [len(step) for step in steps]
    names = {request_id: f"request {request_id}" for request_id in ids}

    sheet = Sheet(default_title="Which request is computed in which DECODE pass", **heading)
    x0 = sheet.left + max(text_width(text) for text in [*names.values(), "rows in the pass"]) + 12
    width = min((sheet.right - x0 - 8) / len(steps), 34.0)
    sheet.text(x0 - 8, sheet.y + 6, "decode pass", ha="right", size=SMALL, colour=MUTED)
    for i in range(0, len(steps), next(n for n in (1, 2, 5, 10, 20, 50, 100) if n * width >= 22)):
        sheet.text(x0 + (i + 0.5) * width, sheet.y + 6, str(i + 1), ha="center", size=TINY, colour=MUTED)
    sheet.y += 16
    for request_id in ids:
        sheet.text(x0 - 8, sheet.y + HEIGHT / 2, names[request_id], ha="right")
        for i, step in enumerate(steps):
            if request_id in step:
                cell = x0 + i * width, sheet.y, width, HEIGHT
                edge = "#ffffff" if width > 10 else None
                sheet.rect(*cell, request_style(request_id), edge=edge, name=f"request {request_id} pass {i + 1}")
        sheet.line([x0, x0 + len(steps) * width], [sheet.y + HEIGHT + 1.5] * 2, colour=GRID, line=0.3)
        sheet.y += HEIGHT + 3
    # The number of rows of each pass as bars; above them what could have been.
    top, most = sheet.y + 10, max_rows or max(rows)
    unit = min(56 / most, 14.0)
    base = top + most * unit
    sheet.text(x0 - 8, (top + base) / 2, "rows in the pass", ha="right", size=SMALL, colour=MUTED)
    for i, number in enumerate(rows):
        x, height = x0 + i * width, number * unit
        if max_rows is not None:
            sheet.rect(x, top, width, base - height - top, ROLES["padding"], name=f"unused pass {i + 1}")
        place, name = (x, base - height, width, height), f"rows pass {i + 1}"
        sheet.cell(*place, ROLES["in_use"], str(number), size=TINY, edge=None, name=name)
    sheet.line([x0, x0 + len(rows) * width], [base, base], colour=MUTED)
    sheet.y = base + 10
    if max_rows is not None:
        sheet.legend([(ROLES["in_use"], "rows used"), (ROLES["padding"], f"rows not used, of {max_rows}")])
    passes = sum(1 for number in rows if number)
    used = f", {sum(rows)} of {passes * max_rows} possible rows used" if max_rows is not None else ""
    first = {request_id: next(i for i, step in enumerate(steps, 1) if request_id in step) for request_id in ids}
    last = {request_id: max(i for i, step in enumerate(steps, 1) if request_id in step) for request_id in ids}
    spans = ", ".join(f"{names[r]} in passes {first[r]}-{last[r]}" for r in ids)
    return sheet.picture(
        f"{count(len(ids), 'request')}, {passes} decode passes with {min(rows)} to {max(rows)} rows, "
        f"{sum(rows) / max(passes, 1):.1f} on average{used}: {spans}."
    )


MOST_CELLS = 40


def padded_batch(lens: Sequence[int], *, labels: Sequence[str], **heading: Unpack[Heading]) -> Picture:
    """Rows of K/V of `lens` tokens, each as long as the longest: used tokens and padding, with their shares."""
    longest, used = max(lens), sum(lens)
    cells = longest * len(lens)
    sheet = Sheet(
        default_title=f"A padded batch: {count(len(lens), 'row')} × {count(longest, 'token')} of K/V", **heading
    )
    gutter = min(max(text_width(name) for name in labels) + 12, 200)
    room = sheet.right - sheet.left - gutter - 150
    x0, width = sheet.left + gutter, min(room / max(longest, 1), 30)
    for i, (name, length) in enumerate(zip(labels, lens, strict=True)):
        sheet.text(x0 - 8, sheet.y + 10, name, ha="right", width=gutter - 8)
        if longest <= MOST_CELLS:
            for k in range(longest):
                look = ROLES["in_use"] if k < length else ROLES["padding"]
                sheet.rect(x0 + k * width, sheet.y, width, 20, look, edge="#ffffff", name=f"row {i} token {k}")
        else:
            sheet.rect(x0, sheet.y, longest * width, 20, ROLES["padding"], name=f"row {i} padding")
            sheet.rect(x0, sheet.y, length * width, 20, ROLES["in_use"], name=f"row {i} used")
        padding = longest - length
        use = f"{length:,} used" + (f", {padding:,} padding" if padding else "")
        sheet.text(x0 + longest * width + 8, sheet.y + 10, use, size=SMALL)
        sheet.y += 24
    end = x0 + longest * width
    sheet.line([x0, x0, end, end], [sheet.y + 2, sheet.y + 6, sheet.y + 6, sheet.y + 2], colour=INK)
    sheet.text((x0 + end) / 2, sheet.y + 15, f"longest: {longest:,}", size=SMALL, ha="center", colour=MUTED)
    sheet.y += 30
    of_used = f"used: {used:,} of {cells:,} ({percent(used, cells)})"
    of_padding = f"{cells - used:,} ({percent(cells - used, cells)})"
    sheet.legend([(ROLES["in_use"], of_used), (ROLES["padding"], f"padding: {of_padding}")])
    return sheet.picture(
        f"{count(len(lens), 'row')} padded to {longest:,} tokens: {used:,} of {cells:,} used, "
        f"{of_padding.replace(' (', ' padding (')}."
    )

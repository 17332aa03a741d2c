"""session_steps: which sessions had a row in which decode pass of an OfflineScheduler."""

from collections.abc import Mapping, Sequence

from nanoinfer.viz.lettering import SMALL, TINY, text_width
from nanoinfer.viz.palette import GRID, MUTED, ROLES, request_style
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.sheet import Sheet
from nanoinfer.viz.words import abridged, count, expect_type

MOST_ROWS = 24
HEIGHT = 19.0


def session_steps(
    steps: Sequence[Mapping[int, int]],
    *,
    labels: Mapping[int, str] | None = None,
    max_rows: int | None = None,
    title: str | None = None,
    caption: str | None = None,
) -> Picture:
    """Requests (down) × decode passes (across), filled where the request was computed; below, the rows of each pass.

    `steps`: what `OfflineScheduler.step` returned, {request id: token id}, in order; {} is a step without a pass. `labels`:
    request id → text. `max_rows`: rows that a pass may have; what is not used of them is drawn, too. Raises ValueError for
    no steps, for labels of other requests, and for a pass with more rows than `max_rows`.
    """
    expect_type("steps", steps, Sequence)
    for i, step in enumerate(steps):
        expect_type(f"steps[{i}]", step, Mapping)
        for request_id in step:
            expect_type(f"steps[{i}]: request id {request_id!r}", request_id, int)
    ids = sorted({request_id for step in steps for request_id in step})
    if not ids:
        raise ValueError("steps: must have at least one with a token")
    unknown = [request_id for request_id in labels or {} if request_id not in ids]
    if unknown:
        raise ValueError(f"labels: no step has a token of request {unknown[0]}")
    rows = [len(step) for step in steps]
    if max_rows is not None and max(rows) > max_rows:
        raise ValueError(f"max_rows={max_rows}: steps[{rows.index(max(rows))}] has {max(rows)} rows")
    names = {request_id: (labels or {}).get(request_id, f"request {request_id}") for request_id in ids}

    sheet = Sheet(title, "Which request is computed in which DECODE pass", caption=caption)
    x0 = sheet.left + min(max(text_width(text) for text in [*names.values(), "rows in the pass"]), 220) + 12
    width = min((sheet.right - x0 - 8) / len(steps), 34.0)
    every = next(n for n in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, len(steps)) if n * width >= 22)
    sheet.text(x0 - 8, sheet.y + 6, "decode pass", ha="right", size=SMALL, colour=MUTED)
    for i in range(0, len(steps), every):
        sheet.text(x0 + (i + 0.5) * width, sheet.y + 6, str(i + 1), ha="center", size=TINY, colour=MUTED)
    sheet.y += 16
    edge = "#ffffff" if width > 10 else None
    for place in abridged(len(ids), MOST_ROWS):
        if place is None:
            sheet.text(x0 - 8, sheet.y + 7, "…", ha="right")
            sheet.y += 16
            continue
        request_id = ids[place]
        sheet.text(x0 - 8, sheet.y + HEIGHT / 2, names[request_id], ha="right", width=220)
        for i, step in enumerate(steps):
            if request_id in step:
                name = f"request {request_id} pass {i + 1}"
                sheet.rect(x0 + i * width, sheet.y, width, HEIGHT, request_style(request_id), edge=edge, name=name)
        sheet.line([x0, x0 + len(steps) * width], [sheet.y + HEIGHT + 1.5] * 2, colour=GRID, line=0.3)
        sheet.y += HEIGHT + 3
    _rows(sheet, rows, max_rows, x0, width)
    passes = sum(1 for number in rows if number)
    used = f", {sum(rows)} of {passes * max_rows} possible rows used" if max_rows is not None else ""
    first = {request_id: next(i for i, step in enumerate(steps, 1) if request_id in step) for request_id in ids}
    last = {request_id: max(i for i, step in enumerate(steps, 1) if request_id in step) for request_id in ids}
    spans = ", ".join(f"{names[r]} in passes {first[r]}-{last[r]}" for r in ids[:12])
    more = f" and {len(ids) - 12} more" if len(ids) > 12 else ""
    return sheet.picture(
        f"{count(len(ids), 'request')}, {passes} decode passes with {min(rows)} to {max(rows)} rows, "
        f"{sum(rows) / max(passes, 1):.1f} on average{used}: {spans}{more}."
    )


def _rows(sheet: Sheet, rows: Sequence[int], max_rows: int | None, x0: float, width: float) -> None:
    """The number of rows of each pass as bars, upside on a line; above them what could have been."""
    top, most = sheet.y + 10, max_rows or max(rows)
    unit = min(56 / most, 14.0)
    base = top + most * unit
    sheet.text(x0 - 8, (top + base) / 2, "rows in the pass", ha="right", size=SMALL, colour=MUTED)
    for i, number in enumerate(rows):
        x = x0 + i * width
        if max_rows is not None:
            sheet.rect(x, top, width, (most - number) * unit, ROLES["padding"], name=f"unused pass {i + 1}")
        sheet.rect(x, base - number * unit, width, number * unit, ROLES["in_use"], name=f"rows pass {i + 1}")
        if width >= 14 and number:
            sheet.text(x + width / 2, base - number * unit / 2, str(number), ha="center", size=TINY)
    sheet.line([x0, x0 + len(rows) * width], [base, base], colour=MUTED)
    sheet.y = base + 10
    if max_rows is not None:
        sheet.legend([(ROLES["in_use"], "rows used"), (ROLES["padding"], f"rows not used, of {max_rows}")])

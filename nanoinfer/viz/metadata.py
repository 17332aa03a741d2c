"""input_metadata: the fields of an InputMetadata, over the tokens that they are about, and in words."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields as dataclass_fields
from typing import Unpack

import numpy as np
import torch

from nanoinfer.model.input_metadata import InputMetadata
from nanoinfer.viz.facts import Facts
from nanoinfer.viz.lettering import SMALL, TINY, shortened, text_width
from nanoinfer.viz.palette import INK, MUTED, PLAIN, ROLES
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.sheet import Heading, Look, Sheet
from nanoinfer.viz.words import NO_SLOT, SPACE_NOTE, abridged, count, slots, slots_of_several

TABLE = (
    "req_pool_indices",
    "seq_lens",
    "prefix_lens",
    "extend_seq_lens",
    "start_loc",
    "extend_start_loc",
    "kv_last_page_len",
)
PER_NEW_TOKEN = ("positions", "out_cache_loc", "qo_indptr")
PER_TOKEN = ("kv_indices", "kv_indptr")
ELSEWHERE = (*PER_NEW_TOKEN, *PER_TOKEN, *TABLE, "model_runner")
SINGLE = tuple(field.name for field in dataclass_fields(InputMetadata) if field.name not in ELSEWHERE)
ALL = (*PER_NEW_TOKEN, *PER_TOKEN, *TABLE, *SINGLE)
USUAL = (*PER_NEW_TOKEN, *PER_TOKEN, "req_pool_indices", "seq_lens", "prefix_lens")


GUTTER = 140.0  # where the names of the lines stand
MOST_CELLS = 26  # in a line


def input_metadata(
    metadata: InputMetadata,
    *,
    fields: Sequence[str] | None = None,
    tokens: Sequence[str] | None = None,
    labels: Sequence[str] | None = None,
    **heading: Unpack[Heading],
) -> Picture:
    """Fields by their names: those over the new tokens, those over all tokens, those over requests, and single values.

    `fields`: the ones to draw, in any order; without it the eight that say what is computed, from which slots, and for
    which request; `"all"`: every one of them. Others are folded away, and so are those that are None (but not from "all").
    `tokens`: the texts of all tokens, request after request, [Σ seq_lens]. `labels`: names of the requests, [B]; else they
    are counted from 0. A slot that several requests read has the colours of all of them. Long sequences are drawn from
    both ends, and of more than 8 requests the first 8. Raises ValueError for a field that there is not, and when `tokens`
    or `labels` are not as many.
    """
    m = Facts(metadata, tokens, labels)
    for name in fields or () if fields != "all" else ():
        if name not in ALL:
            raise ValueError(f"fields: {name!r} must be one of {', '.join(ALL)}")
    drawn = {name for name in fields or USUAL if getattr(metadata, name) is not None} if fields != "all" else set(ALL)
    what = {"VERIFY": "the newest token of each sequence and its drafts", "DECODE": "one new token of each sequence"}
    mode = metadata.forward_mode.name
    whose = what.get(mode, "the new tokens of each sequence")
    sheet = Sheet(default_title=f"InputMetadata of one {mode} pass: {whose}", **heading)
    read = {str(i): np.array(m.kv_indices[m.kv_indptr[i] : m.kv_indptr[i + 1]]) for i in range(m.shown)}
    sharers = {slot: [m.style(int(i)) for i in of] for slot, of in slots_of_several(read).items() if slot >= 0}
    entries: list[tuple[Look, str]] = [(m.style(i), m.labels[i]) for i in range(m.shown)]
    if sharers:
        entries.append((next(iter(sharers.values())), "K/V that several requests read"))
    sheet.legend([*entries, (ROLES["new"], "computed in this pass")])
    if any(name in drawn for name in PER_NEW_TOKEN):
        _new_tokens(sheet, m, drawn)
    if any(name in drawn for name in PER_TOKEN):
        sheet.heading(f"All {metadata.total_num_tokens:,} tokens: the slots that attention reads")
        for i in range(m.shown):
            _sequence(sheet, m, i, drawn, sharers)
        if m.shown < m.batch_size:
            sheet.caption(f"… and {count(m.batch_size - m.shown, 'more request')}.")
        sheet.y += 4
    if any(name in drawn for name in TABLE):
        _per_request(sheet, m, [name for name in TABLE if name in drawn])
    if any(name in drawn for name in SINGLE):
        _single_values(sheet, m, [name for name in SINGLE if name in drawn])
    if m.tokens is not None and any("·" in token for token in m.tokens):
        sheet.caption(SPACE_NOTE, size=TINY)
    return sheet.picture(_in_words(m, drawn, sharers))


def _single(of: InputMetadata, name: str) -> str:
    """A field of the whole pass as text: of a tensor its shape, of an object its class."""
    value = getattr(of, name)
    if isinstance(value, torch.Tensor):
        return str([*value.shape])
    return str(value) if value is None or isinstance(value, int | str) else type(value).__name__


def _in_words(m: Facts, drawn: Collection[str], sharers: Collection[int]) -> str:
    parts = list[str]()
    first = ("req_pool_indices", "seq_lens", "prefix_lens")
    for name in dict.fromkeys((*first, *PER_NEW_TOKEN, *TABLE, *PER_TOKEN, *SINGLE)):
        value = getattr(m.of, name)
        if name not in drawn or name in ("forward_mode", "batch_size", "total_num_tokens"):
            continue
        if name == "kv_indices":
            parts.append(f"kv_indices in {slots([slot for slot in m.kv_indices if slot >= 0], 8)}")
        elif name in SINGLE or value is None:
            parts.append(f"{name}={_single(m.of, name)}")
        else:
            shown = ["…" if i is None else str(int(value[i])) for i in abridged(len(value), 16)]
            parts.append(f"{name}=[{', '.join(shown)}]")
    if sharers:
        parts.append(f"several requests read {slots(sorted(sharers), 8)}")
    folded = len(set(ALL) - set(drawn))
    others = f"; {count(folded, 'other field')} not drawn" if folded else ""
    new = f"{count(m.num_new, 'new token')} of {m.of.total_num_tokens:,} in all"
    return f"{m.of.forward_mode.name} of {count(m.batch_size, 'request')}, {new}; {'; '.join(parts)}{others}."


def _line(
    sheet: Sheet,
    name: str,
    shape: str,
    x0: float,
    width: float,
    cells: Sequence[tuple[Look | None, str, str]],
) -> None:
    """A line of cells (look, text, name) with its name left of it, bold where it has a shape and so is a field. None for a
    look: a small number that is no field."""
    faint = all(look is None for look, _, _ in cells)
    weight, colour = ("bold", INK) if shape else ("normal", MUTED)
    sheet.text(sheet.left, sheet.y + 9, name, size=SMALL, weight=weight, colour=colour, width=GUTTER - 8)
    if shape:
        sheet.text(sheet.left + GUTTER - 14, sheet.y + 9, shape, size=TINY, colour=MUTED, ha="right")
    for c, (look, text, called) in enumerate(cells):
        if look is None:
            sheet.text(x0 + (c + 0.5) * width, sheet.y + 8, text, size=TINY, colour=MUTED, ha="center")
        else:
            fitting = text if text_width(text, SMALL) <= width - 3 else shortened(text, width - 3, TINY)
            sheet.cell(x0 + c * width, sheet.y, width, 20, look, fitting, edge="#8a8a8a", name=called)
    sheet.y += 16 if faint else 22


def _new_tokens(sheet: Sheet, m: Facts, drawn: Collection[str]) -> None:
    """[T] fields: a column per new token, requests side by side, from both ends where they are many."""
    order = ", one after the other" if m.num_new > 1 else ""
    sheet.heading(f"T = {count(m.num_new, 'new token')}{order}: what the model is given")
    share = MOST_CELLS if m.num_new <= MOST_CELLS else max(3, MOST_CELLS // m.shown)
    columns = [(i, j) for i in range(m.shown) for j in abridged(m.new_lens[i], share)]
    x0 = sheet.left + GUTTER
    room = sheet.right - x0 - (100 if m.shown < m.batch_size else 14)
    width, top = min(room / max(len(columns), 14), 44), sheet.y

    def line(name: str, shape: str, value: Callable[[int, int], str], look: Callable[[int], Look | None]) -> None:
        texts = [
            (look(i), "…" if j is None else value(i, j), None if j is None else m.qo_indptr[i] + j) for i, j in columns
        ]
        _line(sheet, name, shape, x0, width, [(style, text, f"{name} {index}") for style, text, index in texts])

    if m.tokens is not None:
        line("token", "", lambda i, j: m.token(i, m.prefixes[i] + j), m.style)
    line("index in the pass", "", lambda i, j: str(m.qo_indptr[i] + j), lambda i: None)
    if "positions" in drawn:
        look = m.style if m.tokens is None else lambda i: PLAIN
        line("positions", "[T]", lambda i, j: str(m.positions[m.qo_indptr[i] + j]), look)
    if "out_cache_loc" in drawn:
        line("out_cache_loc", "[T]", lambda i, j: str(m.out_cache_loc[m.qo_indptr[i] + j]), lambda i: ROLES["new"])
    if m.shown < m.batch_size:
        more = f"… {m.batch_size - m.shown} more requests"
        sheet.text(x0 + len(columns) * width + 8, sheet.y - 20, more, size=TINY, colour=MUTED)
    if "qo_indptr" in drawn:
        borders = [c for c in range(len(columns)) if c == 0 or columns[c][0] != columns[c - 1][0]] + [len(columns)]
        pointers = dict(zip(borders, m.qo_indptr, strict=False))
        _pointers(sheet, "qo_indptr", {x0 + c * width: value for c, value in pointers.items()}, top)
    sheet.y += 12


def _pointers(sheet: Sheet, name: str, values: Mapping[float, int], top: float) -> None:
    """Borders between requests, with the values of a row pointer under them."""
    _line(sheet, name, "[B+1]", 0, 0, ())
    sheet.y -= 16
    for x, value in values.items():
        sheet.line([x, x], [top - 3, sheet.y + 2], colour=INK, line=1.4)
        sheet.text(x, sheet.y + 9, str(value), size=SMALL, weight="bold", ha="center")
    sheet.y += 24


def _sequence(sheet: Sheet, m: Facts, i: int, drawn: Collection[str], sharers: Mapping[int, Look]) -> None:
    """[Σ seq_lens] fields of one request: a column per token, prefix and new apart, from both ends where they are many."""
    prefix, new = m.prefixes[i], m.new_lens[i]
    columns: list[int | None] = list(range(prefix + new))
    if prefix + new > MOST_CELLS:
        share = max(min(4, prefix), min(prefix, MOST_CELLS - min(new, MOST_CELLS // 2)))
        columns = abridged(prefix, share)
        columns += [None if j is None else prefix + j for j in abridged(new, MOST_CELLS - share)]
    x0, top = sheet.left + GUTTER, sheet.y
    width = min((sheet.right - x0 - 14) / max(len(columns), 14), 44)
    end = x0 + len(columns) * width
    sheet.text(sheet.left, sheet.y + 6, m.labels[i], size=SMALL, width=GUTTER - 8)
    sheet.rect(x0, sheet.y, len(columns) * width, 12, m.style(i), name=f"request {i}")
    sheet.y += 12
    if m.tokens is not None:
        texts = ["…" if p is None else m.token(i, p) for p in columns]
        cells = [(PLAIN, text, f"token {i} {p}") for text, p in zip(texts, columns, strict=True)]
        _line(sheet, "token", "", x0, width, cells)
    _line(sheet, "position in sequence", "", x0, width, [(None, "…" if p is None else str(p), "") for p in columns])
    if "kv_indices" in drawn:
        line = list[tuple[Look | None, str, str]]()
        for c, p in enumerate(columns):
            slot = None if p is None else m.kv_indices[m.kv_indptr[i] + p]
            look: Look = ROLES["new"]
            if next(q for q in columns[c::-1] if q is not None) < prefix:
                look = m.style(i) if slot is None else sharers.get(slot, m.style(i))
            look = ROLES["leftover"] if slot == -1 else look
            line.append((look, "…" if slot is None else NO_SLOT if slot == -1 else str(slot), f"kv_indices {i} {p}"))
        _line(sheet, "kv_indices", "[Σ seq_lens]", x0, width, line)
    if "kv_indptr" in drawn:
        start_loc = f"start_loc[{i}] = " if "start_loc" in drawn else ""
        begin = f"kv_indptr[{i}] = {start_loc}{m.kv_indptr[i]}"  # the pointer that ends one sequence begins the next
        sheet.text(x0 + 14 if end - x0 > 200 else end + 20, sheet.y + 9, begin, size=TINY, colour=MUTED)
        _pointers(sheet, "kv_indptr", {x0: m.kv_indptr[i], end: m.kv_indptr[i + 1]}, top)
    sheet.y += 2 if "kv_indptr" in drawn else 8


def _per_request(sheet: Sheet, m: Facts, names: Sequence[str]) -> None:
    """[B] fields as a table."""
    sheet.heading(f"B = {count(m.batch_size, 'request')}: one number for each")
    x0 = sheet.left + 76
    width = min((sheet.right - x0) / len(names), 130)
    for c, name in enumerate(names):
        sheet.text(x0 + (c + 0.5) * width, sheet.y + 8, name, size=SMALL, weight="bold", ha="center")
    sheet.y += 18
    for i in range(m.shown):
        sheet.rect(sheet.left, sheet.y + 2, 12, 14, m.style(i))
        sheet.text(sheet.left + 16, sheet.y + 9, m.labels[i], size=TINY, width=58)
        for c, name in enumerate(names):
            values = getattr(m.of, name)
            label = "None" if values is None else str(int(values[i]))
            sheet.cell(x0 + c * width + 2, sheet.y, width - 4, 18, PLAIN, label, edge="#b8b8b8", name=f"{name} {i}")
        sheet.y += 20
    sheet.y += 8


def _single_values(sheet: Sheet, m: Facts, names: Sequence[str]) -> None:
    """The fields that are one number, and the objects, in three columns."""
    sheet.heading("One value for the whole pass")
    lines = -(-len(names) // 3)
    for i, name in enumerate(names):
        column, line = divmod(i, lines)
        x, y = sheet.left + column * 293, sheet.y + 17 * line + 8
        width = sheet.text(x, y, name, size=SMALL, weight="bold")
        sheet.text(x + width + 8, y, _single(m.of, name), size=SMALL, width=285 - width - 8)
    sheet.y += 17 * lines + 6

"""input_metadata: the fields of an InputMetadata, over the tokens that they are about, and in words."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields as dataclass_fields

import numpy as np
import torch

from nanoinfer.model.input_metadata import InputMetadata
from nanoinfer.viz.facts import Facts
from nanoinfer.viz.lettering import SMALL, TINY, shortened, text_width
from nanoinfer.viz.palette import INK, MUTED, ROLES, Style
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.sheet import Look, Sheet
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


def drawn_fields(m: Facts, fields: Sequence[str] | None) -> set[str]:
    """The fields to draw."""
    if fields == "all":
        return set(ALL)
    for name in fields or ():
        if name not in ALL:
            raise ValueError(f"fields: {name!r} must be one of {', '.join(ALL)}")
    return {name for name in fields or USUAL if getattr(m.of, name) is not None}


def sharers_of(m: Facts) -> dict[int, list[int]]:
    """Slot → the requests that read K/V from it, for slots that more than one of those drawn reads."""
    read = {str(i): np.array(m.kv_indices[m.kv_indptr[i] : m.kv_indptr[i + 1]]) for i in range(m.shown)}
    return {slot: list(map(int, of)) for slot, of in slots_of_several(read).items() if slot >= 0}


def single_value(of: InputMetadata, name: str) -> str:
    """A field of the whole pass as text: of a tensor its shape, of an object its class."""
    value = getattr(of, name)
    if isinstance(value, torch.Tensor):
        return str([*value.shape])
    return str(value) if value is None or isinstance(value, int | str) else type(value).__name__


def in_words(m: Facts, drawn: Collection[str], sharers: Mapping[int, object]) -> str:
    of, parts = m.of, list[str]()
    for name in dict.fromkeys(
        ("req_pool_indices", "seq_lens", "prefix_lens", *PER_NEW_TOKEN, *TABLE, *PER_TOKEN, *SINGLE)
    ):
        value = getattr(of, name)
        if name not in drawn or name in ("forward_mode", "batch_size", "total_num_tokens"):
            continue
        if name == "kv_indices":
            stored = [slot for slot in m.kv_indices if slot >= 0]
            parts.append(f"kv_indices in {slots(stored, 8)}")
        elif name in SINGLE:
            parts.append(f"{name}={single_value(of, name)}")
        else:
            parts.append(f"{name}={None if value is None else short(value.tolist())}")
    if sharers:
        parts.append(f"several requests read {slots(sorted(sharers), 8)}")
    folded = len(set(ALL) - set(drawn))
    others = f"; {count(folded, 'other field')} not drawn" if folded else ""
    new = f"{count(m.num_new, 'new token')} of {of.total_num_tokens:,} in all"
    return f"{of.forward_mode.name} of {count(m.batch_size, 'request')}, {new}; {'; '.join(parts)}{others}."


def short(values: list[int]) -> str:
    return "[" + ", ".join("…" if i is None else str(values[i]) for i in abridged(len(values), 16)) + "]"


GUTTER = 140.0  # where the names of the lines stand
MOST_CELLS = 26  # in a line
LARGE = 3  # more requests are drawn with less around each


def input_metadata(
    metadata: InputMetadata,
    *,
    fields: Sequence[str] | None = None,
    tokens: Sequence[str] | None = None,
    labels: Sequence[str] | None = None,
    title: str | None = None,
    caption: str | None = None,
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
    drawn = drawn_fields(m, fields)
    what = {"VERIFY": "the newest token of each sequence and its drafts", "DECODE": "one new token of each sequence"}
    mode = metadata.forward_mode.name
    whose = what.get(mode, "the new tokens of each sequence")
    sheet = Sheet(title, f"InputMetadata of one {mode} pass: {whose}", caption=caption)
    sharers = sharers_of(m)
    entries: list[tuple[Look, str]] = [(m.style(i), m.labels[i]) for i in range(m.shown)]
    if sharers:
        first = [m.style(i) for i in next(iter(sharers.values()))]
        entries.append((first, "K/V that several requests read"))
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
    return sheet.picture(in_words(m, drawn, sharers))


def _name(sheet: Sheet, name: str, shape: str = "", field: bool = True, indent: float = 0) -> None:
    """The name of a line of cells, left of it; names of fields are bold."""
    weight, colour = ("bold", INK) if field else ("normal", MUTED)
    sheet.text(sheet.left + indent, sheet.y + 9, name, size=SMALL, weight=weight, colour=colour, width=GUTTER - 8)
    if shape:
        sheet.text(sheet.left + GUTTER - 14, sheet.y + 9, shape, size=TINY, colour=MUTED, ha="right")


def _value(sheet: Sheet, x: float, width: float, look: Look, label: str, name: str) -> None:
    """A cell with its number; a text too wide for its cell is set smaller, then shortened."""
    height = 20.0
    if not isinstance(look, Style):
        sheet.shared_cell(x, sheet.y, width, height, look, label, edge="#8a8a8a", name=name)
        return
    style = look._replace(text=INK) if look is ROLES["free"] else look
    size = SMALL if text_width(label, SMALL) <= width - 3 else TINY
    fitting = label if size == SMALL else shortened(label, width - 3, TINY)
    sheet.cell(x, sheet.y, width, height, style, fitting, size=size, edge="#8a8a8a", name=name)


def _faint(sheet: Sheet, x0: float, width: float, labels: Sequence[str]) -> None:
    """A line of small numbers that are no field."""
    for c, label in enumerate(labels):
        sheet.text(x0 + (c + 0.5) * width, sheet.y + 8, label, size=TINY, colour=MUTED, ha="center")
    sheet.y += 16


def _new_tokens(sheet: Sheet, m: Facts, drawn: Collection[str]) -> None:
    """[T] fields: a column per new token, requests side by side, from both ends where they are many."""
    order = ", one after the other" if m.num_new > 1 else ""
    sheet.heading(f"T = {count(m.num_new, 'new token')}{order}: what the model is given")
    share = MOST_CELLS if m.num_new <= MOST_CELLS else max(3, MOST_CELLS // m.shown)
    columns = [(i, j) for i in range(m.shown) for j in abridged(m.new_lens[i], share)]
    x0 = sheet.left + GUTTER
    room = sheet.right - x0 - (100 if m.shown < m.batch_size else 14)
    width, top = min(room / max(len(columns), 14), 44), sheet.y

    def line(value: Callable[[int, int], str]) -> list[str]:
        return ["…" if j is None else value(i, j) for i, j in columns]

    if m.tokens is not None:
        _name(sheet, "token", field=False)
        for c, text in enumerate(line(lambda i, j: m.token(i, m.prefixes[i] + j))):
            _value(sheet, x0 + c * width, width, m.style(columns[c][0]), text, f"new token {c}")
        sheet.y += 22
    _name(sheet, "index in the pass", field=False)
    _faint(sheet, x0, width, line(lambda i, j: str(m.qo_indptr[i] + j)))
    for name, values, style in (
        ("positions", m.positions, ROLES["free"]),
        ("out_cache_loc", m.out_cache_loc, ROLES["new"]),
    ):
        if name not in drawn:
            continue
        _name(sheet, name, "[T]")
        for c, (i, j) in enumerate(columns):
            index = None if j is None else m.qo_indptr[i] + j
            look = m.style(i) if name == "positions" and m.tokens is None else style
            _value(sheet, x0 + c * width, width, look, "…" if index is None else str(values[index]), f"{name} {index}")
        sheet.y += 22
    if "qo_indptr" in drawn:
        _name(sheet, "qo_indptr", "[B+1]")
        borders = [c for c in range(len(columns)) if c == 0 or columns[c][0] != columns[c - 1][0]] + [len(columns)]
        for value, border in zip(m.qo_indptr, borders, strict=False):
            _pointer(sheet, x0 + border * width, top, value)
    if m.shown < m.batch_size:
        more = f"… {m.batch_size - m.shown} more requests"
        sheet.text(x0 + len(columns) * width + 8, sheet.y - 20, more, size=TINY, colour=MUTED)
    sheet.y += 28 if "qo_indptr" in drawn else 12


def _pointer(sheet: Sheet, x: float, top: float, value: int) -> None:
    """A border between requests with the row pointer's value under it."""
    sheet.line([x, x], [top - 3, sheet.y + 2], colour=INK, line=1.4)
    sheet.text(x, sheet.y + 9, str(value), size=SMALL, weight="bold", ha="center")


def _sequence(sheet: Sheet, m: Facts, i: int, drawn: Collection[str], sharers: Mapping[int, Sequence[int]]) -> None:
    """[Σ seq_lens] fields of one request: a column per token, prefix and new apart, from both ends where they are many."""
    prefix, new = m.prefixes[i], m.new_lens[i]
    columns: list[int | None] = list(range(prefix + new))
    if prefix + new > MOST_CELLS:
        share = max(min(4, prefix), min(prefix, MOST_CELLS - min(new, MOST_CELLS // 2)))
        columns = abridged(prefix, share)
        columns += [None if j is None else prefix + j for j in abridged(new, MOST_CELLS - share)]
    x0, top, large = sheet.left + GUTTER, sheet.y, m.shown <= LARGE
    width = min((sheet.right - x0 - 14) / max(len(columns), 14), 44)
    end, band = x0 + len(columns) * width, 5.0
    said = {"req_pool_indices": m.rows[i], "seq_lens": m.seq_lens[i]}
    said |= {"prefix_lens": prefix, "extend_seq_lens": new} if m.extend else {}
    line = f"{m.labels[i]}: " + ", ".join(f"{name}[{i}] = {value}" for name, value in said.items() if name in drawn)
    if large:
        sheet.text(x0 + 3, sheet.y + 6, line.removesuffix(": "), size=TINY, width=sheet.right - x0 - 10)
        sheet.y += 14
        top = sheet.y
    else:
        sheet.text(sheet.left, sheet.y + band + 9, m.labels[i], size=SMALL, width=62)
    sheet.rect(x0, sheet.y, len(columns) * width, band, m.style(i), name=f"request {i}")
    sheet.y += band
    if m.tokens is not None:
        if large:
            _name(sheet, "token", field=False)
        for c, p in enumerate(columns):
            _value(sheet, x0 + c * width, width, ROLES["free"], "…" if p is None else m.token(i, p), f"token {i} {p}")
        sheet.y += 20
    if large:
        _name(sheet, "position in sequence", field=False)
        _faint(sheet, x0, width, ["…" if p is None else str(p) for p in columns])
    if "kv_indices" in drawn:
        _name(sheet, "kv_indices", "[Σ seq_lens]" if large and not i else "", indent=0 if large else 66)
        for c, p in enumerate(columns):
            in_prefix = next(q for q in columns[c::-1] if q is not None) < prefix
            look: Look = m.style(i) if in_prefix else ROLES["new"]
            slot = None if p is None else m.kv_indices[m.kv_indptr[i] + p]
            if in_prefix and slot is not None and slot in sharers:
                look = [m.style(other) for other in sharers[slot]]
            if slot == -1:
                look = ROLES["leftover"]
            label = "…" if slot is None else NO_SLOT if slot == -1 else str(slot)
            _value(sheet, x0 + c * width, width, look, label, f"kv_indices {i} {p}")
        sheet.y += 22
    if "kv_indptr" in drawn:
        _name(sheet, "kv_indptr", "[B+1]" if large and not i else "", indent=0 if large else 66)
        _pointer(sheet, x0, top, m.kv_indptr[i])
        _pointer(sheet, end, top, m.kv_indptr[i + 1])
        start_loc = f"start_loc[{i}] = " if "start_loc" in drawn else ""
        begin = f"kv_indptr[{i}] = {start_loc}{m.kv_indptr[i]}"  # the pointer that ends one sequence begins the next
        beside = x0 + 14 if end - x0 > 200 else end + 20
        sheet.text(beside, sheet.y + 9, begin, size=TINY, colour=MUTED)
        sheet.y += 24
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
            style = ROLES["free"]._replace(text=MUTED if values is None else INK)
            sheet.cell(x0 + c * width + 2, sheet.y, width - 4, 18, style, label, edge="#b8b8b8", name=f"{name} {i}")
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
        sheet.text(x + width + 8, y, single_value(m.of, name), size=SMALL, width=285 - width - 8)
    sheet.y += 17 * lines + 6

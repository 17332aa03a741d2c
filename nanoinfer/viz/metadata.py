"""input_metadata: every field of an InputMetadata, over the tokens it is about."""

from collections.abc import Callable, Sequence

from nanoinfer.model.input_metadata import InputMetadata
from nanoinfer.viz.facts import Facts
from nanoinfer.viz.palette import INK, MUTED, ROLES, Style
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.sheet import SMALL, TINY, Sheet
from nanoinfer.viz.words import SPACE_NOTE, abridged, count, runs

GUTTER = 140.0  # where the names of the lines stand
MOST_CELLS = 26  # in a line
LARGE = 3  # more requests are drawn with less around each
TABLE = (
    "req_pool_indices",
    "seq_lens",
    "prefix_lens",
    "extend_seq_lens",
    "start_loc",
    "extend_start_loc",
    "kv_last_page_len",
)


def input_metadata(
    metadata: InputMetadata,
    *,
    tokens: Sequence[str] | None = None,
    labels: Sequence[str] | None = None,
    title: str | None = None,
) -> Picture:
    """Every field by its name: those over the tokens of the pass, those over all tokens, those over requests, and numbers.

    `tokens`: the texts of all tokens, request after request, [Σ seq_lens]. `labels`: names of the requests, [B]; else they
    are counted from 0. Long sequences are drawn from both ends, and of more than 8 requests the first 8. Raises ValueError
    when `tokens` or `labels` are not as many.
    """
    m = Facts(metadata, tokens, labels)
    what = "the new tokens of each sequence" if m.extend else "one new token of each sequence"
    sheet = Sheet(title, f"InputMetadata of one {metadata.forward_mode.name} pass: {what}")
    there = "K/V is there already (prefix)" if m.extend else "K/V is there already"
    entries = [(ROLES["tree"], there), (ROLES["new"], "new: computed in this pass")]
    sheet.legend([*entries, *[(m.style(i), m.labels[i]) for i in range(m.shown)]])
    _new_tokens(sheet, m)
    sheet.heading(f"All {metadata.total_num_tokens:,} tokens: the slots that attention reads")
    for i in range(m.shown):
        _sequence(sheet, m, i)
    if m.shown < m.batch_size:
        sheet.caption(f"… and {count(m.batch_size - m.shown, 'more request')}.")
    sheet.y += 4
    _per_request(sheet, m)
    _single_values(sheet, m)
    return sheet.picture(_alt(m))


def _name(sheet: Sheet, name: str, shape: str = "", field: bool = True, indent: float = 0) -> None:
    """The name of a line of cells, left of it; names of fields are bold."""
    weight, colour = ("bold", INK) if field else ("normal", MUTED)
    sheet.text(sheet.left + indent, sheet.y + 9, name, size=SMALL, weight=weight, colour=colour, width=GUTTER - 8)
    if shape:
        sheet.text(sheet.left + GUTTER - 14, sheet.y + 9, shape, size=TINY, colour=MUTED, ha="right")


def _value(sheet: Sheet, x: float, width: float, style: Style, label: str, name: str) -> None:
    """A cell with its number; a text too wide for its cell is set smaller, then shortened."""
    if style is ROLES["free"]:
        style = style._replace(text=INK)
    if not sheet.cell(x, sheet.y, width, 18, style, label, edge="#8a8a8a", name=name) and label:
        behind = style.face if style.hatch else None
        middle = sheet.y + 9
        sheet.text(
            x + width / 2, middle, label, size=TINY, colour=style.text, ha="center", width=width - 2, behind=behind
        )


def _faint(sheet: Sheet, x0: float, width: float, labels: Sequence[str]) -> None:
    """A line of small numbers that are no field."""
    for c, label in enumerate(labels):
        sheet.text(x0 + (c + 0.5) * width, sheet.y + 8, label, size=TINY, colour=MUTED, ha="center")
    sheet.y += 16


def _new_tokens(sheet: Sheet, m: Facts) -> None:
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
        sheet.y += 20
    _name(sheet, "index in the pass", field=False)
    _faint(sheet, x0, width, line(lambda i, j: str(m.qo_indptr[i] + j)))
    for name, values, style in (
        ("positions", m.positions, ROLES["free"]),
        ("out_cache_loc", m.out_cache_loc, ROLES["new"]),
    ):
        _name(sheet, name, "[T]")
        for c, (i, j) in enumerate(columns):
            index = None if j is None else m.qo_indptr[i] + j
            look = m.style(i) if name == "positions" and m.tokens is None else style
            _value(sheet, x0 + c * width, width, look, "…" if index is None else str(values[index]), f"{name} {index}")
        sheet.y += 20
    _name(sheet, "qo_indptr", "[B+1]")
    borders = [c for c in range(len(columns)) if c == 0 or columns[c][0] != columns[c - 1][0]] + [len(columns)]
    for value, border in zip(m.qo_indptr, borders, strict=False):
        _pointer(sheet, x0 + border * width, top, value)
    if m.shown < m.batch_size:
        more = f"… {m.batch_size - m.shown} more requests"
        sheet.text(x0 + len(columns) * width + 8, sheet.y - 20, more, size=TINY, colour=MUTED)
    sheet.y += 28


def _pointer(sheet: Sheet, x: float, top: float, value: int) -> None:
    """A border between requests with the row pointer's value under it."""
    sheet.line([x, x], [top - 3, sheet.y + 2], colour=INK, line=1.4)
    sheet.text(x, sheet.y + 9, str(value), size=SMALL, weight="bold", ha="center")


def _sequence(sheet: Sheet, m: Facts, i: int) -> None:
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
    line = f"{m.labels[i]}: req_pool_indices[{i}] = {m.rows[i]}, seq_lens[{i}] = {m.seq_lens[i]}"
    if large and m.extend:
        line += f", prefix_lens[{i}] = {prefix}, extend_seq_lens[{i}] = {new}"
    if large:
        sheet.text(x0 + 3, sheet.y + 6, line, size=TINY, width=sheet.right - x0 - 10)
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
        sheet.y += 18
    if large:
        _name(sheet, "position in sequence", field=False)
        _faint(sheet, x0, width, ["…" if p is None else str(p) for p in columns])
    _name(sheet, "kv_indices", "[Σ seq_lens]" if large and not i else "", indent=0 if large else 66)
    for c, p in enumerate(columns):
        in_prefix = next(q for q in columns[c::-1] if q is not None) < prefix
        label = "…" if p is None else str(m.kv_indices[m.kv_indptr[i] + p])
        look = ROLES["tree" if in_prefix else "new"]
        _value(sheet, x0 + c * width, width, look, label, f"kv_indices {i} {p}")
    sheet.y += 20
    _name(sheet, "kv_indptr", "[B+1]" if large and not i else "", indent=0 if large else 66)
    _pointer(sheet, x0, top, m.kv_indptr[i])
    _pointer(sheet, end, top, m.kv_indptr[i + 1])
    begin = f"kv_indptr[{i}] = start_loc[{i}] = {m.kv_indptr[i]}"  # the pointer that ends one sequence begins the next
    beside = x0 + 14 if end - x0 > 200 else end + 20
    sheet.text(beside, sheet.y + 9, begin, size=TINY, colour=MUTED)
    sheet.y += 24


def _per_request(sheet: Sheet, m: Facts) -> None:
    """[B] fields as a table."""
    sheet.heading(f"B = {count(m.batch_size, 'request')}: a number each")
    x0 = sheet.left + 76
    width = (sheet.right - x0) / len(TABLE)
    for c, name in enumerate(TABLE):
        sheet.text(x0 + (c + 0.5) * width, sheet.y + 8, name, size=SMALL, weight="bold", ha="center")
    sheet.y += 18
    for i in range(m.shown):
        sheet.rect(sheet.left, sheet.y + 2, 12, 14, m.style(i))
        sheet.text(sheet.left + 16, sheet.y + 9, m.labels[i], size=TINY, width=58)
        for c, name in enumerate(TABLE):
            values = getattr(m.of, name)
            label = "None" if values is None else str(int(values[i]))
            style = ROLES["free"]._replace(text=MUTED if values is None else INK)
            sheet.cell(x0 + c * width + 2, sheet.y, width - 4, 18, style, label, edge="#b8b8b8", name=f"{name} {i}")
        sheet.y += 20
    sheet.y += 8


def _single_values(sheet: Sheet, m: Facts) -> None:
    """The fields that are one number, and the objects, in three columns."""
    sheet.heading("One for the whole pass")
    of, entries = m.of, list[tuple[str, str]]()
    for name in ("forward_mode", "batch_size", "total_num_tokens", "max_seq_len", "max_extend_len", "other_kv_index"):
        entries.append((name, of.forward_mode.name if name == "forward_mode" else str(getattr(of, name))))
    for name in ("out_cache_cont_start", "out_cache_cont_end", "return_normalized_logprob"):
        entries.append((name, str(getattr(of, name))))
    rows, slots = of.req_to_token_pool, of.token_to_kv_pool
    entries += [
        ("req_to_token_pool", f"{rows.size:,} rows × {rows.max_context_len:,}"),
        ("token_to_kv_pool", f"{slots.size:,} slots, page_size={slots.page_size}"),
        ("logit_rows", "None" if of.logit_rows is None else _short(of.logit_rows.tolist())),
        ("attention_mask", "None" if of.attention_mask is None else str(list(of.attention_mask.shape))),
        ("attention_backend", "None" if of.attention_backend is None else "the model runner's"),
        ("attention_plan", "None" if of.attention_plan is None else "the backend's"),
    ]
    lines = -(-len(entries) // 3)
    for i, (name, value) in enumerate(entries):
        column, line = divmod(i, lines)
        x, y = sheet.left + column * 293, sheet.y + 17 * line + 8
        width = sheet.text(x, y, name, size=SMALL, weight="bold")
        sheet.text(x + width + 8, y, value, size=SMALL, width=285 - width - 8)
    sheet.y += 17 * lines + 6
    if m.tokens is not None and any("·" in token for token in m.tokens):
        sheet.caption(SPACE_NOTE, size=TINY)


def _alt(m: Facts) -> str:
    of = m.of
    all_of_them = {
        "req_pool_indices": m.rows,
        "seq_lens": m.seq_lens,
        "prefix_lens": m.prefixes if m.extend else None,
        "positions": m.positions,
        "out_cache_loc": m.out_cache_loc,
        "start_loc": m.kv_indptr[:-1],
        "qo_indptr": m.qo_indptr,
        "kv_indptr": m.kv_indptr,
        "kv_last_page_len": of.kv_last_page_len.tolist(),
    }
    parts = [f"{name}={None if values is None else _short(values)}" for name, values in all_of_them.items()]
    parts.insert(-1, f"kv_indices in slots {runs(m.kv_indices, 8)}")
    if of.other_kv_index is not None:
        parts.append(f"other_kv_index={of.other_kv_index}")
    new = f"{count(m.num_new, 'new token')} of {of.total_num_tokens:,} in all"
    return f"{of.forward_mode.name} of {count(m.batch_size, 'request')}, {new}; {'; '.join(parts)}."


def _short(values: list[int]) -> str:
    return "[" + ", ".join("…" if i is None else str(values[i]) for i in abridged(len(values), 16)) + "]"

"""input_metadata: every field of an InputMetadata, over the tokens it is about."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from nanoinfer.engine import Engine
from nanoinfer.input_metadata import ForwardMode, InputMetadata
from nanoinfer.viz.palette import INK, MUTED, ROLES, Style, request_style
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.sheet import SMALL, TINY, Sheet
from nanoinfer.viz.words import abridged, count, expect_type, runs, visible

MOST_REQUESTS = 8
GUTTER = 140.0


def last_input_metadata(engine: Engine) -> InputMetadata:
    """The InputMetadata of the engine's last pass, made again from `engine.last_batch`. ValueError when there is none.

    Made from the rows as they are now: where the tree had a token's K/V already, the row names the tree's slot by now.
    """
    expect_type("engine", engine, Engine)
    batch = engine.last_batch
    if batch is None:
        raise ValueError("engine.last_batch=None: the last step made no pass; take a step with something to do")
    return InputMetadata.create(
        engine.model_runner,
        engine.model_runner.tp_size,
        batch.forward_mode,
        batch.req_pool_indices,
        batch.seq_lens,
        batch.prefix_lens,
        batch.out_cache_loc,
        batch.out_cache_cont_start,
        batch.out_cache_cont_end,
        batch.return_normalized_logprob,
    )


def input_metadata(
    metadata: InputMetadata, *, tokens: Sequence[str] | None = None, title: str | None = None
) -> Picture:
    """Every field by its name: those over the tokens of the pass, those over all tokens, those over requests, and numbers.

    `tokens`: the texts of all tokens, request after request, [Σ seq_lens]. Long sequences are drawn from both ends, and of
    more than 8 requests the first 8. Raises ValueError when `tokens` are not as many.
    """
    expect_type("metadata", metadata, InputMetadata)
    m = Facts(metadata, tokens)
    what = "the new tokens of each sequence" if m.extend else "one new token of each sequence"
    sheet = Sheet(title, f"InputMetadata of one {metadata.forward_mode.name} pass: {what}")
    entries = [(ROLES["tree"], "K/V is there already (prefix)"), (ROLES["new"], "new: computed in this pass")]
    sheet.legend([*entries, *[(request_style(i), f"request {i}") for i in range(m.shown)]])
    _new_tokens(sheet, m)
    _all_tokens(sheet, m)
    _per_request(sheet, m)
    _scalars(sheet, m)
    return sheet.picture(_alt(m))


class Facts:
    """The fields as plain lists and numbers. Request i: its place in the batch."""

    def __init__(self, metadata: InputMetadata, tokens: Sequence[str] | None = None):
        self.of, self.extend = metadata, metadata.forward_mode is ForwardMode.EXTEND
        self.batch_size, self.shown = metadata.batch_size, min(metadata.batch_size, MOST_REQUESTS)
        self.rows: list[int] = metadata.req_pool_indices.tolist()
        self.seq_lens: list[int] = metadata.seq_lens.tolist()
        self.kv_indptr: list[int] = metadata.kv_indptr.tolist()
        self.qo_indptr: list[int] = metadata.qo_indptr.tolist()
        self.kv_indices: list[int] = metadata.kv_indices.tolist()
        self.out_cache_loc: list[int] = metadata.out_cache_loc.tolist()
        self.positions: list[int] = metadata.positions.tolist()
        self.new_lens = np.diff(self.qo_indptr).tolist()
        self.prefixes = [seq - new for seq, new in zip(self.seq_lens, self.new_lens, strict=True)]
        self.num_new = self.qo_indptr[-1]
        if tokens is not None and (isinstance(tokens, str) or len(tokens) != metadata.total_num_tokens):
            raise ValueError(
                f"tokens: {len(tokens)} texts for total_num_tokens={metadata.total_num_tokens}; must be as many"
            )
        self.tokens = None if tokens is None else [visible(str(token)) for token in tokens]

    def token(self, request: int, position: int) -> str:
        return "" if self.tokens is None else self.tokens[self.kv_indptr[request] + position]


def _line(sheet: Sheet, name: str, shape: str = "", strong: bool = True) -> None:
    """The name of a line of cells, left of it."""
    sheet.text(
        sheet.left,
        sheet.y + 9,
        name,
        size=SMALL,
        weight="bold" if strong else "normal",
        colour=INK if strong else MUTED,
    )
    if shape:
        sheet.text(sheet.left + GUTTER - 6, sheet.y + 9, shape, size=TINY, colour=MUTED, ha="right")


def _new_tokens(sheet: Sheet, m: Facts) -> None:
    """[T] fields: one column a new token, requests side by side; as many columns as fit."""
    sheet.heading(f"The T = {m.num_new} new tokens, flat: what the model is given")
    per_request = max(3, 27 // m.shown)
    columns: list[tuple[int, int | None]] = []  # request, index in it
    for i in range(m.shown):
        columns += [(i, j) for j in abridged(m.new_lens[i], per_request if m.num_new > 27 else 27)]
    x0 = sheet.left + GUTTER
    width = min((sheet.right - x0 - 14) / max(len(columns), 14), 44)
    top = sheet.y
    lines: list[tuple[str, str, Any]] = [
        ("token", "[T]", lambda i, j: m.token(i, m.prefixes[i] + j)),
        ("index in the batch", "", lambda i, j: str(m.qo_indptr[i] + j)),
        ("positions", "[T]", lambda i, j: str(m.positions[m.qo_indptr[i] + j])),
        ("out_cache_loc", "[T]", lambda i, j: str(m.out_cache_loc[m.qo_indptr[i] + j])),
    ]
    for name, shape, value in lines if m.tokens is not None else lines[1:]:
        field = name in ("positions", "out_cache_loc")
        _line(sheet, name, shape, strong=field)
        for c, (i, j) in enumerate(columns):
            x = x0 + c * width
            label = "…" if j is None else value(i, j)
            if name == "index in the batch":
                sheet.text(x + width / 2, sheet.y + 9, label, size=TINY, colour=MUTED, ha="center")
                continue
            style = ROLES["new"] if name == "out_cache_loc" else request_style(i) if name == "token" else ROLES["free"]
            _value_cell(sheet, x, width, style, label, f"{name} {i} {j}")
        sheet.y += 20
    _marks(sheet, m, "qo_indptr", m.qo_indptr, x0, width, [i for i, _ in columns], top)


def _value_cell(sheet: Sheet, x: float, width: float, style: Style, label: str, name: str) -> None:
    plain = style._replace(text=INK) if style is ROLES["free"] else style
    if not sheet.cell(x, sheet.y, width, 18, plain, label, edge="#8a8a8a", name=name):
        behind = plain.face if plain.hatch else None
        sheet.text(
            x + width / 2, sheet.y + 9, label, size=TINY, colour=plain.text, ha="center", width=width - 2, behind=behind
        )


def _marks(
    sheet: Sheet, m: Facts, name: str, pointers: list[int], x0: float, width: float, requests: list[int], top: float
) -> None:
    """CSR row pointers as marks at the borders between requests."""
    _line(sheet, name, "[B+1]")
    borders = [c for c in range(len(requests)) if c == 0 or requests[c] != requests[c - 1]] + [len(requests)]
    for i, border in enumerate(borders):
        x = x0 + border * width
        sheet.line([x, x], [top - 3, sheet.y + 2], colour=INK, line=1.4)
        value = pointers[i] if i < len(borders) - 1 or m.shown == m.batch_size else pointers[m.shown]
        sheet.text(x, sheet.y + 10, str(value), size=SMALL, weight="bold", ha="center")
    if m.shown < m.batch_size:
        sheet.text(
            x0 + len(requests) * width + 16, sheet.y + 10, f"… {m.batch_size - m.shown} more requests", size=SMALL
        )
    sheet.y += 28


def _all_tokens(sheet: Sheet, m: Facts) -> None:
    """[Σ seq_lens] fields: one line of cells a request."""
    sheet.heading(f"All {m.of.total_num_tokens} tokens: where attention reads K and V")
    x0 = sheet.left + GUTTER
    for i in range(m.shown):
        prefix, new = m.prefixes[i], m.new_lens[i]
        limit = 26
        if prefix + new <= limit:
            columns: list[int | None] = list(range(prefix + new))
        else:
            share = max(4, min(prefix, limit - min(new, limit // 2)))
            columns = [
                *abridged(prefix, share),
                *[None if j is None else prefix + j for j in abridged(new, limit - share)],
            ]
        width = min((sheet.right - x0 - 14) / max(len(columns), 14), 44)
        top = sheet.y
        sheet.rect(x0, sheet.y, len(columns) * width, 14, request_style(i))
        behind = request_style(i).face
        label = f"request {i}: row {m.rows[i]}, seq_lens[{i}] = {m.seq_lens[i]}"
        if m.extend:
            label += f", prefix_lens[{i}] = {prefix}, extend_seq_lens[{i}] = {new}"
        sheet_width = len(columns) * width - 6
        sheet.text(
            x0 + 4, sheet.y + 7, label, size=TINY, colour=request_style(i).text, behind=behind, width=sheet_width
        ) if sheet_width > 250 else sheet.text(x0 + len(columns) * width + 8, sheet.y + 7, label, size=TINY)
        sheet.y += 16
        if m.tokens is not None:
            _line(sheet, "token", strong=False)
            for c, p in enumerate(columns):
                label = "…" if p is None else m.token(i, p)
                _value_cell(sheet, x0 + c * width, width, ROLES["free"], label, f"all token {i} {p}")
            sheet.y += 20
        _line(sheet, "position in sequence", strong=False)
        for c, p in enumerate(columns):
            sheet.text(
                x0 + (c + 0.5) * width, sheet.y + 8, "…" if p is None else str(p), size=TINY, colour=MUTED, ha="center"
            )
        sheet.y += 16
        _line(sheet, "kv_indices", "" if i else "[Σ seq_lens]")
        for c, p in enumerate(columns):
            before = next((q for q in columns[c::-1] if q is not None), 0)
            is_prefix = (p if p is not None else before) < prefix
            label = "…" if p is None else str(m.kv_indices[m.kv_indptr[i] + p])
            style = ROLES["tree"] if is_prefix else ROLES["new"]
            _value_cell(sheet, x0 + c * width, width, style, label, f"kv_indices {i} {p}")
        sheet.y += 20
        end = x0 + len(columns) * width
        for x, value in ((x0, m.kv_indptr[i]), (end, m.kv_indptr[i + 1])):
            sheet.line([x, x], [top, sheet.y + 2], colour=INK, line=1.4)
            sheet.text(x, sheet.y + 9, str(value), size=SMALL, weight="bold", ha="center")
        _line(sheet, "kv_indptr", "[B+1]" if not i else "")
        sheet.text(x0 + 14, sheet.y + 9, f"= start_loc[{i}]", size=TINY, colour=MUTED)
        sheet.y += 26
    if m.shown < m.batch_size:
        sheet.caption(f"… and {count(m.batch_size - m.shown, 'more request')}.")


def _per_request(sheet: Sheet, m: Facts) -> None:
    """[B] fields as a table."""
    sheet.heading(
        f"The B = {count(m.batch_size, 'request')}: one number each"
        if m.batch_size > 1
        else "B = 1 request: one number"
    )
    of = m.of
    names = [
        "req_pool_indices",
        "seq_lens",
        "prefix_lens",
        "extend_seq_lens",
        "start_loc",
        "extend_start_loc",
        "kv_last_page_len",
    ]
    x0, width = sheet.left + 62, (sheet.right - sheet.left - 62) / len(names)
    for c, name in enumerate(names):
        sheet.text(x0 + (c + 0.5) * width, sheet.y + 8, name, size=SMALL, weight="bold", ha="center")
    sheet.y += 18
    for i in range(m.shown):
        sheet.rect(sheet.left, sheet.y + 2, 12, 14, request_style(i))
        sheet.text(sheet.left + 16, sheet.y + 9, f"request {i}", size=TINY)
        for c, name in enumerate(names):
            values = getattr(of, name)
            label = "None" if values is None else str(int(values[i]))
            sheet.cell(
                x0 + c * width + 2, sheet.y, width - 4, 18, ROLES["free"]._replace(text=INK), label, edge="#b8b8b8"
            )
        sheet.y += 20
    sheet.y += 8


def _scalars(sheet: Sheet, m: Facts) -> None:
    """The fields that are one number, and the objects."""
    sheet.heading("One for the pass")
    for i, (name, value) in enumerate(entries := _single(m)):
        column, line = divmod(i, -(-len(entries) // 3))
        x, y = sheet.left + column * 293, sheet.y + 17 * line
        width = sheet.text(x, y + 8, name, size=SMALL, weight="bold")
        sheet.text(x + width + 8, y + 8, value, size=SMALL, width=285 - width - 8)
    sheet.y += 17 * -(-len(entries) // 3) + 6


def _single(m: Facts) -> list[tuple[str, str]]:
    of = m.of
    rows, slots = of.req_to_token_pool, of.token_to_kv_pool
    return [
        ("forward_mode", of.forward_mode.name),
        *(
            (name, str(getattr(of, name)))
            for name in ("batch_size", "total_num_tokens", "max_seq_len", "max_extend_len", "other_kv_index")
        ),
        *((name, str(getattr(of, name))) for name in ("out_cache_cont_start", "out_cache_cont_end")),
        ("return_normalized_logprob", str(of.return_normalized_logprob)),
        ("req_to_token_pool", f"{rows.size} rows × {rows.max_context_len}"),
        ("token_to_kv_pool", f"{slots.size} slots, page_size={slots.page_size}"),
        ("attention_backend", "None" if of.attention_backend is None else type(of.attention_backend).__name__),
        ("attention_plan", "None" if of.attention_plan is None else "the backend's own"),
    ]


def _alt(m: Facts) -> str:
    of = m.of
    parts = [
        f"{of.forward_mode.name} of {count(m.batch_size, 'request')}, {count(m.num_new, 'new token')} of "
        f"{of.total_num_tokens} in all",
        f"req_pool_indices={_short(m.rows)}",
        f"seq_lens={_short(m.seq_lens)}",
        f"prefix_lens={_short(m.prefixes) if m.extend else None}",
        f"positions={_short(m.positions)}",
        f"out_cache_loc={_short(m.out_cache_loc)}",
        f"start_loc={_short(of.start_loc.tolist())}",
        f"qo_indptr={_short(m.qo_indptr)}",
        f"kv_indptr={_short(m.kv_indptr)}",
        f"kv_indices in slots {runs(m.kv_indices, 8)}",
        f"kv_last_page_len={_short(of.kv_last_page_len.tolist())}",
    ]
    if of.other_kv_index is not None:
        parts.append(f"other_kv_index={of.other_kv_index}")
    return "; ".join(parts) + "."


def _short(values: list[int]) -> str:
    shown = abridged(len(values), 16)
    return "[" + ", ".join("…" if i is None else str(values[i]) for i in shown) + "]"

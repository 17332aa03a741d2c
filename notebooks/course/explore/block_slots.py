"""block_slots: from the index of a token to its slot, by the request's row and by its block table."""

from functools import partial

from nanoinfer.config import EngineConfig
from nanoinfer.llm import LLM, make_engine
from nanoinfer.sampling_params import SamplingParams
from notebooks.course.explore import Cell, CellRow, Cells, Control, Frame, InteractiveFigure, Number, Numbers, padded
from notebooks.course.explore.runs import ACROSS, one_thread
from notebooks.course.prompts import BEAR, FOX, RIVER

PROMPTS = {"FOX": FOX, "RIVER": RIVER, "BEAR": BEAR}
NAMES = list(PROMPTS)
SIZE, SLOTS, STEPS, TOKENS = 4, 64, 4, 22
WIDTH = -(-TOKENS // SIZE)
LEGEND = [*((f"r{i}", name) for i, name in enumerate(NAMES)), ("locked", "several requests"), ("free", "empty")]


def record_rows(llm: LLM) -> list[list[int]]:
    """The slots of the three requests' tokens, in the middle of a run."""
    config = EngineConfig(page_size=SIZE, max_total_tokens=SLOTS, max_running_requests=4, max_context_len=SLOTS)
    engine = make_engine(llm.model, config)
    for prompt in PROMPTS.values():
        engine.add_request(prompt, SamplingParams(max_new_tokens=8, temperature=0, ignore_eos=True))
    with one_thread():
        for _ in range(STEPS):
            engine.step()
    rows, batch = engine.model_runner.req_to_token_pool.req_to_token, engine.last_batch
    assert batch is not None
    return [
        rows[req.req_pool_idx, :length].tolist()
        for req, length in zip(batch.reqs, batch.seq_lens.tolist(), strict=True)
    ]


def block_slots(llm: LLM) -> InteractiveFigure:
    """Request and index → entry, block, offset and slot."""
    rows = record_rows(llm)
    tables = [([slot // SIZE for slot in row[::SIZE]] + [-1] * WIDTH)[:WIDTH] for row in rows]
    return InteractiveFigure(
        "In which slot is token n of a request?",
        "Drag the index. The row names the slot, the block table its block, and the remainder is the offset. Both give "
        "the slot with the pink frame.",
        [
            Control("request", "request", range(3), [f"{name} (row {i})" for i, name in enumerate(NAMES)], 1, False),
            Control("n", "index n of the token", list(range(TOKENS)), start=17),
        ],
        partial(_frame, rows, tables),
        height=1060,
        runs=1,
    )


def _frame(rows: list[list[int]], tables: list[list[int]], request: int, n: int) -> Frame:
    entry, offset = divmod(n, SIZE)
    slot = rows[request][n] if n < len(rows[request]) else -1
    owners = [[name for name, row in zip(NAMES, rows, strict=True) if slot in row] for slot in range(SLOTS)]
    looks = ["free" if not of else "locked" if len(of) > 1 else f"r{NAMES.index(of[0])}" for of in owners]

    def read(i: int, k: int, at: int) -> str:
        return "read" * ((i, k) == (request, at))

    slots = [[Cell(looks[s], str(s), read(i, k, n)) for k, s in enumerate(row)] for i, row in enumerate(rows)]
    blocks = [
        [Cell(looks[b * SIZE] if b >= 0 else "free", str(b), read(i, k, entry)) for k, b in enumerate(table)]
        for i, table in enumerate(tables)
    ]
    pool = [Cell(look, str(s), "read" * (s == slot)) for s, look in enumerate(looks)]
    starts = range(0, SLOTS, ACROSS)
    lines = [CellRow(f"blocks {s // SIZE}–{(s + ACROSS) // SIZE - 1}", pool[s : s + ACROSS]) for s in starts]
    block = tables[request][entry]
    numbers = [
        Number("entry and offset", f"{n} // {SIZE} = {entry}, {n} % {SIZE} = {offset}"),
        Number(
            f"table[{request}, {entry}]",
            f"block {block}, slot {block} · {SIZE} + {offset} = {slot}" if slot >= 0 else "no token yet",
            strong=True,
        ),
    ]
    wide = [padded(cells, TOKENS) for cells in slots]
    panels = [
        Cells("Rows: a slot for each index", _named(wide), LEGEND, [str(k) for k in range(TOKENS)], group=SIZE),
        Cells(f"Block tables: a block for each {SIZE} indices", _named(blocks), columns=[str(k) for k in range(WIDTH)]),
        Cells("The pool in blocks", lines, group=SIZE),
        Numbers("From the index to the slot", numbers),
    ]
    name = NAMES[request]
    if slot < 0:
        room = "Its block is in the table already" if block >= 0 else "It needs a block, which isn't in the table yet"
        return Frame(panels, f"{name} has no token {n} yet. {room}.")
    return Frame(panels, f"Token {n} of {name} is in slot {slot}.")


def _named(lines: list[list[Cell]]) -> list[CellRow]:
    return [CellRow(name, cells) for name, cells in zip(NAMES, lines, strict=True)]

"""verify_steps: a VERIFY pass row by row. What is guessed, what the model says, what is accepted, what becomes of slots."""

from dataclasses import dataclass

from nanoinfer.config import EngineConfig
from nanoinfer.llm import LLM, make_engine
from nanoinfer.model.forward_batch import ForwardMode
from nanoinfer.requests.tokenizer import Tokenizer, token_text
from nanoinfer.sampling_params import SamplingParams
from nanoinfer.viz.words import count, visible
from notebooks.course.explore import Cell, CellRow, Cells, Control, Frame, InteractiveFigure, Number, Numbers, padded
from notebooks.course.explore.runs import one_thread
from notebooks.course.prompts import STORY

DRAFTS, CONTEXT, MOST_TOKENS = 4, 1, 180
COLUMNS = CONTEXT + 1 + DRAFTS + 2  # positions that are shown
COPY = STORY + "\n\n" + STORY[: STORY.index("She waited two")].rstrip()
BEFORE, AFTER, NEXT = "before the pass", "after the pass", "the next pass"
LEGEND = [
    ("r0", "the request's"),
    ("bar", "a draft, not checked yet"),
    ("new", "computed in this pass"),
    ("in-use", "K/V of positions before"),
    ("free", "a slot that is still empty"),
    ("leftover", "a wrong draft: not in use"),
]


@dataclass(frozen=True)
class Pass:
    """A VERIFY pass of one request. `tokens`, `slots`: of its newest token, which has the position `start`, and its
    drafts; `earlier_...`: of the positions before; `next_...`: of the pass after it, which begins at `kv_len`. `got`: what
    the pass gave."""

    start: int
    earlier_tokens: list[int]
    earlier_slots: list[int]
    tokens: list[int]
    slots: list[int]
    got: list[int]
    kv_len: int
    next_tokens: list[int]
    next_slots: list[int]

    @property
    def accepted(self) -> int:
        return len(self.got) - 1


def record_passes(llm: LLM) -> dict[int, Pass]:
    """The first pass in which 0, 1, ... DRAFTS drafts are right: `ngram` guesses, and the prompt is a story and its
    beginning once more."""
    model = llm.model
    fields = {"drafter": "ngram", "num_draft_tokens": DRAFTS, "adaptive_drafts": False, "max_total_tokens": 1024}
    engine = make_engine(model, EngineConfig(max_running_requests=1, max_context_len=512, **fields))  # type: ignore[arg-type]
    engine.add_request(COPY, SamplingParams(max_new_tokens=MOST_TOKENS, temperature=0, ignore_eos=True))
    found: dict[int, Pass] = {}
    waiting: Pass | None = None
    with one_thread():
        while engine.has_unfinished() and len(found) <= DRAFTS:
            engine.step()
            batch = engine.last_batch
            assert batch is not None
            (req,) = batch.reqs
            tokens, slots = batch.input_ids.tolist(), batch.out_cache_loc.tolist()
            if waiting is not None:
                found.setdefault(
                    waiting.accepted, Pass(**{**vars(waiting), "next_tokens": tokens, "next_slots": slots})
                )
                waiting = None
            if batch.forward_mode is not ForwardMode.VERIFY or len(tokens) != 1 + DRAFTS:
                continue
            assert batch.prefix_lens is not None
            start = int(batch.prefix_lens[0])
            waiting = Pass(
                start=start,
                earlier_tokens=req.token_ids[start - CONTEXT : start].tolist(),
                earlier_slots=engine.cache.rows[req.req_pool_idx, start - CONTEXT : start].tolist(),
                tokens=tokens,
                slots=slots,
                got=req.token_ids[start + 1 : req.num_tokens].tolist(),
                kv_len=req.kv_len,
                next_tokens=[],
                next_slots=[],
            )
    return found


def verify_steps(llm: LLM) -> InteractiveFigure:
    """How many drafts are right, and step → tokens and slots, what each row reads and gives, and what the request gets."""
    passes, tokenizer = record_passes(llm), llm.tokenizer
    assert tokenizer is not None
    steps = [BEFORE, *(f"row {row}" for row in range(1 + DRAFTS)), AFTER, NEXT]
    return InteractiveFigure(
        "What does a VERIFY pass do, row by row?",
        f"A request gets {DRAFTS} drafts from its own text. Drag how many of them are right, then step: the pass computes "
        "all rows at once, and its right tokens move kv_len. What becomes of the other slots?",
        [
            Control("right", "drafts that are right", list(range(1 + DRAFTS)), start=2),
            Control("step", "look at", list(range(len(steps))), steps),
        ],
        lambda right, step: _frame(passes[right], step - 1, tokenizer),
        still=(2, 2 + DRAFTS),
        height=1140,
        runs=1,
    )


def _text(tokenizer: Tokenizer, token: int) -> str:
    return visible(token_text(tokenizer, [token]))


def _frame(each: Pass, row: int, tokenizer: Tokenizer) -> Frame:
    """`row`: −1 before the pass, 1 + DRAFTS after it, 2 + DRAFTS with the next pass."""
    texts = [_text(tokenizer, token) for token in each.tokens]
    given = [_text(tokenizer, token) for token in each.got]
    tokens = _tokens(each, row, tokenizer)
    kv_len = each.kv_len if row > DRAFTS else each.start
    rows = [
        CellRow(
            "token", padded([Cell("r0", _text(tokenizer, token)) for token in each.earlier_tokens] + tokens, COLUMNS)
        ),
        CellRow("slot", padded([Cell("r0", str(slot)) for slot in each.earlier_slots] + _slots(each, row), COLUMNS)),
        CellRow(f"kv_len: {kv_len}", padded([Cell("r0")] * (kv_len - each.start + CONTEXT), COLUMNS)),
    ]
    for j in range(1 + DRAFTS):
        reads = [Cell("in-use")] * (CONTEXT + j) + [Cell("new")] if j <= row else [Cell()]
        rows.append(CellRow(f"row {j}: {f'draft {j}' if j else 'the newest'}", padded(reads, COLUMNS)))
    after = row > DRAFTS
    outcomes = [
        Number(
            f"row {j}: after {texts[j]}", _outcome(each, j, given) if j <= row else "not looked at yet", strong=j == row
        )
        for j in range(1 + DRAFTS)
    ]
    known = row >= each.accepted  # the first wrong draft was found, or all are right
    accepted = f"{each.accepted} of {DRAFTS}" if known else f"{row + 1} so far" if row >= 0 else "not known yet"
    numbers = [
        Number("tokens of the request", str(each.start + 1 + (len(each.got) if after else 0))),
        Number("drafts accepted", accepted),
        Number("tokens that the pass gives", str(len(each.got)) if known else f"{max(row, 0) + 1} at least"),
    ]
    first = each.start - CONTEXT
    positions = [str(first + i) for i in range(COLUMNS)]
    looks = {cell.look for each_row in rows for cell in each_row.cells}
    legend = [(look, text) for look, text in LEGEND if look in looks]
    panels = [
        Cells("Tokens, slots, and what each row reads, by position", rows, legend, positions),
        Numbers("What each row gives", outcomes),
        Numbers("The request", numbers),
    ]
    return Frame(panels, _sentence(each, row, texts, given))


def _tokens(each: Pass, row: int, tokenizer: Tokenizer) -> list[Cell]:
    """The newest token and what is behind it. A wrong draft stays until the comparison has found it."""
    if row > DRAFTS:
        known = [each.tokens[0], *each.got]
        cells = [Cell("r0", _text(tokenizer, token)) for token in known]
        behind = each.next_tokens[1:] if row > 1 + DRAFTS else []
        return cells + [Cell("bar", _text(tokenizer, token)) for token in behind]
    accepted = min(max(row + 1, 0), each.accepted)
    cells = [Cell("r0", _text(tokenizer, token)) for token in each.tokens[: 1 + accepted]]
    left = each.tokens[1 + accepted :]
    if row >= each.accepted:  # the rest is wrong, or behind what is wrong
        return cells + [Cell("leftover", _text(tokenizer, token)) for token in left]
    return cells + [Cell("bar", _text(tokenizer, token)) for token in left]


def _slots(each: Pass, row: int) -> list[Cell]:
    if row <= DRAFTS:
        return [Cell("new" if j <= row else "free", str(slot)) for j, slot in enumerate(each.slots)]
    kept = each.kv_len - each.start
    cells = [Cell("r0", str(slot)) for slot in each.slots[:kept]]
    wrong = [Cell("leftover", str(slot)) for slot in each.slots[kept:]]
    if row == 1 + DRAFTS:
        return cells + wrong
    again = [Cell("new", str(slot), "written" if slot in each.slots else "") for slot in each.next_slots]
    return cells + again + wrong[len(again) :]


def _outcome(each: Pass, j: int, given: list[str]) -> str:
    if j > each.accepted:
        return "doesn't count"
    if j == DRAFTS:
        return f"{given[j]}, a token of the pass's own"
    return f"{given[j]} = draft {j + 1}" if j < each.accepted else f"{given[j]}: draft {j + 1} is wrong"


def _sentence(each: Pass, row: int, texts: list[str], given: list[str]) -> str:
    texts, given = [f"“{text}”" for text in texts], [f"“{text}”" for text in given]
    if row < 0:
        return (
            f"{DRAFTS} drafts are behind the newest token, {texts[0]}. There is a slot for each, and no K/V in it yet. The "
            "drafts aren't the request's: its kv_len ends before its newest token."
        )
    if row <= DRAFTS:
        return _about_row(each, row, texts, given)
    if row == 1 + DRAFTS:
        wrong = DRAFTS - each.accepted
        said = f"The request gets {count(len(each.got), 'token')}, and kv_len goes from {each.start} to {each.kv_len}. "
        if not wrong:
            return f"{said}All K/V of the pass counts."
        stay = f"The {count(wrong, 'slot')} behind it stay{'s' * (wrong == 1)} the request's"
        return f"{said}{stay}, with K/V that nothing reads. So nothing has to be undone."
    overwritten = len(set(each.next_slots) & set(each.slots))
    said = f"The next pass begins at position {each.kv_len}, with the token {given[-1]}. "
    if not overwritten:
        return f"{said}It gets new slots."
    return f"{said}It puts its K/V where that of {count(overwritten, 'wrong draft')} was."


def _about_row(each: Pass, row: int, texts: list[str], given: list[str]) -> str:
    included = f", {count(row, 'draft')} included" if row else ""
    said = f"Row {row} stores its K/V and reads all tokens up to its own{included}. "
    if row > each.accepted:
        return f"{said}But draft {each.accepted + 1} is wrong, so the row reads a text that the request doesn't have."
    if row == DRAFTS:
        return f"{said}All drafts are right, so its token, {given[row]}, is right as well: one more, without a draft."
    if row < each.accepted:
        return f"{said}It gives {given[row]}, and that is draft {row + 1}. So row {row + 1} has the right input."
    wrong = f"It gives {given[row]}, but draft {row + 1} is {texts[row + 1]}"
    return f"{said}{wrong}. The request's next token is {given[row]}, and the rows behind don't count."

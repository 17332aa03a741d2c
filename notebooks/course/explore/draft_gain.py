"""draft_gain: batch, acceptance and number of drafts → how many times as many tokens per second there are with drafts."""

import itertools

from nanoinfer.drafting.draft_lengths import expected_tokens
from nanoinfer.frontends.llm import LLM
from nanoinfer.viz.words import count
from notebooks.course.explore.control import Control
from notebooks.course.explore.explorable import Explorable, Frame
from notebooks.course.explore.panels.lines import Lines, Mark, Series
from notebooks.course.explore.panels.numbers import Number, Numbers

BATCHES = (1, 4, 8, 16, 32)
ACCEPTANCES = (0.2, 0.4, 0.6, 0.8, 0.9)
DRAFTS = (1, 2, 3, 4, 6, 8)
FIRST, BY_MEMORY, BY_ARITHMETIC, FULL = 1.0, 0.03, 0.1, 16  # ms of the first row, of a row up to FULL, of one beyond


def pass_ms(rows: int) -> float:
    """How long a pass takes on the machine of the page: up to FULL rows it waits for memory, beyond for arithmetic."""
    return FIRST + BY_MEMORY * (min(rows, FULL) - 1) + BY_ARITHMETIC * max(rows - FULL, 0)


def tokens_per_pass(p: float, k: int) -> float:
    """What a pass with `k` drafts gives a request on average: each is right with probability `p` if those before it are."""
    return 1 + expected_tokens(p, k)


def gain(batch: int, p: float, k: int) -> float:
    """Tokens per second with `k` drafts for each request, divided by those without."""
    return tokens_per_pass(p, k) * pass_ms(batch) / pass_ms(batch * (1 + k))


def best_drafts(batch: int, p: float) -> int:
    """The number of drafts for each request that gains most, the fewest of several; 0 where none gains."""
    return max(range(max(DRAFTS) + 1), key=lambda k: (round(gain(batch, p, k), 9), -k))


def draft_gain(llm: LLM | None = None) -> Explorable:
    """Every batch, acceptance and number of drafts. (`llm` is not needed: a formula and a modelled machine are enough.)"""
    chosen = itertools.product(enumerate(BATCHES), enumerate(ACCEPTANCES), enumerate(DRAFTS))
    frames = {(b, a, d): _frame(batch, p, k) for (b, batch), (a, p), (d, k) in chosen}
    return Explorable(
        "When does drafting pay?",
        f"Each draft is one more row in the pass. The machine here is a model: a pass of one row takes {FIRST:g} ms. Each "
        f"further row up to {FULL} adds {BY_MEMORY:g} ms, because the pass waits for weights anyway. Each row beyond adds "
        f"{BY_ARITHMETIC:g} ms, because the pass then waits for arithmetic.",
        [
            Control("batch", "requests in the batch", list(BATCHES)),
            Control("acceptance", "acceptance p", list(ACCEPTANCES), start=2),
            Control("drafts", "drafts per request, k", list(DRAFTS), start=2),
        ],
        frames,
        height=1080,
        source="Computed in Python from the formula, not measured.",
    )


def _frame(batch: int, p: float, k: int) -> Frame:
    rows, tokens = batch * (1 + k), tokens_per_pass(p, k)
    times = f"{gain(batch, p, k):.2f}"
    curve = [(float(each), round(gain(batch, p, each), 3)) for each in range(max(DRAFTS) + 1)]
    best = best_drafts(batch, p)
    marks = [Mark(k, round(gain(batch, p, k), 3), f"{times}, the best" if k == best else times)]
    if best not in (0, k):
        marks.append(Mark(best, round(gain(batch, p, best), 3), "the best", of=1))
    flat = [(0.0, 1.0), (float(max(DRAFTS)), 1.0)]
    panels = [
        Lines(
            "Speed with drafts, compared with none",
            "drafts per request",
            "times as many tokens per second",
            [
                Series("without drafts", flat, colour=2),
                Series(count(batch, "request"), curve, label_at=None),
            ],
            (0, max(DRAFTS)),
            (0, 5),
            marks,
        ),
        Numbers(
            "One pass",
            [
                Number("rows", f"{batch} × (1 + {k}) = {rows}"),
                Number("time of the pass, and without drafts", f"{pass_ms(rows):.2f} ms, {pass_ms(batch):.2f} ms"),
                Number("tokens per request", f"{tokens:.2f}"),
                Number("tokens per second, compared with none", f"{times} times as many", strong=True),
            ],
        ),
    ]
    return Frame(panels, _sentence(batch, p, k))


def _sentence(batch: int, p: float, k: int) -> str:
    tokens, longer, best = tokens_per_pass(p, k), pass_ms(batch * (1 + k)) / pass_ms(batch), best_drafts(batch, p)
    said = f"With {count(k, 'draft')}, a pass gives each request {tokens:.2f} tokens and takes {longer:.2f} times as long. "
    won = gain(batch, p, k)
    said += (
        "So drafting gains. "
        if won > 1.005
        else "So drafting loses. "
        if won < 0.995
        else "So nothing is gained or lost. "
    )
    if not best:
        return f"{said}No number of drafts gains anything here."
    return said + ("No other number gains more." if best == k else f"The best number here is {best}.")

"""padding: sessions of different lengths in one decode pass, the rectangle that they are padded to, and what that costs."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

from nanoinfer.frontends.llm import LLM
from nanoinfer.sessions.inference import InferenceEngine, InferenceSession, KVAccount
from nanoinfer.viz.words import num_bytes, percent
from notebooks.course.explore.control import Control
from notebooks.course.explore.explorable import Explorable, Frame
from notebooks.course.explore.panels.bars import Bar, Bars
from notebooks.course.explore.panels.cells import Cell, CellRow, Cells
from notebooks.course.explore.panels.numbers import Number, Numbers
from notebooks.course.prompts import FOX

LONGEST = (4, 8, 16, 24, 32, 48)
SHORTEST = 4
MIXES = ("one long, the others short", "half long, half short", "every length in between", "all equally long")
TEXT = (FOX + " ") * 8


def padding(llm: LLM, longest: Sequence[int] = LONGEST, sessions: int = 8, text: str = TEXT) -> Explorable:
    """One decode pass over `sessions` sessions, for each length of the longest (in tokens that have K/V) and each mix.

    ValueError when `text` has fewer tokens than the longest, or one is below SHORTEST.
    """
    engine = InferenceEngine(llm.model)
    token_ids = engine.builder.prompt_ids(text).tolist()
    if not SHORTEST <= min(longest) <= max(longest) <= len(token_ids):
        raise ValueError(f"longest={tuple(longest)}: must be in {SHORTEST}..{len(token_ids)}, the tokens of text")
    passes = {
        (i, mix): decode_pass(engine, token_ids, lengths(mix, length, sessions))
        for (i, length), mix in itertools.product(enumerate(longest), range(len(MIXES)))
    }
    most = max(
        max(cost.bytes_copied, cost.decode_bytes_used + cost.decode_bytes_padding) for _, cost in passes.values()
    )
    frames = {key: _frame(lens, cost, most) for key, (lens, cost) in passes.items()}
    controls = [
        Control("longest", "tokens of the longest session", list(longest), start=min(4, len(longest) - 1)),
        Control("mix", "the eight sessions" if sessions == 8 else "the sessions", list(MIXES)),
    ]
    return Explorable(
        "How much of a padded batch is padding?",
        "Sessions that are decoded in one pass are laid into one rectangle, as wide as the longest. "
        "Make the longest session longer, and look at the grey: those cells hold nothing.",
        controls,
        frames,
        height=1110,
    )


def lengths(mix: int, longest: int, sessions: int) -> list[int]:
    """Tokens of each session, the longest first, in the mix MIXES[mix]."""
    last = sessions - 1
    return [
        [longest] + [SHORTEST] * last,
        [longest] * (sessions - sessions // 2) + [SHORTEST] * (sessions // 2),
        [round(longest - i * (longest - SHORTEST) / max(last, 1)) for i in range(sessions)],
        [longest] * sessions,
    ][mix]


def decode_pass(engine: InferenceEngine, token_ids: Sequence[int], lens: Sequence[int]) -> tuple[list[int], KVAccount]:
    """One `decode_step_sessions` over sessions that hold `lens` tokens: how many each holds then, and what it cost."""
    sessions = [InferenceSession(engine, 2, temperature=0.0, stop_on_eos=False) for _ in lens]
    for session, length in zip(sessions, lens, strict=True):
        session.prefill(token_ids[:length])
    before = replace(engine.account)
    engine.decode_step_sessions(sessions)
    return [session.kv_len for session in sessions], engine.account - before


def _frame(lens: Sequence[int], cost: KVAccount, most: int) -> Frame:
    """`lens`: tokens with K/V after the pass, the one that it has computed included."""
    width = max(lens)
    rows = []
    for i, n in enumerate(lens):
        cells = [Cell(f"r{i % 8}")] * (n - 1) + [Cell("new")] + [Cell("padding")] * (width - n)
        rows.append(CellRow(f"session {i}", cells, f"{n} of {width}"))
    used, wasted, copied = cost.decode_bytes_used, cost.decode_bytes_padding, cost.bytes_copied
    legend = [
        ("r0", "K/V that a session holds (a colour for each)"),
        ("new", "computed in this pass"),
        ("padding", "padding"),
    ]
    panels = [
        Cells(f"The rectangle of the pass: {len(lens)} rows × {width} tokens", rows, legend),
        Bars(
            "What the pass handles, in bytes of K/V",
            [
                Bar("used", used, num_bytes(used), look="in-use"),
                Bar("padding", wasted, num_bytes(wasted), look="padding"),
                Bar("copied", copied, num_bytes(copied), look="highlight"),
            ],
            most,
            "Copied: from the sessions into the rectangle before the pass, and back into the sessions after it.",
        ),
        Numbers(
            "One decode pass",
            [
                Number("tokens that it computes", f"{cost.tokens_computed}"),
                Number("share of the rectangle that is padding", percent(wasted, used + wasted), strong=True),
                Number("bytes copied for each token that it computes", num_bytes(copied / cost.tokens_computed)),
            ],
        ),
    ]
    room = len(lens) * width
    said = f"The rectangle has room for {len(lens)} × {width} = {room} tokens, and the sessions hold {sum(lens)}. "
    if wasted:
        said += f"The rest, {percent(wasted, used + wasted)}, is padding, because every row is as wide as the longest. "
    else:
        said += "Equal lengths need no padding. "
    return Frame(panels, f"{said}To compute {cost.tokens_computed} tokens, the pass copies {num_bytes(copied)} of K/V.")

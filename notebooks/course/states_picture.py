"""states_picture: the states of a regular expression, the arrows between them, and the path of a text through them."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import deepcopy

from nanoinfer.viz.lettering import BODY, SMALL, text_width
from nanoinfer.viz.palette import INK, MUTED, PAPER, ROLES
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.sheet import Sheet
from nanoinfer.viz.words import count, visible
from notebooks.course.regular_expression import (
    EMPTY,
    NOTHING,
    Chars,
    Concatenation,
    Either,
    Expression,
    Machine,
    Repeat,
)

MOST_STATES = 9
WIDTH, HEIGHT, GAP = 50.0, 34.0, 40.0  # of a state; at least between two states
LANE, LOOP = 24.0, 34.0  # from one arrow around states to the next; above a state that leads to itself
MARKED = ROLES["highlight"].face
Arrows = dict[tuple[int, int], str]  # (state, next state) → which characters lead there


def states_picture(
    machine: Machine, path: str | Sequence[str] = "", *, title: str | None = None, caption: str | None = None
) -> Picture:
    """All states of `machine`, with an arrow for every character that is allowed, and what may still come in each state.

    `path`: a text, or the texts of tokens, whose way is marked. A state with a double frame is one in which a text may end.
    Raises ValueError for a machine of more than 9 states.
    """
    machine = deepcopy(machine)  # it makes its states when they are first reached
    arrows = _arrows(machine)
    total = len(machine.states)
    steps = _steps(machine, path)
    taken = set[tuple[int, int]]()
    for _, token, before in zip(steps, path, [0, *steps], strict=False):
        for char in token:
            after = machine.step(before, char)
            taken.add((before, after))
            before = after
    sheet = Sheet(title, f"{count(total, 'state')} of {expression_text(machine.states[0])}", caption=caption)
    _draw(sheet, machine, arrows, taken)
    _meanings(sheet, machine)
    _way(sheet, machine, path, steps)
    sheet.y += 4
    return sheet.picture(_alt(machine, arrows, path, steps))


def _arrows(machine: Machine) -> Arrows:
    """Makes all states of `machine`."""
    named = sorted(machine.alphabet)
    other = next(chr(i) for i in range(0x21, 0x110000) if chr(i) not in machine.alphabet)
    found: Arrows = {}
    state = 0
    while state < len(machine.states):
        to: dict[int, list[str]] = {}
        for char in [*named, other]:
            if (after := machine.step(state, char)) != machine.DEAD:
                to.setdefault(after, []).append(char)
        if len(machine.states) > MOST_STATES:
            raise ValueError(f"machine: has more than {MOST_STATES} states, which is all that can be drawn")
        for after, chars in to.items():
            found[state, after] = said(frozenset(named) - {*chars}, negated=True) if other in chars else said({*chars})
        state += 1
    return found


def _steps(machine: Machine, path: Iterable[str]) -> list[int]:
    """The state after each part of `path`, up to the first that is not allowed."""
    found, state = [], 0
    for token in path:
        state = machine.step(state, token)
        found.append(state)
        if state == machine.DEAD:
            break
    return found


def _draw(sheet: Sheet, machine: Machine, arrows: Arrows, taken: set[tuple[int, int]]) -> None:
    total = len(machine.states)
    left = sheet.left + 34
    pitch = min(max(WIDTH + GAP, (sheet.right - left - WIDTH - 20) / max(1, total - 1)), 170.0)
    above, below = (
        _lanes({arrow for arrow in arrows if arrow[1] > arrow[0] + 1}),
        _lanes({arrow for arrow in arrows if arrow[1] < arrow[0]}),
    )
    loops = LOOP if any(a == b for a, b in arrows) else 6.0
    y = sheet.y + LANE * (1 + max(above.values(), default=-1)) + loops + 8
    middle = y + HEIGHT / 2
    sheet.arrow([left - 26, left], [middle, middle])
    for (state, after), label in sorted(arrows.items(), key=lambda arrow: arrow[0] in taken):
        colour, line = (MARKED, 2.2) if (state, after) in taken else (INK, 1.2)
        x, x_after = left + pitch * state, left + pitch * after
        if after == state + 1:
            xs, ys, at = [x + WIDTH, x_after], [middle, middle], (x + WIDTH + (pitch - WIDTH) / 2 - 3, middle - 11)
        elif after == state:
            top = y - loops + 16
            xs, ys = [x + 0.66 * WIDTH, x + 0.66 * WIDTH, x + 0.34 * WIDTH, x + 0.34 * WIDTH], [y, top, top, y]
            at = x + WIDTH / 2 - max(0.0, text_width(label, SMALL) / 2 - 0.3 * WIDTH), top - 9
        elif after > state:
            lane = y - loops - 6 - LANE * above[state, after]
            xs, ys = (
                [x + 0.88 * WIDTH, x + 0.88 * WIDTH, x_after + 0.12 * WIDTH, x_after + 0.12 * WIDTH],
                [y, lane, lane, y],
            )
            at = (x + x_after + WIDTH) / 2, lane
        else:
            lane = y + HEIGHT + 18 + LANE * below[state, after]
            xs = [x + 0.25 * WIDTH, x + 0.25 * WIDTH, x_after + 0.75 * WIDTH, x_after + 0.75 * WIDTH]
            ys, at = [y + HEIGHT, lane, lane, y + HEIGHT], ((x + x_after + WIDTH) / 2, lane)
        sheet.arrow(xs, ys, colour=colour, line=line)
        room = pitch - WIDTH - 8 if after == state + 1 else pitch - 12 if after == state else None
        label = f"“{label}”" if len(label) == 1 and not label.isalnum() else label  # a point alone would be overlooked
        sheet.text(*at, label, size=SMALL, ha="center", colour=colour, behind=PAPER, width=room)
    for state in range(total):
        _state(sheet, left + pitch * state, y, machine, state)
    sheet.y = y + HEIGHT + LANE * (1 + max(below.values(), default=-1)) + 18


def _state(sheet: Sheet, x: float, y: float, machine: Machine, state: int) -> None:
    sheet.rect(x, y, WIDTH, HEIGHT, ROLES["free"], edge=INK, line=1.2, name=f"state {state}")
    if machine.accepts(state):
        sheet.rect(x + 3.5, y + 3.5, WIDTH - 7, HEIGHT - 7, edge=INK, line=1.0, name=f"end {state}")
    sheet.text(x + WIDTH / 2, y + HEIGHT / 2, str(state), weight="bold", ha="center")


def _lanes(arrows: Iterable[tuple[int, int]]) -> dict[tuple[int, int], int]:
    """How far from the states each arrow is drawn, so that no two are on each other: the short ones are nearest."""
    placed: dict[tuple[int, int], int] = {}
    for arrow in sorted(arrows, key=lambda each: (abs(each[0] - each[1]), each)):
        crossed = {lane for other, lane in placed.items() if max(min(arrow), min(other)) <= min(max(arrow), max(other))}
        placed[arrow] = next(lane for lane in range(len(placed) + 1) if lane not in crossed)
    return placed


def _meanings(sheet: Sheet, machine: Machine) -> None:
    """A line per state: what may still come."""
    sheet.text(sheet.left, sheet.y, "state", size=SMALL, colour=MUTED)
    sheet.text(sheet.left + 50, sheet.y, "what may still come", size=SMALL, colour=MUTED)
    for state, expression in enumerate(machine.states):
        sheet.y += 17
        sheet.text(sheet.left + 12, sheet.y, str(state), weight="bold")
        width = sheet.text(sheet.left + 50, sheet.y, expression_text(expression) or "nothing", width=560)
        if machine.accepts(state):
            words = "the text may end here" if expression_text(expression) else "the text ends here"
            sheet.text(max(sheet.left + 50 + width + 24, 330), sheet.y, words, size=SMALL, colour=MUTED)
    sheet.y += 20


def _way(sheet: Sheet, machine: Machine, path: Sequence[str], steps: Sequence[int]) -> None:
    """The parts of `path`, with the state before and after each."""
    if not steps:
        return
    x, y = sheet.left, sheet.y + 4
    x += sheet.text(x, y + 10, "the path of the text: ", colour=MUTED) + 8
    for state, token in zip([0, *steps], [*path[: len(steps)], None], strict=True):
        dead = state == machine.DEAD
        style = ROLES["hidden"] if dead else ROLES["free"]
        if x + 120 > sheet.right:
            x, y = sheet.left + 20, y + 30
        sheet.cell(
            x, y, 22, 20, style, "×" if dead else str(state), edge=INK, size=BODY, weight="bold", name="on the way"
        )
        x += 22
        if token is not None:
            label = visible(token)
            width = text_width(label, BODY) + 22
            sheet.text(x + width / 2 - 3, y + 3, label, ha="center", colour=MARKED, weight="bold", size=SMALL)
            sheet.arrow([x + 2, x + width - 1], [y + 12, y + 12], colour=MARKED)
            x += width
    sheet.text(x + 10, y + 10, _end(machine, steps), size=SMALL, width=sheet.right - x - 10)
    sheet.y = y + 28


def _end(machine: Machine, steps: Sequence[int]) -> str:
    if steps[-1] == machine.DEAD:
        return "not allowed"
    return "may end" if machine.accepts(steps[-1]) else "must go on"


def _alt(machine: Machine, arrows: Mapping[tuple[int, int], str], path: Sequence[str], steps: Sequence[int]) -> str:
    ends = [str(state) for state in range(len(machine.states)) if machine.accepts(state)]
    drawn = "; ".join(f"{state} to {after} by {label}" for (state, after), label in sorted(arrows.items()))
    through = ", ".join("none" if state == machine.DEAD else str(state) for state in [0, *steps])
    way = f" The path of {visible(''.join(path))}: {through}, {_end(machine, steps)}." if steps else ""
    ends_in = f"a text may end in {', '.join(ends) or 'none'}"
    return f"{count(len(machine.states), 'state')}, {ends_in}. Arrows: {drawn or 'none'}.{way}"


SPECIAL = frozenset(r"\.*+?{}()[]|^$")
DIGITS = frozenset("0123456789")


def expression_text(expression: Expression) -> str:
    """The pattern of `expression`; empty if it matches the empty text only."""
    match expression:
        case Chars(members, negated):
            if len(members) == 1 and not negated:
                (char,) = members
                return f"\\{char}" if char in SPECIAL else visible(char)
            if members == DIGITS:
                return r"\D" if negated else r"\d"
            return "." if negated and members == {"\n"} else f"[{'^' if negated else ''}{_ranges(members)}]"
        case Concatenation(first, rest):
            once_more = rest.first if isinstance(rest, Concatenation) else rest
            if once_more == Repeat(first):  # a a* is a+
                return _group(first) + "+" + (expression_text(rest.rest) if isinstance(rest, Concatenation) else "")
            return _part(first) + _part(rest)
        case Either(parts):
            if expression == NOTHING:
                return "[]"
            shown = sorted(expression_text(part) for part in parts if part != EMPTY)
            if len(shown) < len(parts):
                (alone, *others) = (part for part in parts if part != EMPTY)
                return (f"({'|'.join(shown)})" if others else _group(alone)) + "?"
            return "|".join(shown)
    return "" if expression == EMPTY else _group(expression.part) + "*"


def said(chars: Collection[str], *, negated: bool = False) -> str:
    """Characters as an arrow names them: `0-9`, `all but "`."""
    ranges = _ranges(chars)
    return f"all but {ranges}" if negated and chars else "all" if negated else ranges


def _part(expression: Expression) -> str:
    """As a part of a sequence."""
    text = expression_text(expression)
    return f"({text})" if isinstance(expression, Either) and not text.endswith("?") else text


def _group(expression: Expression) -> str:
    """As what is repeated."""
    text = expression_text(expression)
    return text if isinstance(expression, Chars) else f"({text})"


def _ranges(chars: Collection[str]) -> str:
    """Characters, three neighbours or more as `a-z`."""
    runs: list[list[int]] = []
    for char in sorted(map(ord, chars)):
        if runs and runs[-1][-1] == char - 1:
            runs[-1].append(char)
        else:
            runs.append([char])
    return "".join(f"{chr(run[0])}-{chr(run[-1])}" if len(run) > 2 else visible("".join(map(chr, run))) for run in runs)

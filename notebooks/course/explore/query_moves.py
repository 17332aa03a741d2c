"""query_moves: three tokens and one head of size 2. Turn a query, lengthen it, or let an earlier token ask."""

import math

import torch

from nanoinfer.llm import LLM
from nanoinfer.viz.words import percent
from notebooks.course.explore import Bar, Bars, Control, Frame, InteractiveFigure, Number, Numbers

KEYS = torch.tensor([[0.0, 1.0], [2.0, 0.0], [1.0, 1.0]])  # [S, D], as in notebook 02
VALUES = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
DIRECTIONS, LENGTHS, ASKING = list(range(0, 360, 15)), [0, 1, 2, 4, 8], [2, 1, 0]


def query_moves(_: LLM) -> InteractiveFigure:
    """Direction and length of a query, and whose it is → the weights of the tokens that it may look at, and the result."""
    return InteractiveFigure(
        "Which token does a query look at?",
        "One head of size 2 and three tokens. Turn the query: the token whose key fits best gets the largest weight. "
        "A longer query makes the choice sharper, and an earlier token sees fewer keys.",
        [
            Control("direction", "direction of the query, in degrees", DIRECTIONS),
            Control("length", "length of the query", LENGTHS, start=2),
            Control("token", "whose query", ASKING, [f"token {token}" for token in ASKING], slider=False),
        ],
        _frame,
        still=(2, 2, 0),
        height=620,
        source="Computed for each setting.",
    )


def _frame(direction: int, length: int, token: int) -> Frame:
    angle = math.radians(direction)
    query = length * torch.tensor([math.cos(angle), math.sin(angle)])
    scores = KEYS @ query / math.sqrt(2)
    weights = scores[: token + 1].softmax(0)
    best = [i for i, weight in enumerate(weights) if weight > weights.max() - 1e-4]
    bars = list[Bar]()
    for i, key in enumerate(KEYS):
        share = float(weights[i]) if i <= token else 0.0
        text = f"score {_short(scores[i])} → {percent(share, 1)}" if i <= token else "comes later: masked"
        bars.append(Bar(f"token {i}, k = {_pair(key)}", round(share, 3), text, off=i > token))
    numbers = [
        Number("query", _pair(query)),
        *(Number(f"value of token {i}", _pair(value)) for i, value in enumerate(VALUES)),
        Number("result: the weighted sum of the values", _pair(weights @ VALUES[: token + 1]), strong=True),
    ]
    names = " and ".join(f"token {i}" for i in best)
    if token == 0:
        said = "Token 0 sees only itself, so its weight is 1 whatever its query is."
    elif len(best) == token + 1:
        said = "All scores are equal, so the result is the average of the values."
    else:
        said = f"Best fit: {names}, weight {percent(float(weights[best[0]]), 1)}{' each' * (len(best) > 1)}."
    return Frame([Bars("Softmax of q · k / √2", bars, 1.0), Numbers("In numbers", numbers)], said)


def _pair(vector: torch.Tensor) -> str:
    return f"[{', '.join(map(_short, vector))}]"


def _short(number: torch.Tensor) -> str:
    return f"{round(float(number), 2) + 0.0:g}"

"""sampling: temperature, top-k and top-p on the next token of a real prompt; the sampler's functions do the cutting."""

import torch

from nanoinfer.llm import LLM
from nanoinfer.sampling.filters import keep_top_k, keep_top_p
from nanoinfer.sessions.inference import InferenceEngine
from notebooks.course.explore import Bar, Bars, Control, Frame, InteractiveFigure, Number, Numbers
from notebooks.course.prompts import FOX

TEMPERATURES = (0.3, 0.6, 1.0, 1.5, 2.5)
TOP_KS = (1, 2, 4, 8, 0)  # 0: all of them
TOP_PS = (0.5, 0.7, 0.9, 0.95, 1.0)
BARS = 12
PROMPT = FOX + " One day she found a"


def sampling(llm: LLM, prompt: str = PROMPT) -> InteractiveFigure:
    """The distribution of the token after `prompt`, for every combination: the likeliest tokens and the rest. A `top_k` of
    0 keeps all tokens, as in SamplingParams."""
    engine = InferenceEngine(llm.model)
    assert engine.tokenizer is not None
    logits, _ = engine.extend(engine.builder.prompt_ids(prompt), keep=False)
    likeliest = logits[0].argsort(descending=True)[:BARS].tolist()
    texts = [_visible(engine.tokenizer.decode([token])) for token in likeliest]
    controls = [
        Control("temperature", "temperature", TEMPERATURES, start=TEMPERATURES.index(1.0)),
        Control("top_k", "top-k", TOP_KS, [str(k) if k else "all" for k in TOP_KS], TOP_KS.index(0), True),
        Control("top_p", "top-p", TOP_PS, start=TOP_PS.index(1.0)),
    ]

    def show(temperature: float, top_k: int, top_p: float) -> Frame:
        before, after = distributions(logits, temperature, top_k, top_p)
        return _frame(dict(zip(likeliest, texts, strict=True)), before, after, temperature)

    return InteractiveFigure(
        "Which token comes next, and what do temperature, top\u2011k and top\u2011p do to its chances?",
        f"After “{prompt}” the model gives every token of its vocabulary a probability. Drag one control at a time. "
        "A dark bar is how often a token is drawn; the pale one behind it is its probability before the cut.",
        controls,
        show,
        height=1130,
    )


def distributions(
    logits: torch.Tensor, temperature: float, top_k: int, top_p: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """`logits` [1, V] → the probabilities [V] at this temperature, and those after top-k and top-p: in the order of
    Sampler, by its functions."""
    scores = (logits.float() - logits.float().amax(dim=-1, keepdim=True)) / temperature
    before = scores.softmax(dim=-1)[0]
    if 0 < top_k < scores.shape[-1]:
        scores = keep_top_k(scores, torch.tensor([[top_k]]))
    if top_p < 1:
        scores = keep_top_p(scores, torch.tensor([[top_p]]))
    return before, scores.softmax(dim=-1)[0]


def _frame(likeliest: dict[int, str], before: torch.Tensor, after: torch.Tensor, temperature: float) -> Frame:
    """`likeliest`: tokens and their texts; those that have no bar of their own share one."""
    number = int((after > 0).sum())
    mass = float(before[after > 0].sum()) if number < len(before) else 1.0  # a sum of rounded numbers is not quite 1
    rest = torch.ones_like(after, dtype=torch.bool)
    rest[list(likeliest)] = False
    parts = [(text, float(after[token]), float(before[token])) for token, text in likeliest.items()]
    parts.append((f"{int(rest.sum()):,} others", float(after[rest].sum()), float(before[rest].sum())))
    bars = [
        Bar(text, round(share, 4), _percent(share) if share else "cut", share == 0, round(was, 4), "bar")
        for text, share, was in parts
    ]
    numbers = [
        Number("tokens that can be drawn", f"{number:,} of {len(before):,}", strong=True),
        Number("probability that they had before the cut", _percent(mass)),
        Number("probability that was cut away", _percent(max(1 - mass, 0.0))),
    ]
    panels = [Bars("The next token", bars, most=1.0), Numbers("What is left to draw from", numbers)]
    return Frame(panels, _sentence(next(iter(likeliest.values())), number, mass, after, temperature))


def _sentence(first: str, number: int, mass: float, after: torch.Tensor, temperature: float) -> str:
    first = first.strip() or first
    heat = {-1: "sharper than the model's own", 0: "the model's own", 1: "flatter than the model's own"}
    sign = (temperature > 1) - (temperature < 1)
    said = f"At temperature {temperature:g} the distribution is {heat[sign]}. "
    if number == 1:
        return said + f"One token is left, “{first}”, so the choice is no longer a matter of chance."
    if number == len(after):
        return said + f"Nothing is cut: “{first}” is drawn in {_percent(float(after.max()))} of all cases."
    return said + (
        f"The cut keeps {number:,} tokens, which had {_percent(mass)} of the probability. They share all of it now: "
        f"“{first}” is drawn in {_percent(float(after.max()))} of all cases."
    )


def _percent(share: float) -> str:
    if share == 0:
        return "0\u00a0%"
    return "< 0.1\u00a0%" if share < 0.0005 else f"{100 * share:.{int(share < 0.0995)}f}\u00a0%"


def _visible(text: str) -> str:
    return text.replace("\n", "⏎") or "∅"

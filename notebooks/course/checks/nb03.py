"""Checks of notebook 03, the KV cache."""

from typing import Any

import torch
from torch import Tensor

from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import expect, expect_equal
from notebooks.course.tables import Mistake, Wrong, compare

END = 2
SQUARE_ROOT = "Divide the scores by the square root of D before the softmax."


@exercise("3.1", "How many requests fit")
def _(given: Given) -> str:
    cases = [
        (1000, 400, 10, 21),
        (1000, 400, 10, 22),
        (25_769_803_776, 13_476_831_232, 524_288, 4097),
        (1000, 950, 10, 21),
        (1000, 400, 10, 2),
        (1000, 1500, 10, 21),
    ]
    mistakes = {
        "You give every request room for the K/V of num_tokens tokens. It needs one less: the newest token has no K/V yet, "
        "and the last token never gets any.": "newest",
        "That many requests would fit if there were no weights. The weights take memory too.": "no_weights",
        "A request that fits only partly doesn't fit.": "in_part",
        "Return a whole number of requests (an int). A request that fits only partly doesn't fit.": "exact",
        "A negative number of requests? If the weights alone don't fit, no request does.": "negative",
    }
    compare(given["requests_that_fit"], _fitting, cases, mistakes, hint="this many whole requests fit, and no more.")
    return "exact to the byte; none where there is no room"


def _fitting(
    memory_bytes: int, weight_bytes: int, kv_bytes_per_token: int, num_tokens: int, wrong: Wrong = ()
) -> float:
    room = memory_bytes if "no_weights" in wrong else memory_bytes - weight_bytes
    needed = kv_bytes_per_token * (num_tokens - ("newest" not in wrong))
    room = room if "negative" in wrong else max(room, 0)
    return room / needed if "exact" in wrong else -(-room // needed) if "in_part" in wrong else room // needed


@exercise("3.2", "Decode, for one head", points=2)
def _(given: Given) -> str:
    generator = torch.Generator().manual_seed(0)
    cases = []
    for length, head_dim in ((3, 4), (1, 8), (0, 4), (20, 32)):
        q, k, v = torch.randn(3, head_dim, generator=generator)
        cases.append((q, k, v, *torch.randn(2, length, head_dim, generator=generator)))
    mistakes: dict[str, Mistake] = {
        SQUARE_ROOT: "unscaled",
        "The new token sees itself too: attend over the keys with the new key appended.": "not_itself",
        "Scores aren't weights yet. The softmax makes them positive, and they then add up to 1.": "no_softmax",
        "You divide the scores by D. Divide them by its square root instead.": "by_d",
        "The new keys must be the cached keys followed by k, and the new values those followed by v.": "first",
    }
    hint = "return the output, the cached keys followed by k, and the cached values followed by v."
    compare(given["decode_step"], _decode_step, cases, mistakes, hint=hint, atol=1e-5)
    return "equal to attention over the cached tokens and the new one, from an empty cache on"


def _decode_step(
    q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, wrong: Wrong = ()
) -> tuple[Tensor, ...]:
    power = 0.0 if "unscaled" in wrong else 1.0 if "by_d" in wrong else 0.5
    keys = torch.cat((k[None], keys) if "first" in wrong else (keys, k[None]))
    values = torch.cat((v[None], values) if "first" in wrong else (values, v[None]))
    seen = len(keys) - ("not_itself" in wrong)
    scores = keys[:seen] @ q / len(q) ** power
    return (scores if "no_softmax" in wrong else scores.softmax(0)) @ values[:seen], keys, values


class _Forward:
    """Takes the place of the model. The nth pass returns `answers[n]`; every pass checks the tokens it is given."""

    def __init__(self, answers: list[int]):
        self.answers, self.computed, self.calls = answers, 0, list[list[int]]()

    def __call__(self, token_ids: Any, start: int) -> int:
        expect(len(self.calls) < len(self.answers), "You ran one pass too many: the session had already ended.")
        where = f"The cache holds {self.computed} tokens, so the next token to compute is at position {self.computed}."
        expect_equal(start, self.computed, where)
        self.calls.append([int(token) for token in token_ids])
        self.computed += len(token_ids)
        return self.answers[len(self.calls) - 1]


@exercise("3.3", "The bookkeeping of a session", points=3)
def _(given: Given) -> str:
    session_class, prompt = given["Session"], [1, 40, 41, 42]
    _run(session_class, prompt, [50, 51, 52, 53], 4)
    _run(session_class, prompt, [50, 51, END], 10)
    _run(session_class, [7], [50], 1)
    _run(session_class, [7, 8], [END], 5)
    _run(session_class, [1, END, 5], [60, 61], 2)
    return "every token computed once; ends by length and by the end token, and holds no K/V then"


def _run(session_class: Any, prompt: list[int], answers: list[int], max_new_tokens: int) -> None:
    """One session from prefill to end: checks the calls of `forward` and the session's state."""
    forward, given_prompt = _Forward(answers), list(prompt)
    session = session_class(forward, max_new_tokens, END)
    first = session.prefill(given_prompt)
    expect_equal(given_prompt, prompt, "You changed the caller's list of prompt tokens. Keep a copy instead.")
    expect_equal(forward.calls, [prompt], "`prefill` must compute the whole prompt in one pass, from position 0.")
    expect_equal(first, answers[0], "`prefill` must return the token that `forward` returns.")
    for n in range(1, len(answers) + 1):
        ended = n == len(answers)
        why = "the end token came" if answers[n - 1] == END else "this is the limit"
        state = f"After {n} new tokens (the last one is {answers[n - 1]}) with max_new_tokens={max_new_tokens}"
        expect_equal(
            session.token_ids, prompt + answers[:n], f"{state}: `token_ids` must be the prompt and these tokens."
        )
        because = f", because {why}." if ended else "."
        expect(session.finished == ended, f"{state}: `finished` must be {ended}{because}")
        if ended:
            expect_equal(session.kv_len, 0, "A session that has ended must hold no K/V.")
            break
        newest = "Your `kv_len` counts the newest token. It has no K/V yet: only the next pass computes it."
        expect(session.kv_len != len(session.token_ids), newest)
        expect_equal(
            session.kv_len, forward.computed, f"{state}: `kv_len` must be the number of tokens computed so far."
        )
        token = session.step_once()
        one = "`step_once` must compute the newest token and no other."
        expect_equal(forward.calls[1:], [[a] for a in answers[:n]], one)
        expect_equal(token, answers[n], "`step_once` must return the token that `forward` returns.")
    expect_equal(session.step_once(), None, "`step_once` must return None once the session has ended.")
    expect(len(forward.calls) == len(answers), "A session that has ended must not compute anything more.")

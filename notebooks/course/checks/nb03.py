"""Checks of notebook 03, the KV cache."""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from math import prod
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import expect, expect_equal
from notebooks.course.several import find_mistakes, several

END = 2


@exercise("3.1", "The bytes of a cache")
def _(given: Given) -> str | None:
    kv_cache_bytes = given["kv_cache_bytes"]
    shapes = [(5, 12, 3, 32, 4, 3840), (32, 32, 32, 128, 2, 524288), (28, 16, 8, 128, 2, 114688), (1, 4, 1, 7, 1, 14)]
    answers: list[tuple[float, int, tuple[int, ...]]] = []
    for layers, heads, kv_heads, head_dim, itemsize, per_token in shapes:
        config = SimpleNamespace(
            num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim
        )
        for num_tokens in (7, 1, 0, 1000):
            got = kv_cache_bytes(config, num_tokens, itemsize)
            expect(isinstance(got, int | float), f"Return the bytes as a plain number, not as a {type(got).__name__}.")
            answers.append((got, per_token * num_tokens, (layers, heads, kv_heads, head_dim, itemsize, num_tokens)))
    hint = None if all(got == want for got, want, _ in answers) else _mistaken_bytes(answers)
    expect(hint is None, hint or "")
    for got, want, (layers, heads, kv_heads, head_dim, itemsize, num_tokens) in answers:
        shape = f"L={layers}, H={heads}, Hk={kv_heads}, D={head_dim}"
        expect_equal(got, want, f"The size is wrong for {num_tokens} tokens, {shape} and {itemsize} bytes per number.")
    return "four models, with and without grouped-query attention"


def _mistaken_bytes(answers: Sequence[tuple[float, int, tuple[int, ...]]]) -> str | None:
    """The hints for the mistakes that explain all of `answers`, each with the factor by which it changes the right answer.
    One model is not enough to tell mistakes apart: it may have as many heads as a number has bytes."""
    mistakes: dict[str, Callable[..., Fraction]] = {
        "That is the size for one token. The cache holds `num_tokens` of them.": lambda L, H, Hk, D, i, n: Fraction(
            1, n
        ),
        "That is how many numbers the cache holds. Each takes `itemsize` bytes.": lambda L, H, Hk, D, i, n: Fraction(
            1, i
        ),
        "Every key/value head has its own vectors of size head_dim.": lambda L, H, Hk, D, i, n: Fraction(1, Hk),
        "Every layer has its own keys and values.": lambda L, H, Hk, D, i, n: Fraction(1, L),
        "Count key/value heads, not query heads. Query heads share keys and values, and queries aren't kept.": (
            lambda L, H, Hk, D, i, n: Fraction(H, Hk)
        ),
        "The cache holds a key and a value for each token: two vectors per layer and head, not one.": (
            lambda L, H, Hk, D, i, n: Fraction(1, 2)
        ),
    }
    return find_mistakes(
        mistakes,
        lambda made: all(got == want * prod(factor(*sizes) for factor in made) for got, want, sizes in answers if want),
    )


@exercise("3.2", "How many requests fit")
def _(given: Given) -> str | None:
    requests_that_fit = given["requests_that_fit"]
    cases = {
        (1000, 400, 10, 21): 3,
        (1000, 400, 10, 22): 2,
        (25_769_803_776, 13_476_831_232, 524_288, 4097): 5,
        (1000, 950, 10, 21): 0,
        (1000, 400, 10, 2): 60,
        (1000, 1500, 10, 21): 0,
    }
    answers = {sizes: requests_that_fit(*sizes) for sizes in cases}
    for (memory, weights, per_token, num_tokens), got in answers.items():
        case = f"memory_bytes={memory}, weight_bytes={weights}, kv_bytes_per_token={per_token}, num_tokens={num_tokens}"
        expect(isinstance(got, int), f"Return a whole number of requests (an int), not a {type(got).__name__}.")
        expect(got >= 0, f"{case}: {got} requests? If the weights alone don't fit, no request does.")
    hint = None if answers == cases else _mistaken_fit(answers)
    expect(hint is None, hint or "")
    for (memory, weights, per_token, num_tokens), want in cases.items():
        got = answers[memory, weights, per_token, num_tokens]
        case = f"memory_bytes={memory}, weight_bytes={weights}, kv_bytes_per_token={per_token}, num_tokens={num_tokens}"
        needed = weights + got * per_token * (num_tokens - 1)
        expect(
            got <= want,
            f"{case}: in the end, {got} requests need {needed} bytes, including the weights. A request that fits only "
            "partly doesn't fit.",
        )
        expect_equal(got, want, f"{case}: one more request would fit.")
    return "exact to the byte; none where there is no room"


def _mistaken_fit(answers: Mapping[tuple[int, int, int, int], int]) -> str | None:
    """The hints for the mistakes that explain all of `answers`. In a single case, numbers this small are easily equal by
    chance."""
    mistakes = {
        "You give every request room for the K/V of num_tokens tokens. It needs one less: the newest token has no K/V yet, "
        "and the last token never gets any.": "newest",
        "That many requests would fit if there were no weights. The weights take memory too.": "without weights",
        "A request that fits only partly doesn't fit.": "in part",
    }

    def fitting(made: Sequence[str], memory: int, weights: int, per_token: int, num_tokens: int) -> int:
        room = memory if "without weights" in made else max(0, memory - weights)
        needed = per_token * (num_tokens - ("newest" not in made))
        return -(-room // needed) if "in part" in made else room // needed

    return find_mistakes(mistakes, lambda made: all(got == fitting(made, *sizes) for sizes, got in answers.items()))


@exercise("3.3", "Decode, for one head", points=2)
def _(given: Given) -> str | None:
    decode_step = given["decode_step"]
    generator = torch.Generator().manual_seed(0)
    with several() as part:
        for length, head_dim in ((3, 4), (1, 8), (0, 4), (20, 32)):
            q, k, v = torch.randn(3, head_dim, generator=generator)
            keys, values = torch.randn(2, length, head_dim, generator=generator)
            kept = keys.clone(), values.clone()
            answer = decode_step(q, k, v, keys, values)
            expect(
                isinstance(answer, tuple) and len(answer) == 3,
                "Return three things: the output, the keys and the values.",
            )
            out, new_keys, new_values = answer
            cached = f"With {length} cached tokens"
            all_keys, all_values = torch.cat((kept[0], k[None])), torch.cat((kept[1], v[None]))
            with part("in place"):
                expect(
                    torch.equal(keys, kept[0]) and torch.equal(values, kept[1]),
                    "You changed `keys` or `values` in place. The caller may still need them, so make new tensors.",
                )
            with part("keys", "in place"):
                expect_equal(new_keys, all_keys, f"{cached}, the new keys must be the cached keys followed by k.")
            with part("values", "in place"):
                expect_equal(
                    new_values, all_values, f"{cached}, the new values must be the cached values followed by v."
                )
            with part("output"):
                expect_equal(
                    list(out.shape),
                    [head_dim],
                    "The output must be one vector of size D: a weighted sum of the values.",
                )
                _typical_attention(out, q, all_keys, all_values)
            with part("output", "keys", "values", "in place"):
                want = scaled_dot_product_attention(q[None, None], all_keys[None], all_values[None])[0, 0]
                expect_equal(out, want, f"{cached}, the output isn't attention over all keys and values.", atol=1e-5)
    _growing(decode_step, generator)
    return "equal to causal attention row by row, from an empty cache on"


def _typical_attention(out: torch.Tensor, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
    """Hints for attention that is nearly right. On these inputs, each of these mistakes changes the answer."""
    if len(keys) < 2:
        return
    mistakes: dict[str, dict[str, Any]] = {
        "Divide the scores by the square root of D before the softmax.": {"power": 0.0},
        "The new token sees itself too: attend over the keys with the new key appended.": {"seen": len(keys) - 1},
        "Scores aren't weights yet. The softmax makes them positive, and they then add up to 1.": {"softmax": False},
        "You divide the scores by D. Divide them by its square root instead.": {"power": 1.0},
    }

    def gives(made: Sequence[Mapping[str, Any]]) -> bool:
        options: dict[str, Any] = {"power": 0.5, "seen": len(keys), "softmax": True}
        for mistake in made:
            options |= mistake
        scores = (keys @ q / q.shape[-1] ** options["power"])[: options["seen"]]
        weights = scores.softmax(0) if options["softmax"] else scores
        return torch.allclose(out, weights @ values[: options["seen"]], atol=1e-5)

    hint = find_mistakes(mistakes, gives)
    expect(hint is None, hint or "")


def _growing(decode_step: Any, generator: torch.Generator) -> None:
    """A sequence of six tokens, one per step, compared with every row of causal attention."""
    q, k, v = torch.randn(3, 6, 16, generator=generator)
    want = scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
    keys = values = torch.empty(0, 16)
    for t in range(6):
        out, keys, values = decode_step(q[t], k[t], v[t], keys, values)
        expect_equal(
            out,
            want[t],
            f"Starting from an empty cache and adding one token at a time, token {t} differs from causal attention.",
            atol=1e-5,
        )


@exercise("3.4", "Grouped-query attention", points=2)
def _(given: Given) -> str | None:
    decode_attention = given["decode_attention"]
    generator = torch.Generator().manual_seed(1)
    for length, heads, kv_heads, head_dim in ((5, 8, 2, 4), (1, 4, 2, 8), (7, 3, 3, 4), (9, 6, 1, 16), (40, 8, 2, 32)):
        q = torch.randn(heads, head_dim, generator=generator)
        keys, values = torch.randn(2, length, kv_heads, head_dim, generator=generator)
        kept = keys.clone(), values.clone()
        out = decode_attention(q, keys, values)
        expect(
            torch.equal(keys, kept[0]) and torch.equal(values, kept[1]),
            "You changed `keys` or `values` in place. They are the cache, and later passes read them.",
        )
        expect(isinstance(out, torch.Tensor), f"Return a tensor [H, D], not a {type(out).__name__}.")
        shape = f"H={heads}, Hk={kv_heads}, D={head_dim}, S={length}"
        expect_equal(list(out.shape), [heads, head_dim], f"{shape}: the output must have one vector per query head.")
        right = _by_heads(q, keys, values)
        hint = _mistaken_sharing(out, q, keys, values)
        expect(hint is None, hint or "")
        expect_equal(
            out,
            right,
            f"{shape}: a query head's output isn't attention over its key/value head. Does your softmax run over the S "
            "tokens?",
            atol=1e-5,
        )
    return "with 1, 2 and H key/value heads"


def _by_heads(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, tiled: bool = False) -> torch.Tensor:
    """q [H, D], keys and values [S, Hk, D] -> [H, D]. `tiled`: query head h reads key/value head h % Hk."""
    heads, kv_heads = torch.arange(len(q)), keys.shape[1]
    read = heads % kv_heads if tiled else heads // (len(q) // kv_heads)
    k, v = (kv[:, read].transpose(0, 1) for kv in (keys, values))
    return scaled_dot_product_attention(q[:, None], k, v)[:, 0]


def _mistaken_sharing(out: torch.Tensor, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> str | None:
    """The hints for the mistakes that explain `out`."""
    mistakes: dict[str, dict[str, Any]] = {
        "Your query head h reads key/value head h % Hk. Neighbours share one: it must read head h // (H / Hk).": {
            "tiled": True
        },
        "Divide the scores by the square root of D before the softmax.": {"scale": q.shape[1] ** 0.5},
    }
    right = _by_heads(q, keys, values)

    def gives(made: Sequence[Mapping[str, Any]]) -> bool:
        options: dict[str, Any] = {"tiled": False, "scale": 1.0}
        for mistake in made:
            options |= mistake
        wrong = _by_heads(q * options["scale"], keys, values, options["tiled"])
        return torch.allclose(out, wrong, atol=1e-5) and not torch.allclose(wrong, right, atol=1e-5)

    return find_mistakes(mistakes, gives)


class _Forward:
    """Takes the place of the model. The nth pass returns `answers[n]`; every pass checks the tokens it is given."""

    def __init__(self, answers: list[int]):
        self.answers, self.computed, self.calls = answers, 0, []  # type: ignore[var-annotated]

    def __call__(self, token_ids: Any, start: int) -> int:
        token_ids = [int(token) for token in token_ids]
        expect(len(self.calls) < len(self.answers), "You ran one pass too many: the session had already ended.")
        expect(token_ids, "You called `forward` without any tokens.")
        expect_equal(
            start,
            self.computed,
            f"The cache holds {self.computed} tokens, so the next token to compute is at position {self.computed}.",
        )
        self.calls.append(token_ids)
        self.computed += len(token_ids)
        return self.answers[len(self.calls) - 1]


@exercise("3.5", "The bookkeeping of a session", points=3)
def _(given: Given) -> str | None:
    session_class = given["Session"]
    prompt = [1, 40, 41, 42]
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
        expect_equal(
            session.token_ids,
            prompt + answers[:n],
            f"After {n} new tokens, `token_ids` must be the prompt followed by these tokens.",
        )
        ended = n == len(answers)
        why = "the end token came" if answers[n - 1] == END else "this is the limit"
        state = f"After {n} new tokens (the last one is {answers[n - 1]}) with max_new_tokens={max_new_tokens}"
        expect(
            session.finished == ended, f"{state}: `finished` must be {ended}" + (f", because {why}." if ended else ".")
        )
        if ended:
            expect_equal(session.kv_len, 0, "A session that has ended must hold no K/V.")
            continue
        expect(
            session.kv_len != len(session.token_ids),
            "Your `kv_len` counts the newest token. It has no K/V yet: only the next pass reads it and computes its K/V.",
        )
        expect_equal(
            session.kv_len, forward.computed, f"{state}: `kv_len` must be the number of tokens computed so far."
        )
        token = session.step_once()
        expect_equal(
            forward.calls[1:], [[a] for a in answers[:n]], "`step_once` must compute the newest token and no other."
        )
        expect_equal(token, answers[n], "`step_once` must return the token that `forward` returns.")
    expect_equal(session.step_once(), None, "`step_once` must return None once the session has ended.")
    expect(len(forward.calls) == len(answers), "A session that has ended must not compute anything more.")

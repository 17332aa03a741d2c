"""Checks of notebook 03, the KV cache."""

import torch
from torch import Tensor

from notebooks.course.exercises import Given, exercise
from notebooks.course.tables import Mistake, Wrong, compare


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
        "Divide the scores by the square root of D before the softmax.": "unscaled",
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

"""The figures of one cell: how much was found in caches, how long clients waited, and what they got."""

from collections.abc import Sequence
from statistics import quantiles
from typing import Any

from nanoinfer.bench.cluster.traffic import Exchange


def figures_of(exchanges: Sequence[Exchange], wanted: Sequence[Sequence[int]]) -> dict[str, Any]:
    """`wanted`: what one engine answers to each of the exchanges' prompts.

    `hit_rate`: cached tokens of all prompt tokens; `ideal_hit_rate`: of one infinitely large cache. Times in seconds.
    `wrong`: requests whose tokens are not those of one engine alone; `failed`: those without an answer.
    """
    good = [each for each in exchanges if each.error is None]
    errors = [each.error for each in exchanges if each.error is not None]
    pairs = zip(exchanges, wanted, strict=True)
    ttft = sorted(each.first_token - each.sent for each in good) or [0.0]
    centiles = quantiles(ttft, n=100, method="inclusive") if len(ttft) > 1 else ttft * 99
    span = max((each.end for each in good), default=0.0) - min((each.sent for each in good), default=0.0)
    return {
        "requests": len(exchanges),
        "hit_rate": sum(each.cached_tokens for each in good) / max(sum(len(each.prompt) for each in good), 1),
        "ideal_hit_rate": ideal_hits(exchanges) / max(sum(len(each.prompt) for each in exchanges), 1),
        "ttft_p50": centiles[49],
        "ttft_p99": centiles[98],
        "output_tokens_per_second": sum(len(each.output) for each in good) / span if span else 0.0,
        "wrong": sum(each.error is None and each.output != list(right) for each, right in pairs),
        "failed": len(errors),
        "first_error": errors[0] if errors else None,
    }


def ideal_hits(exchanges: Sequence[Exchange]) -> int:
    """The cached tokens of one infinitely large cache that serves these in the order in which they were sent, each of which
    finds the prompts of all before it, and their answers. No routing can do better."""
    trie: dict[int, Any] = {}
    hits = 0
    for each in sorted(exchanges, key=lambda each: each.sent):
        node = trie
        for token in each.prompt[:-1]:  # the last one is always computed
            if token not in node:
                break
            node, hits = node[token], hits + 1
        node = trie
        for token in (*each.prompt, *each.output):
            node = node.setdefault(token, {})
    return hits

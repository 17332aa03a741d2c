"""The figures of one cell: how much was found in caches, how long clients waited, and what they got."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import quantiles
from typing import Any

from nanoinfer.bench.cluster.traffic import Exchange


@dataclass(frozen=True)
class Figures:
    """`hit_rate`: cached tokens of all prompt tokens; `ideal_hit_rate`: of one infinitely large cache. Times in seconds.
    `wrong`: requests whose tokens are not those of one engine alone; `failed`: those without an answer.
    `load`: of the machine, in processes, when the traffic began."""

    setup: str
    policy: str
    workload: str
    requests: int
    hit_rate: float
    ideal_hit_rate: float
    ttft_p50: float
    ttft_p99: float
    output_tokens_per_second: float
    wrong: int
    failed: int
    first_error: str | None = None
    load: float | None = None

    def as_json(self) -> dict[str, Any]:
        """Everything, by name."""
        return asdict(self)


def figures_of(
    setup: str, policy: str, workload: str, exchanges: Sequence[Exchange], wanted: Sequence[Sequence[int]]
) -> Figures:
    """`wanted`: what one engine answers to each of the exchanges' prompts."""
    good = [each for each in exchanges if each.error is None]
    errors = [each.error for each in exchanges if each.error is not None]
    ttft = sorted(each.first_token - each.sent for each in good) or [0.0]
    centiles = quantiles(ttft, n=100, method="inclusive") if len(ttft) > 1 else ttft * 99
    prompts = sum(len(each.prompt) for each in good)
    span = max((each.end for each in good), default=0.0) - min((each.sent for each in good), default=0.0)
    tokens = sum(len(each.output or ()) for each in good)
    return Figures(
        setup,
        policy,
        workload,
        len(exchanges),
        sum(each.cached_tokens for each in good) / max(prompts, 1),
        ideal_hits(exchanges) / max(sum(len(each.prompt) for each in exchanges), 1),
        centiles[49],
        centiles[98],
        tokens / span if span else 0.0,
        sum(
            each.error is None and list(each.output or ()) != list(right)
            for each, right in zip(exchanges, wanted, strict=True)
        ),
        len(errors),
        errors[0] if errors else None,
    )


def ideal_hits(exchanges: Sequence[Exchange]) -> int:
    """The cached tokens of one infinitely large cache that serves these in the order in which they were sent, each of which
    finds the prompts of all before it, and their answers."""
    cache, hits = InfiniteCache(), 0
    for each in sorted(exchanges, key=lambda each: each.sent):
        hits += cache.matched(each.prompt)
        cache.add([*each.prompt, *(each.output or ())])
    return hits


class InfiniteCache:
    """The hits of one cache that forgets nothing and that all requests share: no routing can do better. A trie of all
    tokens that it was given."""

    def __init__(self) -> None:
        self._root: dict[int, Any] = {}

    def matched(self, token_ids: Sequence[int]) -> int:
        """How many of the first tokens are there; of a prompt, the last one is always computed."""
        node, count = self._root, 0
        for token in token_ids[:-1]:
            if token not in node:
                break
            node, count = node[token], count + 1
        return count

    def add(self, token_ids: Sequence[int]) -> None:
        """A sequence whose K/V has been computed."""
        node = self._root
        for token in token_ids:
            node = node.setdefault(token, {})

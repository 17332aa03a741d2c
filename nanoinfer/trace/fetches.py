"""What a trace knows about fetches: K/V that came back from a storey below the pool; and what is said about them."""

from collections.abc import Mapping
from typing import NamedTuple

from nanoinfer.requests.outputs import tokens_by_tier
from nanoinfer.trace.data import TraceData
from nanoinfer.trace.events import Fetch, TraceEvent

FROM = {"host": "host memory", "disk": "files"}
MOST = 3  # fetches that are said one by one


def fetched_clauses(trace: TraceData, event: TraceEvent) -> list[str]:
    """Which requests fetched K/V in an event, how much, and from where."""
    clauses = [f"{trace.requests[fetch.request].name} fetches K/V of {said(fetch)}" for fetch in event.fetched]
    if len(clauses) <= MOST + 1:
        return clauses
    tokens = sum(fetch.end - fetch.start for fetch in event.fetched[MOST:])
    return [*clauses[:MOST], f"{len(clauses) - MOST} more fetch K/V of {tokens:,} tokens"]


def said(fetch: Fetch) -> str:
    """`32 tokens from host memory`, `32 tokens from host memory and 16 from files`."""
    return from_where({storey: end - start for storey, (start, end) in fetch.parts.items()})


def from_where(tokens: Mapping[str, int]) -> str:
    """The same for the number of tokens of each storey; none is 0."""
    (first, number), *more = tokens.items()
    words = f"{number:,} token{'s' * (number != 1)} from {FROM[first]}"
    return words + "".join(f" and {number:,} from {FROM[storey]}" for storey, number in more)


class FetchedPrefix(NamedTuple):
    """`request` was admitted in `step`, and K/V of its prefix had been fetched for that: `tokens` says of how many tokens,
    by storey, without those that gave none. `again`: it had been admitted before, so its output doesn't count them."""

    request: int
    step: int
    tokens: dict[str, int]
    again: bool


def fetched_prefixes(trace: TraceData) -> list[FetchedPrefix]:
    """Every admission of a request whose prefix was fetched, in order. A fetch may be steps before the admission, if there
    was no room in a pass. What came for a first admission is counted as in RequestOutput.cached_tokens_by_tier."""
    found: list[FetchedPrefix] = []
    if not trace.storeys:
        return found
    fetched: dict[int, dict[str, tuple[int, int]]] = {}  # requests that wait → what has come for them
    admitted: set[int] = set()  # requests that have been admitted at least once
    for event in trace.events:
        for index in event.arrived:
            request = trace.requests[index]
            if request.admitted:
                admitted.add(index)
            else:
                fetched[index] = request.fetched
        fetched.update((fetch.request, fetch.parts) for fetch in event.fetched)
        for entry in event.admitted:
            tiers = tokens_by_tier(entry.prefix_len, fetched.pop(entry.request, {}))
            if tokens := {storey: tiers[storey] for storey in FROM if tiers[storey]}:
                found.append(FetchedPrefix(entry.request, event.step, tokens, entry.request in admitted))
            admitted.add(entry.request)
    return found

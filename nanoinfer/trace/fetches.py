"""What is said about fetches: K/V that came back from a storey below the pool."""

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
    (first, (start, end)), *more = fetch.parts.items()
    words = f"{end - start:,} token{'s' * (end - start != 1)} from {FROM[first]}"
    return words + "".join(f" and {end - start:,} from {FROM[storey]}" for storey, (start, end) in more)

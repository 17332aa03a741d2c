"""What a message adds about a name that nobody knows."""

from collections.abc import Iterable
from difflib import get_close_matches

from nanoinfer.requests.keywords import CLOSE, LONGEST


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The most similar of the `known` names, as the end of a sentence; empty if none is similar."""
    close = get_close_matches(name, list(known), n=1, cutoff=CLOSE) if len(name) <= LONGEST else []
    return f"; did you mean {close[0]!r}?" if close else ""

"""NgramDrafter: what followed the last time when the request's own tokens were the same (prompt lookup, Saxena, 2023)."""

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from nanoinfer.drafting.suffix_index import SuffixIndex
from nanoinfer.requests.req import Req

SHORTEST_MATCH = 2


class NgramDrafter:
    """Finds the longest suffix of prompt and output that occurred before, and proposes what followed it.

    A step costs what is new: each token is put into the request's SuffixIndex once. If what followed reaches the end of
    the sequence, it repeats itself, and so do the drafts.
    """

    def __init__(self) -> None:
        self._indices: WeakKeyDictionary[Req, SuffixIndex] = WeakKeyDictionary()

    def propose(self, reqs: Sequence[Req], most: Sequence[int]) -> list[list[int]]:
        return [self._drafts(req, count) for req, count in zip(reqs, most, strict=True)]

    def _drafts(self, req: Req, count: int) -> list[int]:
        index = self._indices.get(req)
        if index is None:
            index = self._indices[req] = SuffixIndex()
        for token in req.token_ids[index.size : req.num_tokens].tolist():
            index.append(token)
        if index.match_length < SHORTEST_MATCH:
            return []
        drafts: list[int] = req.token_ids[index.follows : min(index.follows + count, req.num_tokens)].tolist()
        period = len(drafts)
        while len(drafts) < count:
            drafts.append(drafts[-period])
        return drafts

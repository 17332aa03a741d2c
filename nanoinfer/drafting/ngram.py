"""NgramDrafter: what followed the last time when the request's own tokens were the same (prompt lookup, Saxena, 2023)."""

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from nanoinfer.requests.req import Req

SHORTEST_MATCH = 2


class SuffixIndex:
    """A suffix automaton (Blumer et al., 1985), which takes one token at a time, in constant time on average.

    Its states are the sets of substrings that end at the same positions. The link of a state leads to its longest suffix
    that also ends elsewhere. So the link of the state of the whole sequence is the longest suffix that occurred before.
    """

    def __init__(self) -> None:
        self._next: list[dict[int, int]] = [{}]
        self._link, self._length = [-1], [0]
        self._end = [-1]  # the last position at which each state is known to end
        self._whole = 0
        self.size = 0  # how many tokens it has taken
        self.match_length = 0  # the length of the longest suffix that occurred before
        self.follows = 0  # the position that follows its last known occurrence, if it has one

    def append(self, token: int) -> None:
        """Take the next token, and look its longest known suffix up."""
        state, before = self._add(self._length[self._whole] + 1, {}, -1, self.size), self._whole
        while before >= 0 and token not in self._next[before]:
            self._next[before][token] = state
            before = self._link[before]
        self._link[state] = 0 if before < 0 else self._split(before, token)
        self._whole = state
        longest = self._link[state]
        self.match_length, self.follows = self._length[longest], self._end[longest] + 1
        self._end[longest] = self.size
        self.size += 1

    def _split(self, before: int, token: int) -> int:
        """The state of the longest substring of `before`, followed by `token`; it may have to be cut out of another."""
        after = self._next[before][token]
        if self._length[after] == self._length[before] + 1:
            return after
        part = self._add(self._length[before] + 1, dict(self._next[after]), self._link[after], self._end[after])
        self._link[after] = part
        while before >= 0 and self._next[before].get(token) == after:
            self._next[before][token] = part
            before = self._link[before]
        return part

    def _add(self, length: int, following: dict[int, int], link: int, end: int) -> int:
        self._next.append(following)
        self._link.append(link)
        self._length.append(length)
        self._end.append(end)
        return len(self._length) - 1


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

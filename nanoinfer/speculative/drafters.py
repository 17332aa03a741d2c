"""Drafters propose the next tokens of requests: from the request's own text, the radix tree or its grammar."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np

from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.cache.indices import common_prefix_len
from nanoinfer.cache.tree_node import TreeNode
from nanoinfer.requests.req import Req
from nanoinfer.sampling.sampler import Sampler

SHORTEST_MATCH = 2  # of an n-gram
MOST_CHILDREN = 64  # of a node, looked at to find the one that was used last


class Drafter(Protocol):
    """Proposes tokens, each of which the next pass accepts if it is what the request would get anyway. So a drafter can be
    wrong, but it cannot change what a request gets.
    """

    def propose(self, reqs: Sequence[Req], most: Sequence[int]) -> list[list[int]]:
        """The likely next tokens of each request, at most `most[i]`, which is at least 1; [] where it has no idea.

        All of a request's tokens, `token_ids[:num_tokens]`, are to be taken into account. Its row has slots for `most[i]`
        tokens behind them. It may write to `token_ids` behind them: that is where the drafts of the next pass are put.
        """
        ...


@dataclass(frozen=True)
class Surroundings:
    """What a drafter may be made from: the cache, whose rows say which slots a request has; the sampler; and the
    ModelRunner of the draft model, None if there is none. `chunked_prefill_size`: as in EngineConfig."""

    cache: CacheManager
    sampler: Sampler
    draft_runner: Any = None
    chunked_prefill_size: int | None = None


class GrammarDrafter:
    """Where a grammar allows one continuation only, such as the next key of a JSON object, it is the draft."""

    def propose(self, reqs: Sequence[Req], most: Sequence[int]) -> list[list[int]]:
        return [
            [] if req.matcher is None else req.matcher.forced_tokens()[:count]
            for req, count in zip(reqs, most, strict=True)
        ]


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


class TreeDrafter:
    """Follows the request's tokens down from the node that it holds a lock on, and proposes what is behind them.

    Where several continuations are known, it takes the one that was used last. It changes nothing in the tree, and marks
    nothing as used.
    """

    def propose(self, reqs: Sequence[Req], most: Sequence[int]) -> list[list[int]]:
        return [self._drafts(req, count) for req, count in zip(reqs, most, strict=True)]

    def _drafts(self, req: Req, count: int) -> list[int]:
        if req.last_node is None:
            return []
        tokens = continuation(req.last_node, req.token_ids[req.tree_len : req.num_tokens], req.extra_key, count)
        return [int(token) for token in tokens]


def continuation(node: TreeNode, tokens: np.ndarray, extra_key: Hashable, count: int) -> np.ndarray:
    """At most `count` tokens that follow `tokens`, which follow `node`, in the tree; none if it does not know `tokens`."""
    following = np.empty(0, dtype=np.int64)
    while len(following) < count:
        child = _child(node, tokens, extra_key)
        if child is None:
            break
        shared = common_prefix_len(child.key, tokens)
        if shared < min(len(tokens), len(child)):
            break
        node, tokens, following = child, tokens[shared:], np.concatenate((following, child.key[shared:]))
    return following[:count]


def _child(node: TreeNode, tokens: np.ndarray, extra_key: Hashable) -> TreeNode | None:
    """The child to follow: the one that `tokens` lead to, or if they end within its first page, the last used of those."""
    page = len(next(iter(node.children))[1]) // tokens.itemsize if node.children else 0
    if page and len(tokens) >= page:
        return node.children.get((extra_key, tokens[:page].tobytes()))
    start = tokens.tobytes()
    newest = islice(reversed(node.children.items()), MOST_CHILDREN)
    fitting = [child for (key, page), child in newest if key == extra_key and page.startswith(start)]
    return max(fitting, key=lambda child: child.last_access_time, default=None)

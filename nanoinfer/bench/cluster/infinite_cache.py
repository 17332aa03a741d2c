"""InfiniteCache: the hits of one cache that forgets nothing and that all requests share: no routing can do better."""

from collections.abc import Sequence
from typing import Any


class InfiniteCache:
    """A trie of all tokens that it was given."""

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

"""PrefixStamps: a number for each prefix of a request's tokens, which tells whose K/V is in a slot."""

import numpy as np

from nanoinfer.requests.req import Req

FACTOR = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2 ** 64


class PrefixStamps:
    """The stamp of position `i` is a hash of the tokens up to it: K/V depends on them and on nothing else.

    With `h[i] = (h[i - 1] + token + 1) * FACTOR` modulo 2 ** 64, the stamps of new tokens follow from the last one. Zero is
    no stamp. Two prefixes that have the same stamp by chance would cost a few wrong drafts, and nothing else.
    """

    def __init__(self, capacity: int):
        self._stamps = np.zeros(capacity + 1, dtype=np.uint64)  # the first is that of no tokens
        self._tokens = np.full(capacity, -1, dtype=np.int64)  # whose stamps these are
        self._size = 0

    def of(self, req: Req, start: int, end: int) -> np.ndarray:
        """The stamps of the positions `start .. end - 1` of `req`, uint64, drafts behind its tokens included."""
        known = min(self._size, end)
        recent = max(known - 128, 0)  # drafts are replaced, tokens never; and there are at most 64 drafts
        differ = self._tokens[recent:known] != req.token_ids[recent:known]
        if differ.any():
            known = recent + int(differ.argmax())
        stamp = int(self._stamps[known])
        for i, token in enumerate(req.token_ids[known:end].tolist(), start=known):
            stamp = (stamp + token + 1) * FACTOR & 0xFFFFFFFFFFFFFFFF
            self._stamps[i + 1] = stamp
            self._tokens[i] = token
        self._size = max(known, end)
        return self._stamps[start + 1 : end + 1]

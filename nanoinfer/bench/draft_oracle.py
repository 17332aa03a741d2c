"""A drafter for measurements, whose drafts are right as often as they are told to be."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from nanoinfer.registry import DRAFTERS
from nanoinfer.requests.req import Req

NAME = "oracle"


class OracleDrafter:
    """Knows the output of every request from a run without drafts, and spoils each token with probability `1 - rate`.

    Which tokens are spoiled depends on `seed`, `rate`, the prompt and the place in the output, so it is the same for any
    number of drafts. Requests that are not known get no drafts.
    """

    def __init__(self, vocab_size: int, seed: int = 0):
        self.rate, self._vocab_size, self._seed = 1.0, vocab_size, seed
        self._known: dict[bytes, np.ndarray] = {}
        self._spoiled: dict[tuple[float, bytes], np.ndarray] = {}

    def learn(self, prompt: Sequence[int], output: Sequence[int]) -> None:
        """Remember what the request with this prompt gets."""
        self._known[_key(prompt)] = np.array(output, dtype=np.int64)

    def propose(self, reqs: Sequence[Req], most: Sequence[int]) -> list[list[int]]:
        return [self._drafts(req, count) for req, count in zip(reqs, most, strict=True)]

    def _drafts(self, req: Req, count: int) -> list[int]:
        key = _key(req.token_ids[: req.prompt_len])
        if key not in self._known:
            return []
        drafts: list[int] = self._answers(key)[req.num_output_tokens :][:count].tolist()
        return drafts

    def _answers(self, key: bytes) -> np.ndarray:
        """The known output, spoiled: a wrong token is the next one of the vocabulary."""
        found = self._spoiled.get((self.rate, key))
        if found is None:
            tokens = self._known[key]
            rng = np.random.default_rng([self._seed, *key])
            wrong = rng.random(len(tokens)) >= self.rate
            found = self._spoiled[self.rate, key] = (tokens + wrong) % self._vocab_size
        return found


@contextmanager
def registered(oracle: OracleDrafter) -> Iterator[None]:
    """Within the block, engines can be made with `drafter="oracle"`."""
    DRAFTERS[NAME] = lambda _: oracle
    try:
        yield
    finally:
        del DRAFTERS[NAME]


def _key(prompt: Sequence[int] | np.ndarray) -> bytes:
    return np.asarray(prompt, dtype=np.int64).tobytes()

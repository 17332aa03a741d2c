"""A drafter that foresees what the counting model of engines.py chooses, and an engine that asks it."""

from collections.abc import Sequence
from typing import Any

from nanoinfer import Engine
from nanoinfer.model.forward_batch import ForwardMode
from nanoinfer.requests.req import Req
from tests.helpers.engines import V, make_engine

WRONG = 100  # no prompt here comes near it


class Foreseeing:
    """Proposes as much as it may: `right` drafts that the counting model will choose, then wrong ones."""

    def __init__(self) -> None:
        self.right = 64
        self.asked: list[tuple[list[int], list[int]]] = []  # request ids, and at most how many drafts each
        self.error: BaseException | None = None

    def propose(self, reqs: Sequence[Req], most: Sequence[int]) -> list[list[int]]:
        if self.error is not None:
            raise self.error
        self.asked.append(([req.request_id for req in reqs], list(most)))
        drafts = []
        for req, count in zip(reqs, most, strict=True):
            newest = int(req.token_ids[req.num_tokens - 1])
            right = [(newest + 1 + i) % V for i in range(count)]
            drafts.append(right[: self.right] + [WRONG] * (count - self.right))
        return drafts


def engine_of(**options: Any) -> Engine:
    return make_engine(**{"drafter": "foreseeing", "adaptive_drafts": False, **options})


def mode_of(engine: Engine) -> ForwardMode:
    assert engine.last_batch is not None
    return engine.last_batch.forward_mode

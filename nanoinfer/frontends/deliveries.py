"""Deliveries: the streams of an engine's requests, and how they get what is new."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from nanoinfer.errors import EngineClosedError
from nanoinfer.frontends.async_stream import Delivery, Item, send
from nanoinfer.requests.outputs import PieceReader, RequestGroup, RequestOutput, StreamPiece

logger = logging.getLogger(__name__)


class Deliveries:
    """A Delivery per request that has not ended. Only the engine's thread uses it."""

    def __init__(self) -> None:
        self._by_id: dict[int, Delivery] = {}

    def __contains__(self, request_id: int | None) -> bool:
        return request_id in self._by_id

    def add(self, delivery: Delivery, group: RequestGroup) -> None:
        """A request that the engine has queued."""
        delivery.request_id, delivery.pieces = group.request_id, PieceReader(group)
        self._by_id[group.request_id] = delivery

    def forget(self, request_id: int) -> None:
        """Nobody reads the request any more, if anybody did."""
        self._by_id.pop(request_id, None)

    def hand_out(self, outputs: Sequence[RequestOutput]) -> list[int]:
        """Send each stream its new pieces and, if its request has ended, the last output: one call per event loop.

        Returns the requests that go on although nobody can read them any more: their event loop is closed, or their pieces
        cannot be made, which is an error for this stream and no other.
        """
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Delivery, Item]]] = {}
        last: dict[int, Item] = {}  # by request id
        for output in outputs:
            if (delivery := self._by_id.get(output.request_id)) is not None:
                for item in _items(delivery, output):
                    by_loop.setdefault(delivery.loop, []).append((delivery, item))
                    last[output.request_id] = item
        closed = [loop for loop, items in by_loop.items() if not send(loop, items)]
        over = [i for i, item in last.items() if not isinstance(item, StreamPiece) or self._by_id[i].loop in closed]
        for request_id in over:  # only now: `lose` must find what is not sent yet
            self.forget(request_id)
        finished = {output.request_id for output in outputs if output.finished}
        return [request_id for request_id in over if request_id not in finished]

    def lose(self, failure: BaseException | None) -> None:
        """Tell all streams that are left that the engine has ended without their last outputs, whatever happens."""
        for request_id, delivery in self._by_id.items():
            lost = EngineClosedError(f"request {request_id} was lost: the engine's thread ended ({failure!r})")
            lost.__cause__ = failure
            try:
                send(delivery.loop, [(delivery, lost)])
            except Exception:  # the others must be told all the same
                logger.exception("a stream cannot be told that its request was lost")
        self._by_id.clear()


def _items(delivery: Delivery, output: RequestOutput) -> list[Item]:
    """What is new in a stream. If it cannot be made, the last item says so."""
    assert delivery.pieces is not None
    items: list[Item] = []
    try:
        items += delivery.pieces.read()
    except Exception as error:
        logger.exception("the pieces of request %d cannot be made", output.request_id)
        return [*items, replace(output, error=output.error or error)]
    return [*items, output] if output.finished else items

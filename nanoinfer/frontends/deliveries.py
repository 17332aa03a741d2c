"""Deliveries: the streams of an engine's requests, and how they get what is new."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from nanoinfer.errors import EngineClosedError
from nanoinfer.frontends.async_stream import Delivery, Item, send
from nanoinfer.requests.request_group import RequestGroup, Update, made
from nanoinfer.requests.stream_pieces import PieceReader, StreamPiece

logger = logging.getLogger(__name__)


class Deliveries:
    """A Delivery per request that has not ended. Used between two steps."""

    def __init__(self) -> None:
        self._by_id: dict[int, Delivery] = {}

    def __contains__(self, request_id: int | None) -> bool:
        return request_id in self._by_id

    def request_ids(self) -> list[int]:
        """The requests that have not ended."""
        return list(self._by_id)

    def add(self, delivery: Delivery, group: RequestGroup) -> None:
        """A request that the engine has queued."""
        delivery.request_id, delivery.pieces = group.request_id, PieceReader(group)
        self._by_id[group.request_id] = delivery

    def forget(self, request_id: int) -> None:
        """Nobody reads the request any more, if anybody did."""
        self._by_id.pop(request_id, None)

    def hand_out(self, updates: Sequence[Update]) -> list[int]:
        """Send each stream its new pieces and, if its request has ended, the last output: one call per event loop.

        Returns the requests that go on although nobody can read them any more: their event loop is closed, or their pieces
        cannot be made, which is an error for this stream and no other.
        """
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Delivery, Item]]] = {}
        last: dict[int, Item] = {}  # by request id
        for update in updates:
            if (delivery := self._by_id.get(update.request_id)) is not None:
                for item in _items(delivery, update):
                    by_loop.setdefault(delivery.loop, []).append((delivery, item))
                    last[update.request_id] = item
        closed = [loop for loop, items in by_loop.items() if not send(loop, items)]
        over = [i for i, item in last.items() if not isinstance(item, StreamPiece) or self._by_id[i].loop in closed]
        for request_id in over:  # only now: `lose` must find what is not sent yet
            self.forget(request_id)
        finished = {update.request_id for update in updates if update.finished}
        return [request_id for request_id in over if request_id not in finished]

    def lose(self, failure: BaseException) -> None:
        """Tell all streams that are left that their last outputs will not come, whatever happens."""
        for request_id, delivery in self._by_id.items():
            lost = EngineClosedError(f"request {request_id} was lost: {failure!r}")
            lost.__cause__ = failure
            try:
                send(delivery.loop, [(delivery, lost)])
            except Exception:  # the others must be told all the same
                logger.exception("a stream cannot be told that its request was lost")
        self._by_id.clear()


def _items(delivery: Delivery, update: Update) -> list[Item]:
    """What is new in a stream. If it cannot be made, the last item says so."""
    assert delivery.pieces is not None
    items: list[Item] = []
    try:
        items += delivery.pieces.read()
    except Exception as error:
        logger.exception("the pieces of request %d cannot be made", update.request_id)
        output = made(update)
        return [*items, replace(output, error=output.error or error)]
    return [*items, made(update)] if update.finished else items

"""ResponseStore: the responses that clients may name again, in memory: at most so many, the oldest go first."""

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from reprlib import repr as repr_in_short
from typing import Any

from nanoinfer.server.errors import ApiError

MOST_BYTES = 256 * 2**20  # of all of them: `store_responses` says how many there are, not how long they are


@dataclass(frozen=True)
class StoredResponse:
    """`answer`: the response as it was sent. `items`: its whole conversation, input and output; the first `num_inputs` are
    input. Both are JSON, so that their size is known and nobody changes them."""

    answer: str
    items: str
    num_inputs: int

    @property
    def size(self) -> int:
        """Its characters."""
        return len(self.answer) + len(self.items)


class ResponseStore:
    """Responses by id, at most `most` and about `most_bytes`. A new one takes the place of the oldest."""

    def __init__(self, most: int, most_bytes: int = MOST_BYTES):
        self._most, self._most_bytes, self._size = most, most_bytes, 0
        self._responses = OrderedDict[str, StoredResponse]()
        self._owners: dict[str, str] = {}  # id of an item → that of the newest response that has it

    def __len__(self) -> int:
        return len(self._responses)

    def add(self, answer: dict[str, Any], inputs: Sequence[dict[str, Any]]) -> None:
        """Keep a response and the items before its own. All of them have ids."""
        items = [*inputs, *answer["output"]]
        added = StoredResponse(json.dumps(answer), json.dumps(items), len(inputs))
        if added.size > self._most_bytes:
            return
        self._responses[answer["id"]] = added
        self._size += added.size
        self._owners |= dict.fromkeys([item["id"] for item in items], answer["id"])
        while len(self._responses) > self._most or self._size > self._most_bytes:
            self.remove(next(iter(self._responses)))

    def get(self, response_id: str, field: str = "response_id") -> StoredResponse:
        """ApiError (404) naming `field` for one that is not stored, or no longer."""
        if (found := self._responses.get(response_id)) is None:
            message = (
                f"{field}={repr_in_short(response_id)}: no such response is stored (--store-responses {self._most})"
            )
            raise ApiError(404, message, field, "response_not_found")
        return found

    def remove(self, response_id: str) -> None:
        """Forget a response. ApiError (404) as in `get`."""
        removed = self.get(response_id)
        del self._responses[response_id]
        self._size -= removed.size
        for item in json.loads(removed.items):
            if self._owners.get(item["id"]) == response_id:
                del self._owners[item["id"]]

    def item(self, item_id: str, field: str) -> dict[str, Any]:
        """An item of a stored response. ApiError (404) as in `get`."""
        owner = self._owners.get(item_id)
        if owner is None:
            message = f"{field}={repr_in_short(item_id)}: no stored response has this item"
            raise ApiError(404, message, field, "item_not_found")
        return next(item for item in json.loads(self._responses[owner].items) if item["id"] == item_id)

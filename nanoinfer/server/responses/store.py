"""ResponseStore: the responses that clients may name again, in memory: at most so many, the oldest go first."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from reprlib import repr as repr_in_short
from typing import Any
from uuid import uuid4

from pydantic import TypeAdapter

from nanoinfer.server.errors import ApiError
from nanoinfer.server.responses import protocol

MOST_BYTES = 256 * 2**20  # of all of them: `store_responses` says how many there are, not how long they are
PREFIXES = {
    "response": "resp",
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
}
_ITEMS: TypeAdapter[list[Any]] = TypeAdapter(list[protocol.Item])


def new_id(kind: str) -> str:
    """An id for an item of this type."""
    return f"{PREFIXES[kind]}_{uuid4().hex}"


def as_stored(item: Any) -> dict[str, Any]:
    """An item as clients get it back: with an id, and parts as its content. What a function has returned is text, if it is
    one: clients read it as such."""
    plain = item.model_dump(exclude_none=True)
    plain.setdefault("id", new_id(item.type))
    if isinstance(item, protocol.ReasoningItem):
        return {"summary": [], **plain}
    if isinstance(item, protocol.MessageItem):
        kind = {"type": "output_text", "annotations": []} if item.role == "assistant" else {"type": "input_text"}
        plain["content"] = [part if "refusal" in part else {**part, **kind} for part in plain["content"]]
    if isinstance(item, protocol.FunctionCallOutputItem) and len(item.output) == 1:
        plain["output"] = plain["output"][0].get("text", plain["output"])
    return {"status": "completed", **plain}


@dataclass(frozen=True)
class StoredResponse:
    """`answer`: the response as it was sent. `items`: its whole conversation, input and output; the first `num_inputs` are
    input. Both are JSON, so that their size is known and nobody changes them. `ids`: of the items."""

    answer: str
    items: str
    num_inputs: int
    ids: frozenset[str]

    @property
    def size(self) -> int:
        """Its characters."""
        return len(self.answer) + len(self.items)


class ResponseStore:
    """Responses by id, at most `most` and about `most_bytes`. A new one takes the place of the oldest."""

    def __init__(self, most: int, most_bytes: int = MOST_BYTES):
        self._most, self._most_bytes, self._size = most, most_bytes, 0
        self._responses: dict[str, StoredResponse] = {}  # the newest one last

    def __len__(self) -> int:
        return len(self._responses)

    def add(self, answer: dict[str, Any], inputs: Sequence[dict[str, Any]]) -> None:
        """Keep a response and the items before its own. All of them have ids."""
        items = [*inputs, *answer["output"]]
        ids = frozenset(item["id"] for item in items)
        added = StoredResponse(json.dumps(answer), json.dumps(items), len(inputs), ids)
        if added.size > self._most_bytes:
            return
        self._responses[answer["id"]] = added
        self._size += added.size
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
        self._size -= self.get(response_id).size
        del self._responses[response_id]

    def items(self, ids: set[str]) -> dict[str, dict[str, Any]]:
        """Items of stored responses by id, as far as there are any. A conversation is read once, however many are in it."""
        found: dict[str, dict[str, Any]] = {}
        for stored in reversed(self._responses.values()):
            if missing := stored.ids & ids - found.keys():
                found |= {item["id"]: item for item in json.loads(stored.items) if item["id"] in missing}
        return found

    def conversation(self, body: protocol.ResponsesRequest) -> list[Any]:
        """All items before the answer: those of the previous response, then the input. ApiError (404) where one is
        not stored."""
        items = list[Any]()
        if body.previous_response_id is not None:
            items += _ITEMS.validate_json(self.get(body.previous_response_id, "previous_response_id").items)
        known = self.items({item.id for item in body.input if isinstance(item, protocol.ItemReference)})
        for i, item in enumerate(body.input):
            if isinstance(item, protocol.ItemReference):
                if item.id not in known:
                    message = f"input[{i}].id={repr_in_short(item.id)}: no stored response has this item"
                    raise ApiError(404, message, f"input[{i}].id", "item_not_found")
                (item,) = _ITEMS.validate_python([known[item.id]])
            items.append(item)
        return items

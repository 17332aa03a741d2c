"""/v1/responses: OpenAI's route for agents, on the path of /v1/chat/completions, and the responses that are stored."""

import json
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from nanoinfer.server.errors import ApiError, bad_request
from nanoinfer.server.generation_response import respond
from nanoinfer.server.responses.formatter import ResponsesFormatter
from nanoinfer.server.responses.protocol import ResponsesRequest
from nanoinfer.server.responses.store import ResponseStore
from nanoinfer.server.responses.translation import (
    NAMES,
    as_stored,
    chat_of,
    conversation_of,
    renamed,
    through_chat,
)
from nanoinfer.server.service import Service

MOST_LISTED = 100  # OpenAI's


def responses_routes(service: Service) -> APIRouter:
    """The routes of one server. They share a store."""
    router, store = APIRouter(), ResponseStore(service.settings.store_responses)

    @router.post("/v1/responses", response_class=Response)
    async def create(body: ResponsesRequest, http: Request) -> Response:
        """Write what follows a conversation of items: thoughts, text and calls of functions."""
        items = conversation_of(store, body)
        is_stored = body.store is not False and service.settings.store_responses > 0
        inputs = [as_stored(item) for item in items] if is_stored else []

        def keep(response: dict[str, Any]) -> None:
            store.add(response, inputs)

        with renamed(NAMES):
            chat = chat_of(body, items)
            request, tools = await through_chat(service, chat, NAMES)
            formatter = ResponsesFormatter(service, body, chat, request, tools, keep if is_stored else None)
            return await respond(service, http, request, formatter, body.stream)

    @router.get("/v1/responses/{response_id}")
    async def retrieve(response_id: str, stream: bool = False) -> dict[str, Any]:
        """A stored response."""
        if stream:
            raise bad_request("stream=true: a stored response is not streamed again", "stream")
        return json.loads(store.get(response_id).answer)

    @router.delete("/v1/responses/{response_id}")
    async def delete(response_id: str) -> dict[str, Any]:
        """Forget a stored response. Those that followed it keep their conversation."""
        store.remove(response_id)
        return {"id": response_id, "object": "response", "deleted": True}

    @router.get("/v1/responses/{response_id}/input_items")
    async def input_items(
        response_id: str, order: str = "desc", limit: int = 20, after: str | None = None
    ) -> dict[str, Any]:
        """The conversation before a stored response, the newest item first unless `order` is "asc"."""
        if order not in ("asc", "desc"):
            raise bad_request(f"order={order!r}: must be 'asc' or 'desc'", "order")
        if not 1 <= limit <= MOST_LISTED:
            raise bad_request(f"limit={limit}: must be in 1..{MOST_LISTED}", "limit")
        found = store.get(response_id)
        items = json.loads(found.items)[: found.num_inputs]
        items = items if order == "asc" else items[::-1]
        ids = [item["id"] for item in items]
        if after is not None and after not in ids:
            raise bad_request(f"after={after!r}: no such item", "after")
        begin = 0 if after is None else ids.index(after) + 1
        page = items[begin : begin + limit]
        ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": "", "last_id": ""}
        return {"object": "list", "data": page, **ends, "has_more": len(items) > begin + limit}

    @router.post("/v1/responses/{rest:path}", include_in_schema=False)
    async def nothing(rest: str) -> None:
        """What OpenAI has besides, such as `compact` and `cancel`: not 405, since there is nothing at all."""
        raise ApiError(404, f"/v1/responses/{rest[:60]}: is not supported", code="unsupported_route")

    return router

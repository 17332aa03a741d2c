"""/v1/responses: OpenAI's route for agents, on the path of /v1/chat/completions, and the responses that are stored."""

import json
from functools import partial
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response

from nanoinfer.server.errors import ApiError, refuse_if
from nanoinfer.server.generation_response import respond
from nanoinfer.server.request_context import context_of
from nanoinfer.server.request_parsing import chat_request
from nanoinfer.server.responses.formatter import ResponsesFormatter
from nanoinfer.server.responses.protocol import NAMES, ResponsesRequest, chat_of
from nanoinfer.server.responses.store import ResponseStore, as_stored
from nanoinfer.server.service import Service

MOST_LISTED = 100  # OpenAI's


def add_responses_routes(app: FastAPI, service: Service) -> None:
    """The routes of one server. They share a store."""
    store = ResponseStore(service.settings.store_responses)

    @app.post("/v1/responses", response_class=Response)
    async def create(body: ResponsesRequest, http: Request) -> Response:
        """Write what follows a conversation of items: thoughts, text and calls of functions."""
        items = store.conversation(body)
        is_stored = body.store is not False and service.settings.store_responses > 0
        keep = partial(store.add, inputs=list(map(as_stored, items))) if is_stored else None
        context_of(http.scope).names = NAMES
        request = await chat_request(service, chat_of(body, items))
        return await respond(service, http, body, request, partial(ResponsesFormatter, keep=keep))

    @app.get("/v1/responses/{response_id}")
    async def retrieve(response_id: str, stream: bool = False) -> dict[str, Any]:
        """A stored response."""
        refuse_if(stream, "stream", "a stored response is not streamed again", True)
        return json.loads(store.get(response_id).answer)

    @app.delete("/v1/responses/{response_id}")
    async def delete(response_id: str) -> dict[str, Any]:
        """Forget a stored response. Those that followed it keep their conversation."""
        store.remove(response_id)
        return {"id": response_id, "object": "response", "deleted": True}

    @app.get("/v1/responses/{response_id}/input_items")
    async def input_items(
        response_id: str, order: str = "desc", limit: int = 20, after: str | None = None
    ) -> dict[str, Any]:
        """The conversation before a stored response, the newest item first unless `order` is "asc"."""
        refuse_if(order not in ("asc", "desc"), "order", "must be 'asc' or 'desc'", order)
        refuse_if(not 1 <= limit <= MOST_LISTED, "limit", f"must be in 1..{MOST_LISTED}", limit)
        found = store.get(response_id)
        items = json.loads(found.items)[: found.num_inputs]
        items = items if order == "asc" else items[::-1]
        ids = [item["id"] for item in items]
        refuse_if(after is not None and after not in ids, "after", "no such item", after)
        begin = 0 if after is None else ids.index(after) + 1
        page = items[begin : begin + limit]
        ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": "", "last_id": ""}
        return {"object": "list", "data": page, **ends, "has_more": len(items) > begin + limit}

    @app.post("/v1/responses/{rest:path}", include_in_schema=False)
    async def nothing(rest: str) -> None:
        """What OpenAI has besides, such as `compact` and `cancel`: not 405, since there is nothing at all."""
        raise ApiError(404, f"/v1/responses/{rest[:60]}: is not supported", code="unsupported_route")

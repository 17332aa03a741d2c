"""/v1/messages: Anthropic's route, on the path of /v1/chat/completions."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from nanoinfer.server.errors import MESSAGES
from nanoinfer.server.generation_response import respond
from nanoinfer.server.messages.formatter import MessagesFormatter
from nanoinfer.server.messages.protocol import NAMES, CountTokensRequest, MessagesRequest, as_chat
from nanoinfer.server.request_context import context_of
from nanoinfer.server.request_parsing import encode_chat, tools_of
from nanoinfer.server.responses.translation import renamed, through_chat
from nanoinfer.server.service import Service


def messages_routes(service: Service) -> APIRouter:
    """The routes of one server."""
    router = APIRouter()

    @router.post(MESSAGES, response_class=Response)
    async def create(body: MessagesRequest, http: Request) -> Response:
        """Write the assistant's next turn: thoughts, text and uses of tools."""
        with renamed(NAMES):
            chat = as_chat(body)
            request, tools = await through_chat(service, chat, NAMES, body.max_tokens)
            formatter = MessagesFormatter(service, body, chat, request, tools, context_of(http.scope).request_id)
            return await respond(service, http, request, formatter, body.stream)

    @router.post(f"{MESSAGES}/count_tokens")
    async def count_tokens(body: CountTokensRequest) -> dict[str, int]:
        """The tokens of the prompt that such a request has."""
        service.adapter_named(body.model)
        with renamed(NAMES):
            chat = as_chat(body)
            return {"input_tokens": len(await encode_chat(service, chat, tools_of(service, chat)))}

    return router

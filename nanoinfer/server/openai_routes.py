"""OpenAI's routes: /v1/models, /v1/completions, /v1/chat/completions."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from nanoinfer.server.answer import GenerationResponse
from nanoinfer.server.chat_request import ChatRequest
from nanoinfer.server.chat_response import ChatShape
from nanoinfer.server.completion_request import CompletionRequest
from nanoinfer.server.completion_response import CompletionShape
from nanoinfer.server.notes import notes_of
from nanoinfer.server.service import Service
from nanoinfer.server.tools import tools_of
from nanoinfer.server.wishes import chat_wish, completion_wish


def openai_routes(service: Service) -> APIRouter:
    """The routes of one server."""
    router = APIRouter()

    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The base model and the loaded adapters."""
        return {"object": "list", "data": [_model(service, name) for name in service.model_names()]}

    @router.get("/v1/models/{model:path}")
    async def model(model: str) -> dict[str, Any]:
        """One of them."""
        service.adapter_named(model)
        return _model(service, model)

    @router.post("/v1/completions", response_class=Response)
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """Continue one or more prompts."""
        wish = await completion_wish(service, body)
        notes = notes_of(request.scope)
        notes.note_prompt(service, wish)
        shape = CompletionShape(service, body, wish, f"cmpl-{notes.request_id}")
        return GenerationResponse(service, await service.generate(wish), shape, bool(body.stream))

    @router.post("/v1/chat/completions", response_class=Response)
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        """Write the assistant's next turn in a conversation."""
        tools = tools_of(service, body)
        wish = await chat_wish(service, body, tools)
        notes = notes_of(request.scope)
        notes.note_prompt(service, wish)
        shape = ChatShape(service, body, wish, f"chatcmpl-{notes.request_id}", tools)
        return GenerationResponse(service, await service.generate(wish), shape, bool(body.stream))

    return router


def _model(service: Service, name: str) -> dict[str, Any]:
    """OpenAI's description of a model, with what vLLM adds to it."""
    return {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "nanoinfer",
        "root": name,
        "parent": None if name == service.base_name else service.base_name,
        "max_model_len": service.core.config.max_context_len,
    }

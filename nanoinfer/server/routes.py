"""OpenAI's routes, and those for whoever runs the server: health, metrics, version, the model, and emptying the cache."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from nanoinfer.server.answer import GenerationResponse
from nanoinfer.server.bodies import ChatRequest, CompletionRequest
from nanoinfer.server.chat_response import ChatShape
from nanoinfer.server.completion_response import CompletionShape
from nanoinfer.server.errors import shut_down
from nanoinfer.server.metrics import CONTENT_TYPE, Sample
from nanoinfer.server.notes import notes_of
from nanoinfer.server.service import Service
from nanoinfer.server.tools import tools_of
from nanoinfer.server.wishes import chat_wish, completion_wish
from nanoinfer.version import __version__


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


def operation_routes(service: Service) -> APIRouter:
    """The routes of one server."""
    router = APIRouter()

    @router.head("/health", include_in_schema=False)  # so ask load balancers
    @router.get("/health")
    async def health() -> dict[str, str]:
        """Whether it takes requests."""
        if service.drain.is_draining or service.engine.is_closed:
            raise shut_down()
        return {"status": "ok"}

    @router.get("/version")
    async def version() -> dict[str, str]:
        """The version of nanoinfer."""
        return {"version": __version__}

    async def model_info() -> dict[str, Any]:
        """What is served, in SGLang's words."""
        name = service.served.name
        has = {f"has_{kind}_understanding": False for kind in ("image", "audio")}
        return {"model_path": name, "tokenizer_path": name, "is_generation": True, **has}

    router.get("/get_model_info")(model_info)
    router.get("/model_info")(model_info)  # its newer name

    @router.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """The metrics in Prometheus' text format."""
        samples = await service.engine.visit_each(Sample.of)
        return Response(service.metrics.text(Sample.sum(samples)), media_type=CONTENT_TYPE)

    async def flush() -> dict[str, Any]:
        """Free all cached tokens that no running request relies on. Says how many there were."""
        freed = await service.engine.visit_each(lambda engine: engine.flush_cache())
        return {"success": True, "freed_tokens": sum(freed)}

    router.post("/flush_cache")(flush)  # SGLang's
    router.post("/reset_prefix_cache")(flush)  # vLLM's

    return router

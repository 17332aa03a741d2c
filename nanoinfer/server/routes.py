"""The routes that clients use: OpenAI's, SGLang's /generate, and vLLM's for tokens."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from nanoinfer.requests.tokenizer import check_length
from nanoinfer.server.chat_formatter import ChatFormatter
from nanoinfer.server.errors import bad_request
from nanoinfer.server.formatter import CompletionFormatter
from nanoinfer.server.generate_formatter import GenerateFormatter, generate_request
from nanoinfer.server.generation_response import respond
from nanoinfer.server.protocol import (
    ChatRequest,
    ChatTemplateFields,
    CompletionRequest,
    DetokenizeRequest,
    GenerateRequest,
    TokenizeRequest,
)
from nanoinfer.server.request_context import context_of
from nanoinfer.server.request_parsing import chat_request, completion_request, encode_chat, tools_of
from nanoinfer.server.service import Service


def openai_routes(service: Service) -> APIRouter:
    """The routes of one server that generate, and its models."""
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
    async def completions(body: CompletionRequest, http: Request) -> Response:
        """Continue one or more prompts."""
        request = await completion_request(service, body)
        answer_id = f"cmpl-{context_of(http.scope).request_id}"
        return await respond(
            service, http, request, CompletionFormatter(service, body, request, answer_id), body.stream
        )

    @router.post("/v1/chat/completions", response_class=Response)
    async def chat_completions(body: ChatRequest, http: Request) -> Response:
        """Write the assistant's next turn in a conversation."""
        tools = tools_of(service, body)
        request = await chat_request(service, body, tools)
        answer_id = f"chatcmpl-{context_of(http.scope).request_id}"
        return await respond(
            service, http, request, ChatFormatter(service, body, request, answer_id, tools), body.stream
        )

    @router.post("/generate", response_class=Response)
    async def generate(body: GenerateRequest, http: Request) -> Response:
        """Continue one or more prompts."""
        request = await generate_request(service, body)
        answer_id = body.rid or context_of(http.scope).request_id
        return await respond(service, http, request, GenerateFormatter(service, body, request, answer_id), body.stream)

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


def token_routes(service: Service) -> APIRouter:
    """The routes of one server."""
    router = APIRouter()

    @router.post("/tokenize")
    async def tokenize(body: TokenizeRequest) -> dict[str, Any]:
        """The tokens of a text or a conversation."""
        service.adapter_named(service.base_name if body.model is None else body.model)
        if (body.prompt is None) == (body.messages is None):
            raise bad_request("prompt: must be given, or else messages", "prompt")
        tokens = await (_encode(service, body) if body.messages is None else _encode_messages(service, body))
        strings = [service.token_names[token].text for token in tokens] if body.return_token_strs else None
        most = service.core.config.max_context_len
        return {"count": len(tokens), "max_model_len": most, "tokens": tokens, "token_strs": strings}

    @router.post("/detokenize")
    async def detokenize(body: DetokenizeRequest) -> dict[str, str]:
        """The text of tokens."""
        service.adapter_named(service.base_name if body.model is None else body.model)
        vocab_size, most = service.core.builder.vocab_size, service.core.config.max_context_len
        if len(body.tokens) > most:
            raise bad_request(f"tokens: {len(body.tokens)}: must not exceed max_context_len={most}", "tokens")
        if (largest := max(body.tokens, default=0)) >= vocab_size:
            raise bad_request(f"tokens: token id {largest}: must be in 0..{vocab_size - 1}", "tokens")
        decode, skip = service.tokenizer.decode, bool(body.skip_special_tokens)
        return {"prompt": await service.prepared(lambda: decode(body.tokens, skip), "the tokenizer", "tokens")}

    @router.get("/tokenizer_info")
    async def tokenizer_info() -> dict[str, Any]:
        """Special tokens and chat template, for clients that render conversations themselves."""
        hf_tokenizer = service.tokenizer.hf_tokenizer
        template = hf_tokenizer.chat_template
        return {
            "tokenizer_class": type(hf_tokenizer).__name__,
            **dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token")),
            **hf_tokenizer.special_tokens_map,
            "model_max_length": service.core.config.max_context_len,
            "chat_template": template.get("default") if isinstance(template, dict) else template,
        }

    return router


async def _encode(service: Service, body: TokenizeRequest) -> list[int]:
    for name in ChatTemplateFields.model_fields:
        if getattr(body, name) is not None:
            raise bad_request(f"{name}: needs messages", name)
    text, tokenizer, special = body.prompt or "", service.tokenizer, body.add_special_tokens is not False
    check_length(text, service.core.config.max_context_len, tokenizer)
    return await service.prepared(lambda: tokenizer.encode(text, special), "the tokenizer", "prompt")


async def _encode_messages(service: Service, body: TokenizeRequest) -> list[int]:
    if body.add_special_tokens:
        raise bad_request("add_special_tokens: the chat template adds what it needs", "add_special_tokens")
    fields = {name: getattr(body, name) for name in ("messages", *ChatTemplateFields.model_fields)}
    chat = ChatRequest.model_construct(model=service.base_name, **fields)
    return await encode_chat(service, chat, tools_of(service, chat))

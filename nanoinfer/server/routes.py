"""The routes that clients use: OpenAI's (without /v1/responses), Anthropic's, SGLang's /generate, and vLLM's for tokens."""

from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response

from nanoinfer.requests.tokenizer import check_length
from nanoinfer.server import protocol
from nanoinfer.server.chat_formatter import ChatFormatter
from nanoinfer.server.errors import MESSAGES, refuse_if
from nanoinfer.server.formatter import CompletionFormatter, GenerateFormatter
from nanoinfer.server.generation_response import respond
from nanoinfer.server.messages import NAMES, CountTokensRequest, MessagesFormatter, MessagesRequest, as_chat
from nanoinfer.server.request_context import context_of
from nanoinfer.server.request_parsing import chat_request, completion_request, encode_chat, generate_request, tools_of
from nanoinfer.server.service import Service


def add_client_routes(app: FastAPI, service: Service) -> None:
    """The routes of one server."""

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The base model and the loaded adapters."""
        return {"object": "list", "data": [_model(service, name) for name in service.model_names()]}

    @app.get("/v1/models/{model:path}")
    async def model(model: str) -> dict[str, Any]:
        """One of them."""
        service.adapter_named(model)
        return _model(service, model)

    @app.post("/v1/completions", response_class=Response)
    async def completions(body: protocol.CompletionRequest, http: Request) -> Response:
        """Continue one or more prompts."""
        return await respond(service, http, body, await completion_request(service, body), CompletionFormatter)

    @app.post("/v1/chat/completions", response_class=Response)
    async def chat_completions(body: protocol.ChatRequest, http: Request) -> Response:
        """Write the assistant's next turn in a conversation."""
        return await respond(service, http, body, await chat_request(service, body), ChatFormatter)

    @app.post("/generate", response_class=Response)
    async def generate(body: protocol.GenerateRequest, http: Request) -> Response:
        """Continue one or more prompts."""
        return await respond(service, http, body, await generate_request(service, body), GenerateFormatter)

    @app.post(MESSAGES, response_class=Response)
    async def messages(body: MessagesRequest, http: Request) -> Response:
        """Write the assistant's next turn: thoughts, text and uses of tools."""
        context_of(http.scope).names = NAMES
        request = await chat_request(service, as_chat(body), body.max_tokens)
        return await respond(service, http, body, request, MessagesFormatter)

    @app.post(f"{MESSAGES}/count_tokens")
    async def count_tokens(body: CountTokensRequest, http: Request) -> dict[str, int]:
        """The tokens of the prompt that such a request has."""
        context_of(http.scope).names = NAMES
        service.adapter_named(body.model)
        chat = as_chat(body)
        return {"input_tokens": len(await encode_chat(service, chat, tools_of(service, chat)))}

    _add_token_routes(app, service)


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


def _add_token_routes(app: FastAPI, service: Service) -> None:
    @app.post("/tokenize")
    async def tokenize(body: protocol.TokenizeRequest) -> dict[str, Any]:
        """The tokens of a text or a conversation."""
        service.adapter_named(body.model)
        refuse_if((body.prompt is None) == (body.messages is None), "prompt", "must be given, or else messages")
        tokens = await (_encode(service, body) if body.messages is None else _encode_messages(service, body))
        strings = [service.token_names[token].text for token in tokens] if body.return_token_strs else None
        most = service.core.config.max_context_len
        return {"count": len(tokens), "max_model_len": most, "tokens": tokens, "token_strs": strings}

    @app.post("/detokenize")
    async def detokenize(body: protocol.DetokenizeRequest) -> dict[str, str]:
        """The text of tokens."""
        service.adapter_named(body.model)
        vocab_size, most = service.core.builder.vocab_size, service.core.config.max_context_len
        count, largest = len(body.tokens), max(body.tokens, default=0)
        refuse_if(count > most, "tokens", f"{count}: must not exceed max_context_len={most}")
        refuse_if(largest >= vocab_size, "tokens", f"token id {largest}: must be in 0..{vocab_size - 1}")
        decode, skip = service.tokenizer.decode, bool(body.skip_special_tokens)
        return {"prompt": await service.prepared(lambda: decode(body.tokens, skip), "the tokenizer", "tokens")}

    @app.get("/tokenizer_info")
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


async def _encode(service: Service, body: protocol.TokenizeRequest) -> list[int]:
    for name in protocol.ChatTemplateFields.model_fields:
        refuse_if(getattr(body, name) is not None, name, "needs messages")
    text, tokenizer, special = body.prompt or "", service.tokenizer, body.add_special_tokens is not False
    check_length(text, service.core.config.max_context_len, tokenizer)
    return await service.prepared(lambda: tokenizer.encode(text, special), "the tokenizer", "prompt")


async def _encode_messages(service: Service, body: protocol.TokenizeRequest) -> list[int]:
    refuse_if(body.add_special_tokens, "add_special_tokens", "the chat template adds what it needs")
    fields = {name: getattr(body, name) for name in ("messages", *protocol.ChatTemplateFields.model_fields)}
    chat = protocol.ChatRequest.model_construct(model=service.base_name, **fields)
    return await encode_chat(service, chat, tools_of(service, chat))

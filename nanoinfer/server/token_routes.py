"""vLLM's /tokenize, /detokenize and /tokenizer_info."""

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field

from nanoinfer.requests.tokenizer import check_length
from nanoinfer.server.bodies import OWN_TEMPLATE, ChatRequest, Message, Tool
from nanoinfer.server.errors import bad_request, code_of
from nanoinfer.server.fields import Items, Strict
from nanoinfer.server.service import Service
from nanoinfer.server.tools import tools_of
from nanoinfer.server.wishes import encode_chat


class TokenizeRequest(Strict):
    """`prompt`, or a conversation (`messages` and what goes with it, as in /v1/chat/completions)."""

    prompt: str | None = None
    messages: Items[Message] | None = None
    model: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Items[Tool] | None = None
    unsupported = {"chat_template": OWN_TEMPLATE}  # noqa: RUF012


class DetokenizeRequest(Strict):
    """`tokens`: token ids. `skip_special_tokens`: SGLang's; false if absent."""

    tokens: Annotated[list[int], Field(fail_fast=True)]
    model: str | None = None
    skip_special_tokens: bool | None = None


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
        strings = [service.token_names.text(token) for token in tokens] if body.return_token_strs else None
        most = service.core.config.max_context_len
        return {"count": len(tokens), "max_model_len": most, "tokens": tokens, "token_strs": strings}

    @router.post("/detokenize")
    async def detokenize(body: DetokenizeRequest) -> dict[str, str]:
        """The text of tokens."""
        service.adapter_named(service.base_name if body.model is None else body.model)
        vocab_size, most = service.core.builder.vocab_size, service.core.config.max_context_len
        if len(body.tokens) > most:
            raise bad_request(f"tokens: {len(body.tokens)}: must not exceed max_context_len={most}", "tokens")
        outside = next((token for token in body.tokens if not 0 <= token < vocab_size), None)
        if outside is not None:
            raise bad_request(f"tokens: token id {outside}: must be in 0..{vocab_size - 1}", "tokens")
        tokenizer = service.tokenizer
        text = await service.prepared(
            lambda: tokenizer.decode(body.tokens, bool(body.skip_special_tokens)), "the tokenizer"
        )
        return {"prompt": text}

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
    for name in ("add_generation_prompt", "continue_final_message", "chat_template_kwargs", "tools"):
        if getattr(body, name) is not None:
            raise bad_request(f"{name}: needs messages", name)
    text, tokenizer, special = body.prompt or "", service.tokenizer, body.add_special_tokens is not False
    try:
        check_length(text, service.core.config.max_context_len, tokenizer)
        return await service.prepared(lambda: tokenizer.encode(text, special), "the tokenizer")
    except ValueError as error:
        raise bad_request(f"prompt: {error}", "prompt", code_of(str(error))) from error


async def _encode_messages(service: Service, body: TokenizeRequest) -> list[int]:
    if body.add_special_tokens:
        raise bad_request("add_special_tokens: the chat template adds what it needs", "add_special_tokens")
    asked = ("messages", "tools", "chat_template_kwargs", "add_generation_prompt", "continue_final_message")
    chat = ChatRequest.model_construct(model=service.base_name, **{name: getattr(body, name) for name in asked})
    return await encode_chat(service, chat, tools_of(service, chat))

"""The path of /v1/chat/completions for other protocols: they hand in a ChatRequest, and errors name their own fields."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from nanoinfer.server.errors import ApiError
from nanoinfer.server.generation import GenerationRequest
from nanoinfer.server.protocol import ChatRequest
from nanoinfer.server.request_parsing import Tools, chat_request, tools_of
from nanoinfer.server.service import Service


async def through_chat(
    service: Service, chat: ChatRequest, names: Mapping[str, str], at_most: int | None = None
) -> tuple[GenerationRequest, Tools]:
    """What the conversation asks for, and the tools that may be called. `names`: as for `renamed`. `at_most`: so many
    tokens, or as many as there is room for. ApiError naming a field of chat."""
    tools = tools_of(service, chat)
    request = await chat_request(service, chat, tools, at_most)
    field_names = {ours: names.get(theirs, theirs) for ours, theirs in request.field_names.items()}
    return replace(request, field_names={**names, **field_names}), tools


@contextmanager
def renamed(names: Mapping[str, str]) -> Iterator[None]:
    """An ApiError speaks of the client's fields. `names`: chat's names → the client's, where they differ."""
    try:
        yield
    except ApiError as error:
        message, param = error.message, error.param or ""
        for ours, theirs in names.items():
            message = re.sub(rf"(?<![\w.'\"]){re.escape(ours)}(?![\w'\"])", theirs, message)
        raise ApiError(error.status, message, names.get(param, error.param), error.code, error.headers) from error

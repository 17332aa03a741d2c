"""From a request's body to a Wish: prompts as token ids, and the numbers of tokens that are left for the answers."""

from collections.abc import Callable, Sequence
from typing import Any

from nanoinfer.requests.sampling_params import SamplingParams
from nanoinfer.server.chat_request import ChatRequest, plain_messages
from nanoinfer.server.completion_request import CompletionRequest, no_room, several_prompts
from nanoinfer.server.errors import ApiError, bad_request, code_of
from nanoinfer.server.generation import Wish
from nanoinfer.server.service import Service
from nanoinfer.server.to_params import Given, given_by, make_params
from nanoinfer.server.tools import Tools

DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's
FEW_IDS = 10_000  # they are checked in a millisecond or so


async def completion_wish(service: Service, body: CompletionRequest) -> Wish:
    """What a request to /v1/completions asks for. ApiError naming the field that is wrong."""
    adapter = service.adapter_named(body.model)
    given = several_prompts(body.prompt, service.settings.max_prompts, service.max_tokens)
    names = ["prompt"] if given == [body.prompt] else [f"prompt[{i}]" for i in range(len(given))]
    n = _checked_n(service, body.n, len(given))
    prompts = await encode_prompts(service, given, names)
    wanted = body.max_tokens
    if body.max_tokens == 0:
        if not body.echo:
            raise bad_request("max_tokens=0: must be at least 1, or 0 with echo=true", "max_tokens")
        wanted = 1  # a pass gives one; it is not shown
    more = {"logprobs": body.logprobs, **_of_prompt(service, body, body.logprobs if body.echo else None)}
    asked = given_by(body, service.settings)
    return _wish(service, body, prompts, names, n, asked, more, adapter, wanted, DEFAULT_COMPLETION_TOKENS)


async def chat_wish(service: Service, body: ChatRequest, tools: Tools) -> Wish:
    """What a request to /v1/chat/completions asks for; `tools`: those that the model may call."""
    adapter = service.adapter_named(body.model)
    n = _checked_n(service, body.n, 1)
    if body.max_tokens is not None and body.max_completion_tokens not in (None, body.max_tokens):
        raise bad_request("max_completion_tokens: differs from max_tokens, its other name", "max_completion_tokens")
    wanted = body.max_completion_tokens if body.max_tokens is None else body.max_tokens
    if body.top_logprobs and not body.logprobs:
        raise bad_request("top_logprobs: needs logprobs=true", "top_logprobs")
    prompt = await encode_chat(service, body, tools)
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    asked = given_by(body, service.settings)
    tools.restrict(asked)
    more = {"logprobs": logprobs, **_of_prompt(service, body, None)}
    return _wish(service, body, [prompt], ["messages"], n, asked, more, adapter, wanted, None)


async def encode_prompts(service: Service, given: Sequence[Any], names: Sequence[str]) -> list[list[int]]:
    """Token ids of prompts that are text or token ids. ApiError naming the prompt that cannot be one."""
    builder, context = service.core.builder, service.core.config.max_context_len

    def encode() -> list[list[int]]:
        return [builder.prompt_ids(each, name, context).tolist() for each, name in zip(given, names, strict=True)]

    quick = not any(isinstance(each, str) for each in given) and sum(map(len, given)) <= FEW_IDS
    return await _prepared(service, encode, "the tokenizer", "prompt", quick)


async def encode_chat(service: Service, body: ChatRequest, tools: Tools) -> list[int]:
    """Token ids of a conversation. ApiError when the template or the tokenizer refuses it."""
    service.tokenizer  # noqa: B018 - says that there is none
    if not body.messages:
        raise bad_request("messages: a conversation needs at least one message", "messages")
    variables = dict(body.chat_template_kwargs or {})
    if "chat_template" in variables:
        raise bad_request(
            "chat_template_kwargs.chat_template: the model's own template is used", "chat_template_kwargs"
        )
    for name in ("add_generation_prompt", "continue_final_message", "documents"):
        if (value := getattr(body, name)) is not None:
            variables[name] = value
    if tools.definitions:
        variables["tools"] = tools.definitions
    messages, context = plain_messages(body.messages), service.core.config.max_context_len
    builder = service.core.builder
    return await _prepared(
        service, lambda: builder.chat_prompt(messages, variables, context), "the chat template", "messages"
    )


async def _prepared(service: Service, function: Callable[[], Any], what: str, param: str, quick: bool = False) -> Any:
    """The result of a template or a tokenizer, which may raise anything. `quick`: it needs no thread."""
    try:
        return function() if quick else await service.prepared(function, what)
    except ApiError:
        raise
    except ValueError as error:
        raise bad_request(str(error), param, code_of(str(error))) from error
    except Exception as error:
        raise bad_request(f"{param}: {what} fails on it ({type(error).__name__})", param) from error


def _wish(
    service: Service,
    body: CompletionRequest | ChatRequest,
    prompts: list[list[int]],
    names: Sequence[str],
    n: int,
    given: Given,
    more: dict[str, Any],
    adapter: str | None,
    wanted: int | None,
    default: int | None,
) -> Wish:
    settings = service.settings
    greedy = service.is_greedy(given.values)
    each: list[SamplingParams] = []
    made: dict[int, SamplingParams] = {}  # by number of tokens: most prompts have the same
    for prompt, name in zip(prompts, names, strict=True):
        room = service.max_tokens - len(prompt)
        if room < 1:
            raise no_room(name, len(prompt), service.max_tokens)
        if wanted is not None and wanted > room:
            raise bad_request(
                f"max_tokens={wanted}: must not exceed {room}: {name} has {len(prompt)} tokens, and there is room for "
                f"{service.max_tokens} in all",
                "max_tokens",
                "context_length_exceeded",
            )
        count = wanted if wanted is not None else room if default is None else min(default, room)
        if count not in made:
            made[count] = make_params(given, settings, max_new_tokens=count, n=1 if greedy else n, **more)
        each.append(made[count])
    return Wish(prompts, each, body.model, adapter, n if greedy else 1, body.cache_salt, names, given.names)


def _of_prompt(service: Service, body: CompletionRequest | ChatRequest, echoed: int | None) -> dict[str, Any]:
    """What SamplingParams say about the log-probabilities of the prompt's tokens. `echoed`: of how many likeliest tokens
    per position the echo needs them; None if it needs none at all."""
    asked = body.prompt_logprobs
    if asked is not None:
        if not 0 <= asked <= service.settings.max_logprobs:
            most = service.settings.max_logprobs
            raise bad_request(f"prompt_logprobs={asked}: must be at least 0 and at most {most}", "prompt_logprobs")
        if body.stream:
            raise bad_request("prompt_logprobs: not with stream=true", "prompt_logprobs")
    counts = [count for count in (asked, echoed) if count is not None]
    return {"prompt_logprobs": bool(counts), "prompt_top_logprobs": max(counts, default=0)}


def _checked_n(service: Service, n: int | None, prompts: int) -> int:
    settings, n = service.settings, 1 if n is None else n
    if n < 1:
        raise bad_request(f"n={n}: must be at least 1", "n")
    if prompts * n > settings.max_completions:
        raise bad_request(
            f"n={n}: {prompts} prompts times n are {prompts * n} completions: must not exceed {settings.max_completions}",
            "n",
        )
    return n

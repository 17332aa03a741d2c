"""From a request's body to a Wish: prompts as token ids, and the numbers of tokens that are left for the answers."""

from collections.abc import Callable, Sequence
from reprlib import repr as repr_in_short
from typing import Any

from nanoinfer.requests.sampling_params import SamplingParams
from nanoinfer.server.bodies import ChatRequest, CompletionRequest, plain_messages
from nanoinfer.server.errors import ApiError, bad_request, code_of
from nanoinfer.server.generation import Wish
from nanoinfer.server.service import Service
from nanoinfer.server.to_params import Given, given_by, make_params
from nanoinfer.server.tools import Tools

DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's


async def completion_wish(service: Service, body: CompletionRequest) -> Wish:
    """What a request to /v1/completions asks for. ApiError naming the field that is wrong."""
    texts = several_prompts(body.prompt, service.settings.max_prompts)
    names = ["prompt"] if texts == [body.prompt] else [f"prompt[{i}]" for i in range(len(texts))]
    prompts = await encode_prompts(service, texts, names)
    wanted = body.max_tokens
    if wanted == 0:
        if not body.echo:
            raise bad_request("max_tokens=0: must be at least 1, or 0 with echo=true", "max_tokens")
        wanted = 1  # a pass gives one; it is not shown
    given = given_by(body, service.settings)
    _ask_for_logprobs(service, body, given, body.logprobs, echoed=body.logprobs if body.echo else None)
    return _wish(service, body, prompts, names, given, wanted, DEFAULT_COMPLETION_TOKENS)


async def chat_wish(service: Service, body: ChatRequest, tools: Tools) -> Wish:
    """What a request to /v1/chat/completions asks for; `tools`: those that the model may call."""
    if body.max_tokens is not None and body.max_completion_tokens not in (None, body.max_tokens):
        raise bad_request("max_completion_tokens: differs from max_tokens, its other name", "max_completion_tokens")
    if body.top_logprobs and not body.logprobs:
        raise bad_request("top_logprobs: needs logprobs=true", "top_logprobs")
    wanted = body.max_completion_tokens if body.max_tokens is None else body.max_tokens
    prompt = await encode_chat(service, body, tools)
    given = given_by(body, service.settings)
    tools.restrict(given)
    _ask_for_logprobs(service, body, given, (body.top_logprobs or 0) if body.logprobs else None)
    return _wish(service, body, [prompt], ["messages"], given, wanted, None)


def several_prompts(given: Any, max_prompts: int, field: str = "prompt") -> list[str | list[int]]:
    """The prompts of a request, one or more; `given` itself if it is a list of them. ApiError for more than `max_prompts`,
    and naming the one that is neither text nor token ids."""
    if isinstance(given, str) or _are_ids(given):
        return [given]
    if not isinstance(given, list) or not given:
        raise bad_request(f"{field}={repr_in_short(given)}: must be text, token ids, or a list of these", field)
    if len(given) > max_prompts:
        raise bad_request(f"{field}: {len(given)} prompts: must not exceed {max_prompts}", field)
    for i, each in enumerate(given):
        if not isinstance(each, str) and not _are_ids(each):
            raise bad_request(f"{field}[{i}]={repr_in_short(each)}: must be text or token ids", field)
    return given


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(each) is int for each in value)


async def encode_prompts(service: Service, given: Sequence[Any], names: Sequence[str]) -> list[list[int]]:
    """Token ids of prompts that are text or token ids. ApiError naming the prompt that cannot be one."""
    builder, context = service.core.builder, service.core.config.max_context_len

    def encode() -> list[list[int]]:
        return [builder.prompt_ids(each, name, context).tolist() for each, name in zip(given, names, strict=True)]

    return await _prepared(service, encode, "the tokenizer", "prompt")


async def encode_chat(service: Service, body: ChatRequest, tools: Tools) -> list[int]:
    """Token ids of a conversation. ApiError when the template or the tokenizer refuses it."""
    service.tokenizer  # noqa: B018 - says that there is none
    if not body.messages:
        raise bad_request("messages: a conversation needs at least one message", "messages")
    variables = dict(body.chat_template_kwargs or {})
    if "chat_template" in variables:
        raise bad_request("chat_template_kwargs: the model's own chat_template is used", "chat_template_kwargs")
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


async def _prepared(service: Service, function: Callable[[], Any], what: str, param: str) -> Any:
    """The result of a template or a tokenizer, which may raise anything."""
    try:
        return await service.prepared(function, what)
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
    given: Given,
    wanted: int | None,
    default: int | None,
) -> Wish:
    """`wanted`: tokens per answer; if None, `default`, or else whatever there is room for."""
    adapter, n = service.adapter_named(body.model), 1 if body.n is None else body.n
    most = service.settings.max_completions
    if n < 1 or len(prompts) * n > most:
        raise bad_request(f"n={n}: must be at least 1, and with {len(prompts)} prompts at most {most} in all", "n")
    computed = 1 if service.is_greedy(given.values) else n
    each: list[SamplingParams] = []
    made: dict[int, SamplingParams] = {}  # by number of tokens: most prompts have the same
    for prompt, name in zip(prompts, names, strict=True):
        room, in_all = service.max_tokens - len(prompt), service.max_tokens
        if room < 1:
            message = f"{name}: has {len(prompt)} tokens: must have fewer than {in_all} (the context, or the slots)"
            raise bad_request(message, name.partition("[")[0], "context_length_exceeded")
        if wanted is not None and wanted > room:
            why = f"{name} has {len(prompt)} tokens, and there is room for {in_all} in all"
            message = f"max_tokens={wanted}: must not exceed {room}: {why}"
            raise bad_request(message, "max_tokens", "context_length_exceeded")
        count = wanted if wanted is not None else room if default is None else min(default, room)
        if count not in made:
            values = given.values | {"max_new_tokens": count, "n": computed}
            made[count] = make_params(Given(values, given.names), service.settings)
        each.append(made[count])
    return Wish(prompts, each, body.model, adapter, n // computed, body.cache_salt, names, given.names)


def _ask_for_logprobs(
    service: Service,
    body: CompletionRequest | ChatRequest,
    given: Given,
    logprobs: int | None,
    echoed: int | None = None,
) -> None:
    """Add to `given` which log-probabilities are wanted. `echoed`: of how many likeliest tokens per position of the prompt
    an echo needs them; None if it needs none at all."""
    asked, most = body.prompt_logprobs, service.settings.max_logprobs
    if asked is not None and (body.stream or not 0 <= asked <= most):
        message = f"prompt_logprobs={asked}: must be at least 0 and at most {most}, and not with stream=true"
        raise bad_request(message, "prompt_logprobs")
    counts = [count for count in (asked, echoed) if count is not None]
    given.values |= {
        "logprobs": logprobs,
        "prompt_logprobs": bool(counts),
        "prompt_top_logprobs": max(counts, default=0),
    }

"""From a body to a GenerationRequest: its prompts as token ids, its fields as SamplingParams, and the tools that the model
may call, rendered by its chat template, or must."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from reprlib import repr as repr_in_short
from typing import Any

from nanoinfer.keywords import ALIASES
from nanoinfer.requests.request import Request
from nanoinfer.requests.tool_calls.registry import format_of, reasoning_of, renders_tools
from nanoinfer.sampling_params import GRAMMAR_FIELDS, SamplingParams
from nanoinfer.server.errors import as_api_error, bad_request
from nanoinfer.server.generation import GenerationRequest
from nanoinfer.server.protocol import ChatRequest, CompletionRequest, GenerationFields, Message, SamplingFields
from nanoinfer.server.service import Service

DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's
OTHERS = ("min_tokens", "min_new_tokens", "sampling_seed", "no_stop_trim")
GUIDED = ("guided_json", "guided_regex", "guided_choice", "guided_grammar")
NAMES = {  # the client's name → that of SamplingParams
    name: name if name in SamplingParams.__dataclass_fields__ else ALIASES[name]
    for name in (*SamplingFields.model_fields, *OTHERS, *GUIDED)
    if name != "n"
}
NO_SEED = -1  # vLLM's clients ask for none with it
ANY_OBJECT = {"type": "object"}
HTML = re.compile(r"</?[a-z]+>")


@dataclass(frozen=True)
class Tools:
    """`definitions`: for the template; None if the model may call nothing. `must_call`: name → JSON schema of the arguments
    of each function of which it must call one; None if it need not call any. `is_named`: the client has named that one.
    `parallel`: whether there may be several calls. `schemas`: as `must_call`, of all functions."""

    definitions: list[dict[str, Any]] | None = None
    must_call: Mapping[str, Any] | None = None
    is_named: bool = False
    parallel: bool = True
    schemas: Mapping[str, Any] | None = None


class ParsedFields:
    """Arguments of SamplingParams that a body gives (`values`), and what the client calls them (`names`)."""

    def __init__(self, body: SamplingFields) -> None:
        self.values: dict[str, Any] = {}
        self.names = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens"}
        for theirs, ours in NAMES.items():
            value = getattr(body, theirs, None)
            if value is not None and (theirs, value) != ("seed", NO_SEED):
                self.add(theirs, ours, value)
        if isinstance(body, GenerationFields):
            self._add_grammars(body)

    def add(self, theirs: str, ours: str, value: Any) -> None:
        """ApiError for two values: clients may give one grammar under its old and its new name, but no other one."""
        given = [name for name in GRAMMAR_FIELDS if name in self.values] if ours in GRAMMAR_FIELDS else []
        if any(name != ours or json.dumps(self.values[name]) != json.dumps(value) for name in given):
            names = [*(self.names.get(name, name) for name in given), theirs]
            raise bad_request(f"{' and '.join(names)}: at most one of them can be given", theirs)
        if not given:
            self.values[ours] = value
            self.names[ours] = theirs

    @property
    def has_grammar(self) -> bool:
        """Whether it asks for a grammar."""
        return any(name in self.values for name in GRAMMAR_FIELDS)

    def _add_grammars(self, body: GenerationFields) -> None:
        if (outputs := body.structured_outputs) is not None:
            for name, value in outputs.model_dump(exclude_none=True, by_alias=True).items():
                if name != "json_object":
                    self.add(f"structured_outputs.{name}", "json_schema" if name == "json" else name, value)
                elif value:
                    self.add("structured_outputs.json_object", "json_schema", ANY_OBJECT)
        if (form := body.response_format) is not None:
            if (form.type == "json_schema") != (form.json_schema is not None):
                raise bad_request("response_format.json_schema: belongs to the type json_schema", "response_format")
            if form.json_schema is not None:
                self.add("response_format", "json_schema", form.json_schema.schema_)
            elif form.type == "json_object":
                self.add("response_format", "json_schema", ANY_OBJECT)


async def completion_request(service: Service, body: CompletionRequest) -> GenerationRequest:
    """What a request to /v1/completions asks for. ApiError naming the field that is wrong."""
    prompts, names = await prompts_of(service, body.prompt, "prompt")
    wanted = body.max_tokens
    if wanted == 0:
        if not body.echo:
            raise bad_request("max_tokens=0: must be at least 1, or 0 with echo=true", "max_tokens")
        wanted = 1  # a pass gives one; it is not shown
    fields = ParsedFields(body)
    _ask_for_logprobs(body, fields, body.logprobs, echoed=body.logprobs if body.echo else None)
    default, salt = DEFAULT_COMPLETION_TOKENS, body.cache_salt
    return make_request(service, prompts, names, body.model, fields, wanted, default, body.n, salt)


async def chat_request(
    service: Service, body: ChatRequest, tools: Tools, default: int | None = None
) -> GenerationRequest:
    """What a request to /v1/chat/completions asks for; `tools`: those that the model may call; `default`: of tokens, where
    it names no number; None: the rest of the context."""
    if body.max_tokens is not None and body.max_completion_tokens not in (None, body.max_tokens):
        raise bad_request("max_completion_tokens: differs from max_tokens, its other name", "max_completion_tokens")
    if body.top_logprobs and not body.logprobs:
        raise bad_request("top_logprobs: needs logprobs=true", "top_logprobs")
    wanted = body.max_completion_tokens if body.max_tokens is None else body.max_tokens
    prompt = await encode_chat(service, body, tools)
    fields = ParsedFields(body)
    if special_tags(service, body, tools):  # the parser of the reply must see them
        fields.values["skip_special_tokens"] = False
    _restrict(fields, tools)
    if (reasoning := reasoning_of(service.tokenizer)) is not None and fields.has_grammar:
        fields.values["reasoning"] = reasoning.state(service.tokenizer, prompt)
    _ask_for_logprobs(body, fields, (body.top_logprobs or 0) if body.logprobs else None)
    fields.names["logprobs"] = "top_logprobs"
    return make_request(service, [prompt], ["messages"], body.model, fields, wanted, default, body.n, body.cache_salt)


def make_request(
    service: Service,
    prompts: list[list[int]],
    names: Sequence[str],
    model: str,
    fields: ParsedFields,
    wanted: int | None,
    default: int | None,
    n: int | None,
    cache_salt: str | None = None,
) -> GenerationRequest:
    """`wanted`: tokens per answer; if None, `default`, or else whatever there is room for. ApiError naming the field."""
    adapter, n, most = service.adapter_named(model), 1 if n is None else n, service.settings.max_completions
    if n < 1 or len(prompts) * n > most:
        raise bad_request(f"n={n}: must be at least 1, and with {len(prompts)} prompts at most {most} in all", "n")
    computed = 1 if service.is_greedy(fields.values) else n
    in_all, counts = service.served.max_tokens, list[int]()
    for prompt, name in zip(prompts, names, strict=True):
        room = in_all - len(prompt)
        if room < 1:
            message = f"{name}: has {len(prompt)} tokens: must have fewer than {in_all} (the context, or the slots)"
            raise bad_request(message, name.partition("[")[0], "context_length_exceeded")
        if wanted is not None and wanted > room:
            field = fields.names["max_new_tokens"]
            message = f"{field}={wanted}: must not exceed {room}: {name} has {len(prompt)} of {in_all} tokens in all"
            raise bad_request(message, field, "context_length_exceeded")
        counts.append(wanted if wanted is not None else room if default is None else min(default, room))
    try:
        params = SamplingParams(max_new_tokens=max(counts), n=computed, **fields.values)
        each = [params if count == params.max_new_tokens else replace(params, max_new_tokens=count) for count in counts]
    except ValueError as error:
        raise as_api_error(error, fields.names) from error
    for name in ("logprobs", "prompt_top_logprobs"):
        if (number := getattr(params, name) or 0) > service.settings.max_logprobs:
            field = fields.names.get(name, name)
            raise bad_request(f"{field}={number}: must not exceed {service.settings.max_logprobs}", field)
    timeout_s = service.settings.request_timeout_s
    requests = [
        Request(prompt, params, cache_salt, timeout_s, name, adapter)
        for prompt, params, name in zip(prompts, each, names, strict=True)
    ]
    return GenerationRequest(requests, model, n // computed, fields.names)


async def prompts_of(service: Service, given: Any, field: str) -> tuple[list[list[int]], list[str]]:
    """Token ids of a request's prompts, one or more, and their names in messages. ApiError naming the one that is none."""
    several = [given] if isinstance(given, str) or _are_ids(given) else given
    if not isinstance(several, list) or not several:
        raise bad_request(f"{field}={repr_in_short(given)}: must be text, token ids, or a list of these", field)
    if len(several) > service.settings.max_completions:
        raise bad_request(f"{field}: {len(several)}: must not exceed {service.settings.max_completions} prompts", field)
    names = [f"{field}[{i}]" for i in range(len(several))] if several is given else [field]
    for name, each in zip(names, several, strict=True):
        if not isinstance(each, str) and not _are_ids(each):
            raise bad_request(f"{name}={repr_in_short(each)}: must be text or token ids", field)
    builder, context = service.core.builder, service.core.config.max_context_len

    def encode() -> list[list[int]]:
        return [builder.prompt_ids(each, name, context).tolist() for each, name in zip(several, names, strict=True)]

    return await service.prepared(encode, "the tokenizer", field), names


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(each) is int for each in value)


async def encode_chat(service: Service, body: ChatRequest, tools: Tools) -> list[int]:
    """Token ids of a conversation. ApiError when the template or the tokenizer refuses it."""
    service.tokenizer  # noqa: B018 - says that there is none
    variables = dict(body.chat_template_kwargs or {})
    if "chat_template" in variables:
        raise bad_request("chat_template_kwargs: the model's own chat_template is used", "chat_template_kwargs")
    for name in ("add_generation_prompt", "continue_final_message", "documents"):
        if (value := getattr(body, name)) is not None:
            variables[name] = value
    if (effort := body.reasoning_effort) is not None:
        variables.setdefault("reasoning_effort", effort)
        if effort == "none":
            variables = {"enable_thinking": False, "thinking": False, **variables}
    if tools.definitions:
        variables["tools"] = tools.definitions
    messages, builder = list(map(_plain, body.messages)), service.core.builder
    context = service.core.config.max_context_len
    return await service.prepared(
        lambda: builder.chat_prompt(messages, variables, context), "the chat template", "messages"
    )


def _plain(message: Message) -> dict[str, Any]:
    """A message as templates take it. They tell content that is null from content that is missing."""
    plain = dict.fromkeys(message.model_fields_set & {"content"}) | message.model_dump(exclude_none=True)
    if (reasoning := plain.pop("reasoning", None)) is not None:
        plain.setdefault("reasoning_content", reasoning)  # as templates call it
    if plain.get("tool_calls") and plain.get("content"):
        plain["thinking"] = ""  # transformers' copy for gpt-oss, whose template refuses it beside both
    return plain


def _restrict(fields: ParsedFields, tools: Tools) -> None:
    """Add what makes the model call something, or only once. A call that must come is a grammar, and ApiError where there
    is another one, except `response_format`: that is about text, and there is none. Where a call may come, it may in place
    of what the other one demands."""
    if tools.must_call is not None:
        if fields.names.get("json_schema") == "response_format":
            del fields.values["json_schema"]
        fields.add("tools", "tool_calls", tools.must_call)
    elif tools.schemas is not None and fields.has_grammar:
        fields.values["tool_calls"] = tools.schemas
        fields.names.setdefault("tool_calls", "tools")
    if tools.definitions is not None:
        fields.values["parallel_tool_calls"] = tools.parallel


def _ask_for_logprobs(
    body: CompletionRequest | ChatRequest, fields: ParsedFields, logprobs: int | None, echoed: int | None = None
) -> None:
    """Add which log-probabilities are wanted. `echoed`: of how many likeliest tokens per position of the prompt an echo
    needs them; None if it needs none at all."""
    asked = body.prompt_logprobs
    if asked is not None and body.stream:
        raise bad_request("prompt_logprobs: cannot be given with stream=true", "prompt_logprobs")
    counts = [count for count in (asked, echoed) if count is not None]
    fields.names["prompt_top_logprobs"] = "logprobs" if asked is None else "prompt_logprobs"
    fields.values |= {
        "logprobs": logprobs,
        "prompt_logprobs": bool(counts),
        "prompt_top_logprobs": max(counts, default=0),
    }


def tools_of(service: Service, body: ChatRequest) -> Tools:
    """What a request says about tools. ApiError for what the model's template, or this server, does not know."""
    choice = "auto" if body.tool_choice is None else body.tool_choice
    if not body.tools and choice not in ("none", "auto"):
        raise bad_request("tool_choice: needs tools", "tool_choice")
    if not body.tools or choice == "none":
        return Tools()
    if not renders_tools(service.tokenizer):
        message = "tools: this model's chat template does not show tools to the model"
        raise bad_request(message, "tools", "unsupported_field")
    if format_of(service.tokenizer) is None:
        message = "tools: the format in which this model writes tool calls is not known; --tool-call-parser names one"
        raise bad_request(message, "tools", "unsupported_field")
    functions = {tool.function.name: tool.function.parameters or {"type": "object"} for tool in body.tools}
    if len(functions) < len(body.tools):  # nobody could tell which is called
        raise bad_request("tools: two functions have the same name", "tools")
    definitions = [tool.model_dump(exclude_none=True) for tool in body.tools]
    parallel = body.parallel_tool_calls is not False
    if choice in ("auto", "required"):
        return Tools(definitions, functions if choice == "required" else None, parallel=parallel, schemas=functions)
    for name in functions:
        if choice == {"type": "function", "function": {"name": name}}:
            return Tools(definitions, {name: functions[name]}, is_named=True, parallel=False, schemas=functions)
    known = "'auto', 'none', 'required', or {'type': 'function', 'function': {'name': one of tools}}"
    raise bad_request(f"tool_choice: must be {known}", "tool_choice")


def special_tags(service: Service, body: ChatRequest, tools: Tools) -> list[str]:
    """The special tokens, if tags that mean something in the reply are among them. The text has them then, and the client
    does not see them. Not those that could be HTML, such as `<s>`: the text does not say whether they are tokens."""
    call_format, reasoning = format_of(service.tokenizer), reasoning_of(service.tokenizer)
    tags = {*call_format.tags} if call_format and tools.definitions is not None else set[str]()
    tags |= {*reasoning.tags} if reasoning else set()
    if body.skip_special_tokens is False or not tags:
        return []
    special = service.tokenizer.hf_tokenizer.convert_ids_to_tokens(sorted(service.core.builder.special_ids))
    hidden = [name for name in special if name in tags or not HTML.fullmatch(name)]
    return hidden if {*special} & tags else []

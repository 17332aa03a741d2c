"""From a body to a GenerationRequest: its prompts as token ids, its fields as SamplingParams, and the tools that the model
may call, rendered by its chat template, or must."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from reprlib import repr as repr_in_short
from typing import Any

from nanoinfer.keywords import ALIASES
from nanoinfer.requests.request import Request
from nanoinfer.requests.tool_calls.registry import format_of, reasoning_of, renders_tools
from nanoinfer.sampling_params import GRAMMAR_FIELDS, SamplingParams
from nanoinfer.server import protocol
from nanoinfer.server.errors import as_api_error, bad_request, refuse_if
from nanoinfer.server.generation import GenerationRequest, Tools
from nanoinfer.server.service import Service

DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's
DEFAULT_GENERATE_TOKENS = 128  # SGLang's
OTHERS = ("min_tokens", "min_new_tokens", "sampling_seed", "no_stop_trim")
GUIDED = ("guided_json", "guided_regex", "guided_choice", "guided_grammar")
NAMES = {  # the client's name → that of SamplingParams
    name: name if name in SamplingParams.__dataclass_fields__ else ALIASES[name]
    for name in (*protocol.SamplingFields.model_fields, *OTHERS, *GUIDED)
    if name != "n"
}
NO_SEED = -1  # vLLM's clients ask for none with it
ANY_OBJECT = {"type": "object"}
HTML = re.compile(r"</?[a-z]+>")


class ParsedFields:
    """Arguments of SamplingParams that a body gives (`values`), and what the client calls them (`names`). `max_tokens`: per
    answer, None where the client names no number; `n`: answers per prompt."""

    def __init__(self, body: protocol.SamplingFields, max_tokens: int | None) -> None:
        self.values: dict[str, Any] = {}
        self.max_tokens, self.n = max_tokens, 1 if body.n is None else body.n
        self.names = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens"}
        for theirs, ours in NAMES.items():
            value = getattr(body, theirs, None)
            if value is not None and (theirs, value) != ("seed", NO_SEED):
                self.add(theirs, ours, value)
        if isinstance(body, protocol.GenerationFields):
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

    def _add_grammars(self, body: protocol.GenerationFields) -> None:
        if (outputs := body.structured_outputs) is not None:
            for name, value in outputs.model_dump(exclude_none=True, by_alias=True).items():
                if name != "json_object":
                    self.add(f"structured_outputs.{name}", "json_schema" if name == "json" else name, value)
                elif value:
                    self.add("structured_outputs.json_object", "json_schema", ANY_OBJECT)
        if (form := body.response_format) is not None:
            is_wrong = (form.type == "json_schema") != (form.json_schema is not None)
            refuse_if(is_wrong, "response_format.json_schema", "belongs to the type json_schema, which needs it")
            if form.type != "text":
                schema = ANY_OBJECT if form.json_schema is None else form.json_schema.schema_
                self.add("response_format", "json_schema", schema)


async def completion_request(service: Service, body: protocol.CompletionRequest) -> GenerationRequest:
    """What a request to /v1/completions asks for. ApiError naming the field that is wrong."""
    prompts = await prompts_of(service, body.prompt, "prompt")
    refuse_if(body.max_tokens == 0 and not body.echo, "max_tokens", "must be at least 1, or 0 with echo=true", 0)
    fields = ParsedFields(body, 1 if body.max_tokens == 0 else body.max_tokens)  # a pass gives one; it is not shown
    _ask_for_logprobs(body, fields, body.logprobs, echoed=body.logprobs if body.echo else None)
    return make_request(service, prompts, fields, body.model, DEFAULT_COMPLETION_TOKENS, body.cache_salt)


async def chat_request(service: Service, body: protocol.ChatRequest, default: int | None = None) -> GenerationRequest:
    """What a request to /v1/chat/completions asks for; `default`: of tokens, where it names no number; None: the rest of
    the context. ApiError naming the field that is wrong."""
    tools = tools_of(service, body)
    two_numbers = body.max_tokens is not None and body.max_completion_tokens not in (None, body.max_tokens)
    refuse_if(two_numbers, "max_completion_tokens", "differs from max_tokens, its other name")
    refuse_if(body.top_logprobs and not body.logprobs, "top_logprobs", "needs logprobs=true")
    prompt = await encode_chat(service, body, tools)
    fields = ParsedFields(body, body.max_completion_tokens if body.max_tokens is None else body.max_tokens)
    hidden = special_tags(service, body, tools)
    if hidden:  # the parser of the reply must see them
        fields.values["skip_special_tokens"] = False
    _restrict(fields, tools)
    if (reasoning := reasoning_of(service.tokenizer)) is not None and fields.has_grammar:
        fields.values["reasoning"] = reasoning.state(service.tokenizer, prompt)
    _ask_for_logprobs(body, fields, (body.top_logprobs or 0) if body.logprobs else None)
    fields.names["logprobs"] = "top_logprobs"
    request = make_request(service, {"messages": prompt}, fields, body.model, default, body.cache_salt)
    return replace(request, tools=tools, hidden_tokens=hidden)


async def generate_request(service: Service, body: protocol.GenerateRequest) -> GenerationRequest:
    """What a request to /generate asks for. ApiError naming the field that is wrong."""
    refuse_if((body.text is None) == (body.input_ids is None), "text", "must be given, or else input_ids")
    refuse_if(isinstance(body.input_ids, str), "input_ids", "must be token ids")
    refuse_if(None not in (body.lora_path, body.model), "lora_path", "model is given as well")
    field, given = ("text", body.text) if body.input_ids is None else ("input_ids", body.input_ids)
    params = body.sampling_params or protocol.GenerateParams()
    fields = ParsedFields(params, params.max_new_tokens)
    fields.names |= {"max_new_tokens": "max_new_tokens", "min_new_tokens": "min_new_tokens"}
    if body.return_logprob:
        fields.values["logprobs"] = body.top_logprobs_num or 0
        fields.names["logprobs"] = "top_logprobs_num"
    prompts = await prompts_of(service, given, field)
    model = body.lora_path or body.model or service.base_name
    return make_request(service, prompts, fields, model, DEFAULT_GENERATE_TOKENS)


def make_request(
    service: Service,
    prompts: Mapping[str, list[int]],
    fields: ParsedFields,
    model: str,
    default: int | None,
    cache_salt: str | None = None,
) -> GenerationRequest:
    """`prompts`: token ids by what messages call them. `default`: tokens per answer, where `fields` have no number; None:
    whatever there is room for. ApiError naming the field."""
    adapter, n, settings = service.adapter_named(model), fields.n, service.settings
    rule = f"must be at least 1, and with {len(prompts)} prompts at most {settings.max_completions} in all"
    refuse_if(n < 1 or len(prompts) * n > settings.max_completions, "n", rule, n)
    computed = 1 if service.is_greedy(fields.values) else n
    in_all, counts = service.served.max_tokens, list[int]()
    for name, prompt in prompts.items():
        room, wanted = in_all - len(prompt), fields.max_tokens
        if room < 1:
            message = f"{name}: has {len(prompt)} tokens: must have fewer than {in_all} (the context, or the slots)"
            raise bad_request(message, name.partition("[")[0], "context_length_exceeded")
        rule = f"must not exceed {room}: {name} has {len(prompt)} of {in_all} tokens in all"
        refuse_if((wanted or 0) > room, fields.names["max_new_tokens"], rule, wanted, "context_length_exceeded")
        counts.append(wanted if wanted is not None else room if default is None else min(default, room))
    try:
        params = SamplingParams(max_new_tokens=max(counts), n=computed, **fields.values)
        each = [params if count == params.max_new_tokens else replace(params, max_new_tokens=count) for count in counts]
    except ValueError as error:
        raise as_api_error(error, fields.names) from error
    for name in ("logprobs", "prompt_top_logprobs"):
        number, rule = getattr(params, name) or 0, f"must not exceed {settings.max_logprobs}"
        refuse_if(number > settings.max_logprobs, fields.names.get(name, name), rule, number)
    requests = [
        Request(prompt, params, cache_salt, settings.request_timeout_s, name, adapter)
        for (name, prompt), params in zip(prompts.items(), each, strict=True)
    ]
    return GenerationRequest(requests, model, n // computed, fields.names)


async def prompts_of(service: Service, given: Any, field: str) -> dict[str, list[int]]:
    """Token ids of a request's prompts, one or more, by their names in messages. ApiError naming the one that is none."""
    several = [given] if isinstance(given, str) or _are_ids(given) else given
    most = service.settings.max_completions
    refuse_if(not (isinstance(several, list) and several), field, "must be text, token ids, or a list of these", given)
    refuse_if(len(several) > most, field, f"{len(several)}: must not exceed {most} prompts")
    named = {f"{field}[{i}]" if several is given else field: each for i, each in enumerate(several)}
    for name, each in named.items():
        if not isinstance(each, str) and not _are_ids(each):
            raise bad_request(f"{name}={repr_in_short(each)}: must be text or token ids", field)
    builder, context = service.core.builder, service.core.config.max_context_len

    def encode() -> dict[str, list[int]]:
        return {name: builder.prompt_ids(each, name, context).tolist() for name, each in named.items()}

    return await service.prepared(encode, "the tokenizer", field)


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(each) is int for each in value)


async def encode_chat(service: Service, body: protocol.ChatRequest, tools: Tools) -> list[int]:
    """Token ids of a conversation. ApiError when the template or the tokenizer refuses it."""
    service.tokenizer  # noqa: B018 - says that there is none
    variables = dict(body.chat_template_kwargs or {})
    refuse_if("chat_template" in variables, "chat_template_kwargs", "the model's own chat_template is used")
    given = {name: getattr(body, name) for name in ("add_generation_prompt", "continue_final_message", "documents")}
    variables |= {name: value for name, value in given.items() if value is not None}
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


def _plain(message: protocol.Message) -> dict[str, Any]:
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
    body: protocol.GenerationFields, fields: ParsedFields, logprobs: int | None, echoed: int | None = None
) -> None:
    """Add which log-probabilities are wanted. `echoed`: of how many likeliest tokens per position of the prompt an echo
    needs them; None if it needs none at all."""
    asked = body.prompt_logprobs
    refuse_if(asked is not None and body.stream, "prompt_logprobs", "cannot be given with stream=true")
    counts = [count for count in (asked, echoed) if count is not None]
    fields.names["prompt_top_logprobs"] = "logprobs" if asked is None else "prompt_logprobs"
    fields.values |= {"logprobs": logprobs, "prompt_logprobs": bool(counts)}
    fields.values["prompt_top_logprobs"] = max(counts, default=0)


def tools_of(service: Service, body: protocol.ChatRequest) -> Tools:
    """What a request says about tools. ApiError for what the model's template, or this server, does not know."""
    choice = "auto" if body.tool_choice is None else body.tool_choice
    refuse_if(not body.tools and choice not in ("none", "auto"), "tool_choice", "needs tools")
    if not body.tools or choice == "none":
        return Tools()
    why, code = "this model's chat template does not show tools to the model", "unsupported_field"
    refuse_if(not renders_tools(service.tokenizer), "tools", why, code=code)
    why = "the format in which this model writes tool calls is not known; --tool-call-parser names one"
    refuse_if(format_of(service.tokenizer) is None, "tools", why, code=code)
    functions = {tool.function.name: tool.function.parameters or {"type": "object"} for tool in body.tools}
    # Otherwise, nobody could tell which is called.
    refuse_if(len(functions) < len(body.tools), "tools", "two functions have the same name")
    named = {name for name in functions if choice == {"type": "function", "function": {"name": name}}}
    why = "must be 'auto', 'none', 'required', or {'type': 'function', 'function': {'name': one of tools}}"
    refuse_if(not named and choice not in ("auto", "required"), "tool_choice", why)
    definitions = [tool.model_dump(exclude_none=True) for tool in body.tools]
    must_call = None if choice == "auto" else {name: functions[name] for name in named or functions}
    return Tools(definitions, must_call, bool(named), not named and body.parallel_tool_calls is not False, functions)


def special_tags(service: Service, body: protocol.ChatRequest, tools: Tools) -> list[str]:
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

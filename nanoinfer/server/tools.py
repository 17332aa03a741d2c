"""Tools: what the model may call, rendered by its chat template, and what it must."""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from nanoinfer.requests.sampling_params import GRAMMAR_FIELDS
from nanoinfer.requests.tool_calls import BEGIN, TAGS
from nanoinfer.server.bodies import ChatRequest
from nanoinfer.server.errors import bad_request
from nanoinfer.server.fields import did_you_mean, shown
from nanoinfer.server.service import Service
from nanoinfer.server.to_params import Given

logger = logging.getLogger("nanoinfer.server")


@dataclass(frozen=True)
class Tools:
    """`definitions`: for the template; None if the model may call nothing. `must_call`: name → JSON schema of the arguments
    of each function of which it must call one; None if it need not call any. `is_named`: the client has named that one.
    `parallel`: whether there may be several calls. `hidden`: what of the text only the parser of calls may see: special
    tokens, if tags of calls are among them."""

    definitions: list[dict[str, Any]] | None = None
    must_call: Mapping[str, Any] | None = None
    is_named: bool = False
    parallel: bool = True
    hidden: re.Pattern[str] | None = None

    def restrict(self, given: Given) -> None:
        """Add to `given` what makes the model call something, or only once, and what shows its calls. ApiError for what
        cannot be had with it. A call that must come is a grammar."""
        if self.hidden is not None:
            given.values["skip_special_tokens"] = False
        grammars = [given.names.get(name, name) for name in GRAMMAR_FIELDS if name in given.values]
        if self.must_call is not None:
            for name in grammars:
                raise bad_request(f"{name}: not with a tool_choice that demands a call", name)
            given.values |= {"tool_calls": self.must_call, "parallel_tool_calls": self.parallel}
            given.names["tool_calls"] = "tools"
        elif self.definitions is not None:
            given.values["parallel_tool_calls"] = self.parallel
            for name in grammars:
                _warn_of_grammar(name)


@cache
def _warn_of_grammar(field: str) -> None:
    logger.warning("%s holds from the first token, so tools that may be called are not (said once)", field)


def tools_of(service: Service, body: ChatRequest) -> Tools:
    """What a request says about tools. ApiError for what the model's template, or this server, does not know."""
    if not body.tools:
        if body.tool_choice not in (None, "none", "auto"):
            raise bad_request("tool_choice: needs tools", "tool_choice")
        return Tools()
    for i, tool in enumerate(body.tools):
        if tool.type != "function":
            raise bad_request(f"tools[{i}].type={tool.type!r}: must be 'function'", "tools")
    if len(body.tools) > service.settings.max_tools:
        raise bad_request(f"tools: {len(body.tools)}: must not exceed {service.settings.max_tools}", "tools")
    choice = "auto" if body.tool_choice is None else body.tool_choice
    if choice == "none":
        return Tools()
    if not knows_format(service):
        raise bad_request(
            "tools: the format in which this model's chat template writes tool calls is not known",
            "tools",
            "unsupported_field",
        )
    definitions = [tool.definition for tool in body.tools]
    parallel, hidden = body.parallel_tool_calls is not False, _hidden(service, body)
    if choice == "auto":
        return Tools(definitions, parallel=parallel, hidden=hidden)
    functions = _functions(definitions)
    if choice == "required":
        return Tools(definitions, functions, parallel=parallel, hidden=hidden)
    name = _named(choice, functions)
    return Tools(definitions, {name: functions[name]}, is_named=True, parallel=False, hidden=hidden)


def _hidden(service: Service, body: ChatRequest) -> re.Pattern[str] | None:
    """See Tools."""
    special = service.tokenizer.hf_tokenizer.convert_ids_to_tokens(sorted(service.core.builder.special_ids))
    if body.skip_special_tokens is False or not {*special} & {*TAGS}:
        return None
    return re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True))))


def _functions(definitions: list[dict[str, Any]]) -> dict[str, Any]:
    """Name → schema of the arguments. ApiError for a name that comes twice: nobody could tell which is called."""
    functions: dict[str, Any] = {}
    for i, definition in enumerate(definitions):
        function = definition["function"]
        if not function["name"] or function["name"] in functions:
            what = "comes twice" if function["name"] else "is empty"
            raise bad_request(f"tools[{i}].function.name={function['name']!r}: {what}", "tools")
        functions[function["name"]] = function.get("parameters") or {"type": "object"}
    return functions


def _named(choice: str | dict[str, Any], functions: dict[str, Any]) -> str:
    """The function that a `tool_choice` names. ApiError if it names none of `functions`."""
    function = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) and function.keys() == {"name"} else None
    if not isinstance(choice, dict) or choice.keys() != {"type", "function"} or not isinstance(name, str):
        raise bad_request(
            "tool_choice: must be 'auto', 'none', 'required', or {'type': 'function', 'function': {'name': ...}}",
            "tool_choice",
        )
    if name not in functions:
        raise bad_request(
            f"tool_choice: no function {shown(name)!r} in tools{did_you_mean(name, functions)}", "tool_choice"
        )
    return name


def knows_format(service: Service) -> bool:
    """True when the model's chat template has tools, and writes calls in the format of requests/tool_calls.py."""
    template = getattr(service.tokenizer.hf_tokenizer, "chat_template", None)
    if isinstance(template, dict):
        template = template.get("tool_use") or template.get("default")
    is_json = (
        isinstance(template, str) and '"arguments"' in template.replace('\\"', '"') and "<function=" not in template
    )
    return is_json and BEGIN in str(template) and "tools" in str(template)

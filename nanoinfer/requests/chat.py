"""Conversations: turns messages into the text of a prompt, with the model's chat template."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

Messages = Sequence[Mapping[str, Any]]

NOT_FOR_CALLERS = (  # arguments of `apply_chat_template` that say in which form a prompt is returned
    *("conversation", "messages", "tokenize", "padding", "truncation", "max_length", "return_tensors", "return_dict"),
    *("return_assistant_tokens_mask", "tokenizer_kwargs"),
)

_TOOLS_OF_SYSTEM = re.compile(r"""message(?:\.tools\b|\[['"]tools['"]\])""")


def render_chat(hf_tokenizer: Any, messages: Messages, template_kwargs: Mapping[str, Any] | None = None) -> str:
    """The text of a conversation up to where the assistant's next turn begins.

    `messages`: `[{"role": ..., "content": ...}, ...]`. Content is text, or a list of parts `{"type": "text", "text": ...}`,
    which are joined by newlines, as in vLLM. None is empty text, and beside `tool_calls` it may be missing. Templates get
    the arguments of calls as an object if they are one in JSON, or else, and where they only take text, as they are. The
    role "developer" becomes "system" where the template does not know it. A template that takes tools from the system
    message (Phi-4-mini's) finds them there.

    `template_kwargs`: variables of the template, such as `enable_thinking`, and those arguments of transformers'
    `apply_chat_template` that say what goes into a prompt. With `continue_final_message=True` the last turn continues and
    no new one begins. As in transformers, a variable that the template does not read has no effect.

    ValueError when the model has no template, or when the template refuses the messages.
    """
    variables = _checked_variables(template_kwargs)
    if not hf_tokenizer.chat_template and not variables.get("chat_template"):
        raise ValueError("this model has no chat template; use generate with a plain prompt")
    for i, message in enumerate(messages):
        if isinstance(message, list | tuple):
            raise ValueError(f"messages[{i}]: must be a message, got a list; give one conversation at a time")
        if not isinstance(message, Mapping) or "role" not in message or not {"content", "tool_calls"} & message.keys():
            raise ValueError(f"messages[{i}]={message!r}: must have role and content")
    if not messages:
        raise ValueError("messages: a conversation needs at least one message")
    plain = [_plain(message, f"messages[{i}]") for i, message in enumerate(messages)]
    if variables.get("tools") and _TOOLS_OF_SYSTEM.search(str(hf_tokenizer.chat_template)):
        functions = [tool.get("function", tool) for tool in variables["tools"]]
        if plain[0]["role"] != "system":
            plain.insert(0, {"role": "system", "content": ""})
        plain[0]["tools"] = json.dumps(functions, ensure_ascii=False)
    developers = [message for message in plain if message.get("role") == "developer"]
    if developers:
        template = hf_tokenizer.get_chat_template(variables.get("chat_template"), variables.get("tools"))
        if not re.search(r"""['"]developer['"]""", template):
            for message in developers:
                message["role"] = "system"
    variables.setdefault("add_generation_prompt", not variables.get("continue_final_message"))
    from jinja2 import TemplateError, TemplateSyntaxError

    given = variables.get("chat_template") is not None
    try:
        try:
            return hf_tokenizer.apply_chat_template(plain, tokenize=False, **variables)
        except TypeError:
            as_text = [_with_text(message) for message in plain]  # which DeepSeek's templates join to text
            return hf_tokenizer.apply_chat_template(as_text, tokenize=False, **variables)
    except TemplateSyntaxError as error:
        where = "chat_template_kwargs: chat_template" if given else "the model's chat template"
        raise ValueError(f"{where}: is malformed in line {error.lineno}: {error.message}") from error
    except (TemplateError, TypeError) as error:  # TypeError: content that is not text
        whose = "given" if given else "model's"
        raise ValueError(f"messages: the {whose} chat template refuses them: {error}") from error


def _plain(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A message as templates know them: nothing in it is None, and there are no empty `tool_calls`."""
    plain = {name: value for name, value in message.items() if value is not None}
    plain["content"] = _joined(plain.get("content", ""), where)
    if calls := plain.pop("tool_calls", None):
        plain["tool_calls"] = [_with_object(call) for call in calls]
    return plain


def _with_object(call: Any) -> Any:
    """A call with its arguments as an object, if they are the text of one that can be written again as JSON."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(text := function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(text or "{}")
        json.dumps(arguments, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": arguments}} if isinstance(arguments, dict) else call


def _with_text(message: dict[str, Any]) -> dict[str, Any]:
    """A message with the arguments of its calls as text."""

    def as_text(value: Any) -> Any:
        return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value

    calls = [
        {**call, "function": {**call["function"], "arguments": as_text(call["function"].get("arguments"))}}
        for call in message.get("tool_calls", ())
        if isinstance(call.get("function"), Mapping)
    ]
    return message | ({"tool_calls": calls} if calls else {})


def _joined(content: Any, where: str) -> Any:
    """Content as text. Anything that is neither text nor a list is returned as it is; the template may refuse it."""
    if isinstance(content, str) or not isinstance(content, Sequence):
        return content
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if kind != "text":
            raise ValueError(f"{where}: content[{i}] is of type {kind!r}: must be 'text', the only supported type")
        if not isinstance(part.get("text"), str):
            raise ValueError(f"{where}: content[{i}]={part!r}: must have a string under 'text'")
    return "\n".join(part["text"] for part in content)


def _checked_variables(template_kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    given: Any = {} if template_kwargs is None else template_kwargs
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise ValueError(f"chat_template_kwargs={given!r}: must be a mapping of names to values")
    for name in given:
        if name in NOT_FOR_CALLERS:
            raise ValueError(f"chat_template_kwargs: {name}: chat sets it; give only variables of the template")
    return dict(given)

"""What clients of a server that is soaked ask for at random, and what must hold of each answer."""

import json
import random
import re
from typing import Any

WORDS = [
    "once",
    "upon",
    "a",
    "time",
    "there",
    "was",
    "little",
    "fox",
    "said",
    "hello",
    "to",
    "the",
    "old",
    "bear",
    "sea",
]
NONSENSE = (
    {"temperature": -1},
    {"nonsense": 1},
    {"model": "none"},
    {"max_tokens": 10**6},
    {"n": 0},
    {"prompt": [1] * 100_000},
    {"stop": [1]},
    {"guided_regex": "("},
    {"logit_bias": {"x": 1}},
)
PERSON = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 9}, "is_old": {"type": "boolean"}},
    "required": ["age", "is_old"],
    "additionalProperties": False,
}
YES_OR_NO = {"name": "one", "schema": {"enum": ["yes", "no"]}}
# What a choice that has ended by itself must match.
GRAMMARS: tuple[tuple[dict[str, Any], str], ...] = (
    ({"response_format": {"type": "json_schema", "json_schema": YES_OR_NO}}, '"(yes|no)"'),
    ({"guided_json": PERSON}, r'\{"age":\d,"is_old":(true|false)\}'),
    ({"guided_regex": "[a-c]{2,5}[0-9]"}, "[a-c]{2,5}[0-9]"),
    ({"guided_choice": ["fox", "old bear"]}, "fox|old bear"),
    ({"guided_grammar": 'start: "a" | "b" start'}, "b*a"),
)
# What the story model is made to know: tools, and thoughts, which END_OF_THOUGHT, once a token of its own, ends.
TEMPLATE = """{% if tools %}{# <tool_call>{"name": "arguments"} #}{{ tools | length }} tools. {% endif %}
{%- for message in messages %}{{ '<|' + message.role + '|>' + message.content + message.reasoning_content | default('') }}
{%- for call in message.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}{{ eos_token }}{% endfor %}
{{- '<|assistant|>' }}{% if thinks %}<think>{% endif %}"""
OLD_TOKEN, END_OF_THOUGHT = "<|system|>", "</think>"
NUMBER_OF_IT = 5
SHORT = {"type": "string", "maxLength": 5}
TOOLS: list[dict[str, Any]] = [
    {"name": "person", "parameters": PERSON},
    {"name": "word", "parameters": {"type": "object", "properties": {"text": SHORT}, "additionalProperties": False}},
]
ONE_CALL = r'(person\{"age": ?\d, ?"is_old": ?(true|false)\}|word\{("text": ?".{0,30}")?\})'
GUEST, RESIDENTS = "guest", ("rhymes", "sea")  # GUEST is loaded and unloaded, now from one folder, now from the other


def random_request(rng: random.Random) -> tuple[str, dict[str, Any], str | None]:
    """A path, a body, and what the text of each choice that stops by itself must match."""
    text = " ".join(rng.choices(WORDS, k=rng.choice([2, 8, 30])))
    body: dict[str, Any] = {"model": "story", "stream": rng.random() < 0.6, "max_tokens": rng.choice([1, 8, 40, 150])}
    body |= {"temperature": rng.choice([0, 0.8]), "n": rng.choice([1, 1, 1, 3])}
    if rng.random() < 0.5:
        path, body["messages"] = "/v1/chat/completions", [{"role": "user", "content": text}]
    else:
        path, body["prompt"] = "/v1/completions", rng.choice([text, [text, text[:9]], [1, 50, 60]])
    pattern = None
    if "messages" in body and rng.random() < 0.5:
        pattern = call_something(rng, body)
    kind = rng.random()
    if pattern is None and kind < 0.1:
        fields, pattern = rng.choice(GRAMMARS)
        body |= fields
        if body.get("tool_choice") == "auto":
            pattern = f"({pattern})|({ONE_CALL}{'+' if body['parallel_tool_calls'] else ''})"
    elif kind < 0.2:
        body |= rng.choice(NONSENSE)
    elif kind < 0.4:  # one of few, so that the answers can be compared
        prompt = "The little " + rng.choice(("fox", "bear", "bird"))
        path, body = "/v1/completions", {"prompt": prompt, "max_tokens": 24, "temperature": 0, "stream": body["stream"]}
        body["model"] = rng.choice(["story", *RESIDENTS, GUEST, GUEST])
    elif kind < 0.42:  # too long for its deadline when there is much to do
        body |= {"max_tokens": 900, "ignore_eos": True, "n": 1}
        if "prompt" in body:
            body["prompt"] = text
    return path, body, pattern


def call_something(rng: random.Random, body: dict[str, Any]) -> str | None:
    """Add tools and thoughts to a chat. Returns the pattern for what must be called, None if nothing must."""
    choice = rng.choice(["none", "auto", "required", "named"])
    body |= {"tools": [{"function": tool} for tool in TOOLS], "tool_choice": choice}
    body |= {"parallel_tool_calls": rng.random() < 0.5, "temperature": 0.8}
    if choice == "named":
        body["tool_choice"] = {"type": "function", "function": {"name": "person"}}
    if rng.random() < 0.5:
        body |= {"chat_template_kwargs": {"thinks": True}, "logit_bias": {str(NUMBER_OF_IT): rng.choice([0, 8, 16])}}
    if choice in ("none", "auto"):
        return None
    return ONE_CALL + ("+" if choice == "required" and body["parallel_tool_calls"] else "")


class Answers:
    """What has been answered: equal questions must have equal answers, and grammars are kept."""

    def __init__(self) -> None:
        self.compared = self.matched = 0
        self._texts: dict[str, str] = {}  # by what was asked
        self._guests: dict[str, set[str]] = {}

    def fault(self, body: dict[str, Any], choices: list[tuple[str, str | None]], pattern: str | None) -> str | None:
        """What is wrong with an answer; None if nothing is."""
        prompt = body.get("prompt")
        prompts = len(prompt) if isinstance(prompt, list) and isinstance(prompt[0], str) else 1
        if len(choices) != body.get("n", 1) * prompts:
            return f"{len(choices)} choices"
        for text, reason in choices:
            if reason not in ("stop", "length", "tool_calls"):
                return f"a choice without a finish reason: {reason}"
            if pattern is not None and reason != "length":
                self.matched += 1
                if not re.fullmatch(pattern, text):
                    return f"{text!r} does not match {pattern}"
        if "n" not in body:
            return self._comparison(body["model"], json.dumps([prompt, body["max_tokens"]]), choices[0][0])
        return None

    def _comparison(self, model: str, asked: str, text: str) -> str | None:
        if model == GUEST:
            self._guests.setdefault(asked, set()).add(text)
        elif self._texts.setdefault(f"{model} {asked}", text) != text:
            return f"{model} {asked}: {text!r}, and before {self._texts[f'{model} {asked}']!r}"
        there = [self._texts.get(f"{name} {asked}") for name in RESIDENTS]
        self.compared += 1
        strange = self._guests.get(asked, set()) - set(there)
        return f"{GUEST} {asked}: {strange}, which is neither adapter's" if strange and None not in there else None


def choices_of(rest: bytes, body: dict[str, Any]) -> list[tuple[str, str | None]]:
    """Text and finish reason of each choice of an answer, whole or streamed, with its calls. ValueError if it is
    neither."""
    if not body.get("stream"):
        found = json.loads(rest)["choices"]
        return [
            (_text(each["message"]) if "message" in each else each["text"], each["finish_reason"]) for each in found
        ]
    texts, reasons = dict[int, str](), dict[int, str]()
    for event in _unchunked(rest).decode().split("\n\n")[:-1]:
        if event == "data: [DONE]":
            break
        for each in json.loads(event.removeprefix("data: "))["choices"]:
            new = _text(each["delta"]) if "delta" in each else each["text"]
            texts[each["index"]] = texts.get(each["index"], "") + new
            if each["finish_reason"]:
                reasons[each["index"]] = each["finish_reason"]
    return [(texts[i], reasons.get(i)) for i in sorted(texts)]


def _text(message: dict[str, Any]) -> str:
    """Content and calls of a message, or of a delta: put together, they are those of the message."""
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    called = [function.get("name", "") + function["arguments"] for function in functions]
    return (message.get("content") or "") + "".join(called)


def _unchunked(rest: bytes) -> bytes:
    parts = []
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        parts.append(rest[: int(size, 16)])
        rest = rest[int(size, 16) + 2 :]
    return b"".join(parts)

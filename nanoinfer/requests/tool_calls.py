"""CallParser: the tool calls in what a model writes whose chat template is in the style of Qwen and Hermes:

<tool_call>
{"name": "weather", "arguments": {"city": "Oslo"}}
</tool_call>
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import uuid4

import numpy as np

BEGIN, END = "<tool_call>", "</tool_call>"
THINK, END_THINK = "<think>", "</think>"
TAGS = (BEGIN, END, THINK, END_THINK)
_TAG = re.compile("|".join(TAGS))
_BEHIND_CALL = re.compile(rf"(?:\s|{END})*")
_MEMBER = re.compile(r"\s*[{,]\s*")
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')
_CONTROL = re.compile(r"[\x00-\x1f]")


class CallParser:
    """Finds the calls in the text of one completion, piece by piece. Text that may belong to one is held back.

    A call is a JSON object behind the opening tag. What is not one, and what the model thinks, is text; `is_thinking`: the
    prompt has opened a `<think>`. The closing tag may be missing. It and the white space behind a call belong to no text.
    """

    def __init__(self, is_thinking: bool = False):
        self.calls = 0
        self.held = ""
        self._place = "thought" if is_thinking else "text"  # or "call", or "behind" one

    def read(self, text: str, last: bool = False) -> Iterator[str | dict[str, Any]]:
        """What a piece adds, in order: text outside of calls, and whole calls in OpenAI's shape. With `last`, nothing is
        held back. `held` is what has not been read yet, even while the result is iterated over."""
        self.held += text
        while True:
            if self._place == "call":
                may_come = not last and self.held.lstrip()[:1] in ("", "{")
                if may_come and "}" not in text:
                    return
                if found := call_of(self.held, self.calls):
                    call, end = found
                    self.held, self._place, self.calls = self.held[end:], "behind", self.calls + 1
                    yield call
                elif may_come:
                    return
                else:
                    self._place = "text"
                    yield BEGIN
            elif self._place == "behind":
                self.held = _BEHIND_CALL.sub("", self.held, count=1)
                if END.startswith(self.held):
                    self.held = "" if last else self.held
                    return
                self._place = "text"
            elif (tag := _TAG.search(self.held)) is None:
                keep = 0 if last else max(_overlap(self.held, each) for each in TAGS)
                certain, self.held = self.held[: len(self.held) - keep], self.held[len(self.held) - keep :]
                yield certain
                return
            else:
                before, self.held = self.held[: tag.start()], self.held[tag.end() :]
                if tag[0] == BEGIN and self._place == "text":
                    self._place = "call"
                    yield before
                else:
                    self._place = {THINK: "thought", END_THINK: "text"}.get(tag[0], self._place)
                    yield before + tag[0]


def call_of(text: str, index: int) -> tuple[dict[str, Any], int] | None:
    """The call that `text` begins with, as a part of a message, and where it ends. None if there is none, or not yet.

    A call has a name, and arguments that are an object, or the text of one, which clients can read again (neither NaN nor
    half a surrogate pair). They are handed on as they are written, so no number is rounded.
    """
    try:
        begin = len(text) - len(text.lstrip())
        call, end = _DECODER.raw_decode(text, begin)
        if not isinstance(call, dict) or not isinstance(name := call.get("name"), str):
            return None
        key = "arguments" if "arguments" in call else "parameters"
        arguments, written = call.get(key), _member(text[begin:end], key)
        if isinstance(arguments, str):
            written = arguments or "{}"
            arguments = _DECODER.decode(written)
        if arguments is None:
            arguments, written = {}, "{}"
        if not isinstance(arguments, dict):
            return None
        json.dumps([name, arguments], ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    function = {"name": name, "arguments": _STRING.sub(_escaped, written)}
    return {"index": index, "id": f"call_{uuid4().hex[:24]}", "type": "function", "function": function}, end


def opens_thought(tokenizer: Any, prompt_ids: Sequence[int] | np.ndarray) -> bool:
    """Whether a prompt ends with the tag that begins a thought, as some templates have it."""
    last = [int(token) for token in prompt_ids[-16:]]
    return tokenizer.decode(last, skip_special_tokens=False).rstrip().endswith(THINK)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


# Control characters may stand in strings. What numbers are does not matter.
_DECODER = json.JSONDecoder(strict=False, parse_int=float, parse_constant=_refuse)


def _member(text: str, name: str) -> str:
    """A member of the JSON object `text`, as it is written; the last of several with this name."""
    found, at = "", 0
    while separator := _MEMBER.match(text, at):
        key, at = _DECODER.raw_decode(text, separator.end())
        begin = len(text) - len(text[text.index(":", at) + 1 :].lstrip())
        _, at = _DECODER.raw_decode(text, begin)
        found = text[begin:at] if key == name else found
    return found


def _escaped(string: re.Match[str]) -> str:
    """A string in JSON, with its control characters as JSON demands it."""
    return _CONTROL.sub(lambda character: json.dumps(character[0])[1:-1], string[0])


def _overlap(text: str, tag: str) -> int:
    """How many of the last characters of `text` may begin `tag`."""
    return next((n for n in range(min(len(text), len(tag) - 1), 0, -1) if text.endswith(tag[:n])), 0)

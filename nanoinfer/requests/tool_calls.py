"""Tool calls in what a model writes: CallFormat, how it writes them, and CallParser, which finds them.

To add a format: a line in CALL_FORMATS; CallParser, too, if calls are not JSON objects between two tags. The first whose
`is_in` holds for the model's chat template is used, by the server, the grammars that demand calls, and requests that end
with one.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import numpy as np

THINK, END_THINK = "<think>", "</think>"
_MEMBER = re.compile(r"\s*[{,]\s*")
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')
_CONTROL = re.compile(r"[\x00-\x1f]")


@dataclass(frozen=True)
class CallFormat:
    """Calls as JSON objects between two tags."""

    begin: str
    end: str

    @property
    def tags(self) -> tuple[str, ...]:
        """All tags that have a meaning in a text with calls."""
        return self.begin, self.end, THINK, END_THINK

    def is_in(self, template: str) -> bool:
        """Whether a chat template has tools, and writes calls in this format."""
        text = template.replace('\\"', '"')
        return all(part in text for part in ("tools", self.begin, '"arguments"')) and "<function=" not in text

    def lark_rules(self, names: Sequence[str], parallel: bool) -> list[str]:
        """A Lark grammar for calls of these functions, or for one of them; `@a0`, `@a1` and so on are their arguments."""
        begin, end = json.dumps(f"{self.begin}\n"), json.dumps(f"\n{self.end}")  # quoted as in a Lark grammar
        before = [json.dumps(f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": ') for name in names]
        return [
            'start: call ("\\n" call)*' if parallel else "start: call",
            f"call: {begin} ({' | '.join(f'f{i}' for i in range(len(names)))}) {end}",
            *(f'f{i}: {text} @a{i} "}}"' for i, text in enumerate(before)),
        ]

    def call_of(self, text: str, index: int) -> tuple[dict[str, Any] | None, int]:
        """The call that `text`, which follows `begin`, begins with, as a part of a message, and where it ends. None and 0
        if there is none; None and -1 if there is none yet: its JSON is not whole, and no closing tag comes behind what is
        wrong with it.

        A call has a name, and arguments that are an object, or the text of one, which clients can read again (neither NaN
        nor half a surrogate pair). They are handed on as they are written, so no number is rounded.
        """
        begin = len(text) - len(text.lstrip())
        try:
            call, end = _DECODER.raw_decode(text, begin)
        except json.JSONDecodeError as error:
            return None, -1 if error.msg.startswith("Unterminated string") or self.end not in text[error.pos :] else 0
        except (ValueError, RecursionError):
            return None, 0
        try:
            if not isinstance(call, dict) or not isinstance(name := call.get("name"), str):
                return None, 0
            key = "arguments" if "arguments" in call else "parameters"
            arguments, written = call.get(key), _member(text[begin:end], key)
            if isinstance(arguments, str):
                written = arguments or "{}"
                arguments = _DECODER.decode(written)
            if arguments is None:
                arguments, written = {}, "{}"
            if not isinstance(arguments, dict):
                return None, 0
            json.dumps([name, arguments], ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            return None, 0
        function = {"name": name, "arguments": _STRING.sub(_escaped, written)}
        return {"index": index, "id": f"call_{uuid4().hex[:24]}", "type": "function", "function": function}, end


HERMES = CallFormat("<tool_call>", "</tool_call>")  # of Hermes and Qwen; where the template says nothing, too
CALL_FORMATS = [HERMES]


def format_of(tokenizer: Any) -> CallFormat | None:
    """The format of a model's calls, by its chat template; None if it is not known."""
    template = getattr(getattr(tokenizer, "hf_tokenizer", None), "chat_template", None)
    if isinstance(template, dict):
        template = template.get("tool_use") or template.get("default")
    return next((each for each in CALL_FORMATS if each.is_in(str(template))), None)


class CallParser:
    """Finds the calls in the text of one completion, piece by piece. Text that may belong to one is held back.

    A call is a JSON object behind the opening tag. What is not one, and what the model thinks, is text; `is_thinking`: the
    prompt has opened a `<think>`. The closing tag may be missing. It and the white space behind a call belong to no text.
    """

    def __init__(self, is_thinking: bool = False, call_format: CallFormat = HERMES):
        self.calls = 0
        self.held = ""
        self._format, self._tag = call_format, re.compile("|".join(map(re.escape, call_format.tags)))
        self._behind_call = re.compile(rf"(?:\s|{re.escape(call_format.end)})*")
        self._place = "thought" if is_thinking else "text"  # or "call", or "behind" one

    def read(self, text: str, last: bool = False) -> Iterator[str | dict[str, Any]]:
        """What a piece adds, in order: text outside of calls, and whole calls in OpenAI's shape. With `last`, nothing is
        held back. `held` is what has not been read yet, even while the result is iterated over."""
        self.held += text
        while True:
            if self._place == "call":
                may_come = not last and self.held.lstrip()[:1] in ("", "{")
                if may_come and not self._may_be_whole(text):
                    return
                call, end = self._format.call_of(self.held, self.calls)
                if call is not None:
                    self.held, self._place, self.calls = self.held[end:], "behind", self.calls + 1
                    yield call
                elif may_come and end < 0:
                    return
                else:
                    self._place = "text"
                    yield self._format.begin
            elif self._place == "behind":
                self.held = self._behind_call.sub("", self.held, count=1)
                if self._format.end.startswith(self.held):
                    self.held = "" if last else self.held
                    return
                self._place = "text"
            elif (tag := self._tag.search(self.held)) is None:
                keep = 0 if last else max(overlap(self.held, each) for each in self._format.tags)
                certain, self.held = self.held[: len(self.held) - keep], self.held[len(self.held) - keep :]
                yield certain
                return
            else:
                before, self.held = self.held[: tag.start()], self.held[tag.end() :]
                if tag[0] == self._format.begin and self._place == "text":
                    self._place = "call"
                    yield before
                else:
                    self._place = {THINK: "thought", END_THINK: "text"}.get(tag[0], self._place)
                    yield before + tag[0]

    def _may_be_whole(self, text: str) -> bool:
        """Whether it is worth the time to read `held`, which ends with the piece `text`: a call or a tag may end in it."""
        to_brace, end = self.held[: self.held.rfind("}") + 1], self._format.end
        return ("}" in text and to_brace.count("{") <= to_brace.count("}")) or (end[-1] in text and end in self.held)


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


def overlap(text: str, wanted: str) -> int:
    """How many of the last characters of `text` may begin `wanted`: the longest suffix that is a proper prefix of it."""
    return next((n for n in range(min(len(text), len(wanted) - 1), 0, -1) if text.endswith(wanted[:n])), 0)

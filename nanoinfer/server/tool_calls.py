"""CallParser: the tool calls in what a model writes. Their format is described in grammars/tool_calls.py."""

import json
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from nanoinfer.grammars.tool_calls import BEGIN, END


@dataclass
class CallParser:
    """Finds the calls in the text of one completion, piece by piece. Text that may belong to one is held back, and line
    breaks behind one belong to no text."""

    calls: int = 0
    _held: str = ""
    _inside: bool = False
    _behind_call: bool = False

    def add(self, text: str, last: bool = False) -> tuple[str, list[dict[str, Any]]]:
        """What a piece adds: text outside of calls, and whole calls in OpenAI's shape. With `last`, nothing is held back:
        a call that is not complete, or is not what a call must be, is text."""
        self._held += text
        content, found = "", []
        while True:
            if not self._inside:
                before, tag, after = self._held.partition(BEGIN)
                if not tag:
                    keep = 0 if last else _overlap(self._held, BEGIN)
                    content += self._outside(self._held[: len(self._held) - keep])
                    self._held = self._held[len(self._held) - keep :]
                    break
                content, self._held, self._inside = content + self._outside(before), after, True
            inner, tag, after = self._held.partition(END)
            if not tag:
                if last:
                    content, self._held = content + self._outside(BEGIN + self._held), ""
                break
            call = call_of(inner, self.calls)
            if call is None:
                content += self._outside(BEGIN + inner + END)
            else:
                found.append(call)
                self.calls += 1
                self._behind_call = True
            self._held, self._inside = after, False
        return content, found

    def _outside(self, text: str) -> str:
        """Text outside of calls, as the client gets it."""
        if self._behind_call:
            text = text.lstrip()
            self._behind_call = not text
        return text


def call_of(text: str, index: int) -> dict[str, Any] | None:
    """The call in `text`, as a part of a message. None if it is none: a call has a name, and arguments that are an object,
    or the text of one, which clients can read again (neither NaN nor half a surrogate pair)."""
    try:
        call = json.loads(text)
        if not isinstance(call, dict) or not isinstance(name := call.get("name"), str):
            return None
        arguments = call.get("arguments")
        if isinstance(arguments, str):
            arguments = json.loads(arguments or "{}")
        if not isinstance(arguments, dict | None):
            return None
        written = json.dumps(arguments or {}, ensure_ascii=False, allow_nan=False)
        (name + written).encode()
    except (ValueError, RecursionError):
        return None
    function = {"name": name, "arguments": written}
    return {"index": index, "id": f"call_{uuid4().hex[:24]}", "type": "function", "function": function}


def _overlap(text: str, tag: str) -> int:
    """How many of the last characters of `text` may begin `tag`."""
    return next((n for n in range(min(len(text), len(tag) - 1), 0, -1) if text.endswith(tag[:n])), 0)

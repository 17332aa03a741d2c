"""What /v1/chat/completions answers."""

from typing import Any

from nanoinfer.outputs import RequestOutput, StreamPiece
from nanoinfer.requests.tool_calls import HERMES, CallParser, format_of, opens_thought
from nanoinfer.server.formatter import ResponseFormatter, reason_in
from nanoinfer.server.generation import GenerationRequest
from nanoinfer.server.logprobs import chat_logprobs, prompt_logprobs
from nanoinfer.server.protocol import ChatRequest
from nanoinfer.server.request_parsing import Tools
from nanoinfer.server.service import Service


class ChatFormatter(ResponseFormatter):
    """Choices with a `message`, or with `delta`s: the first carries the role, the one with the finish reason is empty."""

    stream_object, whole_object = "chat.completion.chunk", "chat.completion"

    def __init__(self, service: Service, body: ChatRequest, request: GenerationRequest, answer_id: str, tools: Tools):
        super().__init__(answer_id, request, service.token_names, body.include_usage)
        self._top_logprobs = (body.top_logprobs or 0) if body.logprobs else None
        self._wants_ids, self._prompt_top = bool(body.return_token_ids), body.prompt_logprobs
        self._tools, self._parsers = tools, dict[int, CallParser]()  # by choice
        self._call_format = format_of(service.tokenizer) or HERMES
        may_think = tools.definitions is not None and tools.must_call is None
        self._is_thinking = may_think and opens_thought(service.tokenizer, request.prompts[0])
        self._begun: set[int] = set()

    def choice_events(self, i: int, piece: StreamPiece) -> str:
        reason = reason_in(piece)
        if not (piece.text or piece.token_ids or reason):
            return ""
        events = ""
        if i not in self._begun:
            self._begun.add(i)
            role = {"role": "assistant", "content": None if self._tools.must_call else "", "refusal": None}
            ids = {"prompt_token_ids": list(self.request.prompts[0])} if self._wants_ids else {}
            events = self._delta(i, role, **ids)
        delta, more = self._content(i, piece, reason is not None), dict[str, Any]()
        if self._top_logprobs is not None and piece.logprobs:
            more["logprobs"] = chat_logprobs(self.names, piece.logprobs, self._top_logprobs)
        if self._wants_ids:
            more["token_ids"] = piece.token_ids
        if delta or any(more.values()):
            events += self._delta(i, delta, **more)
        if reason is not None:
            calls = self._parsers[i].calls if i in self._parsers else 0
            events += self._delta(i, {}, finish_reason=self._reason(reason, calls), stop_reason=piece.stop_reason)
        return events

    def _delta(self, i: int, delta: dict[str, Any], **more: Any) -> str:
        nothing = {"logprobs": None, "finish_reason": None, "stop_reason": None}
        return self.event({"index": i, "delta": delta, **nothing, **more})

    def _content(self, i: int, piece: StreamPiece, last: bool) -> dict[str, Any]:
        """A delta with text, and with tool calls where they may come."""
        if self._tools.definitions is None:
            return {"content": piece.text} if piece.text else {}
        content, calls = self._read(i, piece.text, last)
        return ({"content": content} if content else {}) | ({"tool_calls": calls} if calls else {})

    def _read(self, i: int, text: str, last: bool) -> tuple[str, list[dict[str, Any]]]:
        """What a piece of a choice's text adds: text outside of calls, as the client may see it, and whole calls."""
        parts = list(self._parsers.setdefault(i, CallParser(self._is_thinking, self._call_format)).read(text, last))
        content = "".join(part for part in parts if isinstance(part, str))
        content = content if self._tools.hidden is None else self._tools.hidden.sub("", content)
        return content, [part for part in parts if not isinstance(part, str)]

    def _reason(self, reason: str, calls: int) -> str:
        """OpenAI's: a call that the client has named is no reason of its own."""
        return "tool_calls" if calls and reason == "stop" and not self._tools.is_named else reason

    def choice(self, i: int, output: RequestOutput, k: int) -> dict[str, Any]:
        completion = output.outputs[k]
        reason, content, calls = str(completion.finish_reason), completion.text, list[dict[str, Any]]()
        if self._tools.definitions is not None:
            content, calls = self._read(i, completion.text, last=True)
            reason = self._reason(reason, len(calls))
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if calls:
            message |= {"content": content or None, "tool_calls": [_without_index(call) for call in calls]}
        logprobs = None
        if self._top_logprobs is not None:
            logprobs = chat_logprobs(self.names, completion.logprobs or [], self._top_logprobs)
        choice = {
            "index": i,
            "message": message,
            "logprobs": logprobs,
            "finish_reason": reason,
            "stop_reason": completion.stop_reason,
        }
        if self._wants_ids:
            choice |= {"token_ids": completion.token_ids, "prompt_token_ids": output.prompt_token_ids}
        if self._prompt_top is not None:
            choice["prompt_logprobs"] = prompt_logprobs(self.names, output, self._prompt_top)
        return choice


def _without_index(call: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in call.items() if name != "index"}

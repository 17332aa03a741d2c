"""What /v1/messages answers: blocks of text, thoughts and calls, and the events that tell how they come to be."""

import json
from typing import Any

from nanoinfer.outputs import CompletionOutput, RequestOutput, StreamPiece
from nanoinfer.requests.tool_calls.cursor import Arguments, CallBegin, CallEnd, Part, Text
from nanoinfer.server.errors import ApiError
from nanoinfer.server.formatter import ResponseFormatter, dumps, reason_in
from nanoinfer.server.generation import Generation, GenerationRequest
from nanoinfer.server.messages.protocol import MessagesRequest
from nanoinfer.server.replies import Replies
from nanoinfer.server.service import Service

DIRECT = {"caller": {"type": "direct"}}  # the model itself
NOTHING = dict.fromkeys(("cache_creation", "inference_geo", "server_tool_use", "service_tier"))  # of usage
CONTEXT_IS_FULL = "model_context_window_exceeded"  # Anthropic's words
# Of a block: how it begins, and the type of its deltas and the field with their text.
TEXT = {"type": "text", "text": "", "citations": []}, "text_delta", "text"
THINKING = {"type": "thinking", "thinking": "", "signature": ""}, "thinking_delta", "thinking"


class MessagesFormatter(ResponseFormatter):
    """One message of blocks. An answer that is not streamed has the same blocks."""

    id_prefix = "msg_"

    def __init__(self, service: Service, body: MessagesRequest, request: GenerationRequest, request_id: str):
        super().__init__(service, request, request_id)
        self._replies = Replies(service, request)
        self._request_id, self._max_tokens, self._has_begun = request_id, body.max_tokens, False
        self._content: list[dict[str, Any]] = []
        self._is_open, self._arguments = False, ""
        self._end: dict[str, Any] = dict.fromkeys(("stop_reason", "stop_sequence", "stop_details", "container"))

    def choice_events(self, i: int, piece: StreamPiece) -> str:
        begin = "" if self._has_begun else _event("message_start", message=self._message(piece.cached_tokens, 0))
        self._has_begun = True
        return begin + self._read(piece)

    def whole(self, generation: Generation, outputs: list[RequestOutput]) -> dict[str, Any]:
        ((_, completion),) = self.completions(outputs)
        self._read(completion)
        return self._message(generation.cached_tokens, generation.output_tokens * self.request.copies)

    def last_events(self, generation: Generation, error: ApiError | None) -> str:
        if error is not None:
            return f"event: error\ndata: {dumps(error.anthropic_content(self._request_id))}\n\n"
        usage = self._usage(generation.cached_tokens, generation.output_tokens * self.request.copies)
        return _event("message_delta", delta=self._end, usage=usage) + _event("message_stop")

    def _read(self, part: StreamPiece | CompletionOutput) -> str:
        """Add what a part of the completion brings, and return the events that tell it."""
        events = "".join(map(self._add, self._replies.read(0, part)))
        if (reason := reason_in(part)) is None:
            return events
        end = "tool_use" if self._replies.has_calls(0) else "end_turn"
        if reason == "length":
            end = "max_tokens" if self.request.params.max_new_tokens == self._max_tokens else CONTEXT_IS_FULL
        elif isinstance(part.stop_reason, str):
            end, self._end["stop_sequence"] = "stop_sequence", part.stop_reason
        self._end["stop_reason"] = end
        return events + self._close()

    def _add(self, part: Part) -> str:
        if isinstance(part, CallBegin):
            self._arguments = ""
            return self._open({"type": "tool_use", "id": part.id, "name": part.name, "input": {}, **DIRECT})
        if isinstance(part, Arguments):
            self._arguments += part.text
            return self._delta("input_json_delta", "partial_json", part.text)
        if isinstance(part, CallEnd):
            return self._close()
        (block, kind, field), events = TEXT if isinstance(part, Text) else THINKING, ""
        if not (self._is_open and self._content[-1]["type"] == block["type"]):
            events = self._open(block)
        self._content[-1][field] += part.text
        return events + self._delta(kind, field, part.text)

    def _open(self, block: dict[str, Any]) -> str:
        """Begin a block, and end the one that is open, if one is."""
        before, self._is_open = self._close(), True
        self._content.append({**block})
        return before + _event("content_block_start", index=len(self._content) - 1, content_block=block)

    def _delta(self, kind: str, field: str, text: str) -> str:
        return _event("content_block_delta", index=len(self._content) - 1, delta={"type": kind, field: text})

    def _close(self) -> str:
        if not self._is_open:
            return ""
        self._is_open = False
        if self._content[-1]["type"] == "tool_use":
            self._content[-1]["input"] = _object(self._arguments)
        return _event("content_block_stop", index=len(self._content) - 1)

    def _message(self, cached: int, output: int) -> dict[str, Any]:
        kinds = {"type": "message", "role": "assistant", "model": self.request.model}
        usage = self._usage(cached, output)
        return {"id": self.answer_id, **kinds, "content": self._content, **self._end, "usage": usage}

    def _usage(self, cached: int, output: int) -> dict[str, Any]:
        """Anthropic's: `input_tokens` are those that were computed."""
        return {
            "input_tokens": self.request.prompt_tokens - cached,
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": 0,
            "output_tokens": output,
            "output_tokens_details": {"thinking_tokens": self._replies.reasoning_tokens},
            **NOTHING,
        }


def _event(kind: str, **fields: Any) -> str:
    return f"event: {kind}\ndata: {dumps({'type': kind, **fields})}\n\n"


def _object(arguments: str) -> dict[str, Any]:
    """Arguments as an object, which they must be here. Those that are none, or that JSON cannot say again (1e999), are the
    text in one, so that nothing is lost."""
    try:
        value = json.loads(arguments)
        dumps(value).encode()
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"arguments": arguments}

"""What /v1/responses answers: output items, and the events that tell how they come to be."""

import time
from base64 import b64encode
from collections.abc import Callable
from typing import Any

from nanoinfer.outputs import CompletionOutput, RequestOutput, StreamPiece
from nanoinfer.requests.tool_calls.cursor import Arguments, CallBegin, CallEnd, Part, Text
from nanoinfer.server.errors import ApiError
from nanoinfer.server.formatter import DONE, ResponseFormatter, dumps, reason_in
from nanoinfer.server.generation import Generation, GenerationRequest
from nanoinfer.server.logprobs import chat_logprobs
from nanoinfer.server.replies import Replies
from nanoinfer.server.responses.protocol import ResponsesRequest, functions_of
from nanoinfer.server.responses.store import new_id
from nanoinfer.server.service import Service

Keep = Callable[[dict[str, Any]], None]
ENCRYPTED = "reasoning.encrypted_content"  # in `include`; see `thought_of`
# Fields of a response: those of the request, those of its SamplingParams, and those that are null until they are told.
SAME = ("instructions", "previous_response_id", "max_output_tokens", "user", "safety_identifier", "prompt_cache_key")
SAMPLING = ("temperature", "top_p", "frequency_penalty", "presence_penalty")
UNSET = ("completed_at", "error", "incomplete_details", "usage", "max_tool_calls")
FIXED = {"object": "response", "truncation": "disabled", "background": False, "service_tier": "default"}
TEXTS = {"message": "output_text", "reasoning": "reasoning_text"}  # an item with text → the type of its one part


class ResponsesFormatter(ResponseFormatter):
    """The output of one completion as items: thoughts, text and calls, in the order in which they are written. An answer
    that is not streamed is what the last event of a stream says. `keep` gets a response that has ended by itself."""

    def __init__(
        self, service: Service, body: ResponsesRequest, request: GenerationRequest, request_id: str, keep: Keep | None
    ):
        super().__init__(service, request, request_id)
        self.answer_id = new_id("response")  # a client chooses request ids: it may use one twice
        self._body, self._keep = body, keep
        self._logprobs: list[dict[str, Any]] = []  # of tokens whose text is still held back
        self._output: list[dict[str, Any]] = []
        self._is_open = False  # the last item of the output
        self._number, self._status = 0, "completed"
        self._namespaces = {name: (space, tool.name) for name, (space, tool) in functions_of(body)}
        self._replies = Replies(service, request)

    def choice_events(self, i: int, piece: StreamPiece) -> str:
        begin = ""
        if not self._number:
            response = self._response("in_progress")
            begin = self._event("created", response=response) + self._event("in_progress", response=response)
        return begin + self._read(piece)

    def whole(self, generation: Generation, outputs: list[RequestOutput]) -> dict[str, Any]:
        ((_, completion),) = self.completions(outputs)
        self._read(completion)
        return self._finished(generation)

    def last_events(self, generation: Generation, error: ApiError | None) -> str:
        if error is None:
            response = self._finished(generation)
            return self._event(response["status"], response=response) + DONE
        if self._is_open:
            self._output[-1]["status"] = "incomplete"
        code = "invalid_prompt" if error.status < 500 else "server_error"
        told = {"error": {"code": code, "message": error.message}, "usage": self.usage(generation)}
        return self._event("failed", response=self._response("failed", **told)) + DONE

    def _read(self, part: StreamPiece | CompletionOutput) -> str:
        """Add what a part of the completion brings, and return the events that tell it."""
        if self.top_logprobs is not None and part.logprobs:
            of_text = [entry for entry in part.logprobs if self.names[next(iter(entry))].is_text]
            self._logprobs += chat_logprobs(self.names, of_text, self.top_logprobs)["content"]
        events = "".join(map(self._add, self._replies.read(0, part)))
        if (reason := reason_in(part)) is None:
            return events
        self._status = "incomplete" if reason == "length" else "completed"
        return events + ("" if self._output else self._begin_text("message")) + self._end()

    def _add(self, part: Part) -> str:
        if isinstance(part, CallBegin):
            return self._begin_call(part)
        if isinstance(part, Arguments):
            self._logprobs = []
            self._output[-1]["arguments"] += part.text
            return self._event_of_item("function_call_arguments.delta", delta=part.text)
        if isinstance(part, CallEnd):
            return self._end(part.is_whole)
        kind, events = "message" if isinstance(part, Text) else "reasoning", ""
        if not (self._is_open and self._output[-1]["type"] == kind):
            events = self._end() + self._begin_text(kind)
        content, logprobs = self._output[-1]["content"][0], {"logprobs": self._logprobs} if kind == "message" else {}
        self._logprobs = []
        content["text"] += part.text
        for name, entries in logprobs.items():
            content[name] += entries
        return events + self._event_of_item(f"{TEXTS[kind]}.delta", content_index=0, delta=part.text, **logprobs)

    def _begin_text(self, kind: str) -> str:
        is_message = kind == "message"
        part = {"type": TEXTS[kind], "text": "", **({"annotations": [], "logprobs": []} if is_message else {})}
        more: dict[str, Any] = {"role": "assistant"} if is_message else {"summary": []}
        events = self._begin(kind, **more, content=[])
        self._output[-1]["content"].append(part)
        return events + self._event_of_item("content_part.added", content_index=0, part=part)

    def _begin_call(self, call: CallBegin) -> str:
        namespace, name = self._namespaces.get(call.name, (None, call.name))
        more = {} if namespace is None else {"namespace": namespace}
        return self._end() + self._begin("function_call", call_id=call.id, name=name, **more, arguments="")

    def _begin(self, kind: str, **fields: Any) -> str:
        self._output.append({"type": kind, "id": new_id(kind), "status": "in_progress", **fields})
        self._is_open = True
        return self._event("output_item.added", output_index=len(self._output) - 1, item=self._output[-1])

    def _end(self, is_whole: bool = True) -> str:
        """End the item that is open, if one is. `is_whole`: it is no call that was cut off."""
        if not self._is_open:
            return ""
        item, self._is_open = self._output[-1], False
        item["status"] = self._status if is_whole else "incomplete"
        if item["type"] == "function_call":
            events = self._event_of_item("function_call_arguments.done", arguments=item["arguments"], name=item["name"])
        else:
            (part,) = item["content"]
            more = {"logprobs": part["logprobs"]} if "logprobs" in part else {}
            events = self._event_of_item(f"{part['type']}.done", content_index=0, text=part["text"], **more)
            events += self._event_of_item("content_part.done", content_index=0, part=part)
            if item["type"] == "reasoning" and ENCRYPTED in (self._body.include or ()):
                item["encrypted_content"] = b64encode(part["text"].encode()).decode()
        return events + self._event("output_item.done", output_index=len(self._output) - 1, item=item)

    def _event_of_item(self, kind: str, **fields: Any) -> str:
        return self._event(kind, item_id=self._output[-1]["id"], output_index=len(self._output) - 1, **fields)

    def _event(self, kind: str, **fields: Any) -> str:
        number, self._number = self._number, self._number + 1
        name = f"response.{kind}"
        return f"event: {name}\ndata: {dumps({'type': name, 'sequence_number': number, **fields})}\n\n"

    def _finished(self, generation: Generation) -> dict[str, Any]:
        details = {"reason": "max_output_tokens"} if self._status == "incomplete" else None
        ended = int(time.time()) if details is None else None
        told = {"completed_at": ended, "incomplete_details": details, "usage": self.usage(generation)}
        response = self._response(self._status, **told)
        if self._keep is not None:
            self._keep(response)
        return response

    def usage(self, generation: Generation) -> dict[str, Any]:
        usage = super().usage(generation)
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": self._replies.reasoning_tokens},
            "total_tokens": usage["total_tokens"],
        }

    def _response(self, status: str, **told: Any) -> dict[str, Any]:
        """The response now: what was asked for, and the output so far."""
        body, params = self._body, self.request.params
        return {
            "id": self.answer_id,
            "created_at": self.created,
            "model": self.request.model,
            "status": status,
            "output": self._output,
            **{name: getattr(body, name) for name in SAME},
            **{name: getattr(params, name) for name in SAMPLING},
            **dict.fromkeys(UNSET),
            **FIXED,
            "tools": [tool.model_dump() for tool in body.tools or ()],
            "tool_choice": "auto" if body.tool_choice is None else body.tool_choice,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "text": {"format": _text_format(body)},
            "reasoning": {"effort": body.reasoning and body.reasoning.effort, "summary": None},
            "top_logprobs": body.top_logprobs or 0,
            "metadata": body.metadata or {},
            "store": self._keep is not None,
            **told,
        }


def _text_format(body: ResponsesRequest) -> dict[str, Any]:
    if body.text is None or body.text.format is None:
        return {"type": "text"}
    given = body.text.format.model_dump(by_alias=True, exclude_none=True)
    more = {"name": "schema", "description": None, "strict": True} if given["type"] == "json_schema" else {}
    return {**more, **given}

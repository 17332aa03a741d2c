"""What /v1/responses answers: output items, and the events that tell how they come to be."""

import time
from base64 import b64encode
from collections.abc import Callable
from typing import Any

from nanoinfer.outputs import CompletionOutput, RequestOutput, StreamPiece
from nanoinfer.requests.tool_calls.cursor import Arguments, CallBegin, Part, Reasoning, Text
from nanoinfer.server.errors import ApiError
from nanoinfer.server.formatter import DONE, ResponseFormatter, dumps, reason_in, usage_of
from nanoinfer.server.generation import Generation, GenerationRequest
from nanoinfer.server.logprobs import chat_logprobs
from nanoinfer.server.protocol import ChatRequest
from nanoinfer.server.replies import Replies
from nanoinfer.server.request_parsing import Tools
from nanoinfer.server.responses.protocol import ResponsesRequest
from nanoinfer.server.responses.translation import functions_of, new_id
from nanoinfer.server.service import Service

Keep = Callable[[dict[str, Any]], None]
ENCRYPTED = "reasoning.encrypted_content"  # in `include`; see `thought_of`
NOT_REASONED = {"completion_tokens_details": {"reasoning_tokens": 0}}
# Fields of a response: those of the request, those of its SamplingParams, and those that are null until they are told.
SAME = ("instructions", "previous_response_id", "max_output_tokens", "user", "safety_identifier", "prompt_cache_key")
SAMPLING = ("temperature", "top_p", "frequency_penalty", "presence_penalty")
UNSET = ("completed_at", "error", "incomplete_details", "usage", "max_tool_calls")
TEXTS = {"message": "output_text", "reasoning": "reasoning_text"}  # an item with text → the type of its one part


class ResponsesFormatter(ResponseFormatter):
    """The output of one completion as items: thoughts, text and calls, in the order in which they are written. An answer
    that is not streamed is what the last event of a stream says. `keep` gets a response that has ended by itself."""

    def __init__(
        self,
        service: Service,
        body: ResponsesRequest,
        chat: ChatRequest,
        request: GenerationRequest,
        tools: Tools,
        keep: Keep | None,
    ):
        super().__init__(new_id("response"), request, service.token_names, include_usage=True)
        self._body, self._keep = body, keep
        self._top_logprobs = (chat.top_logprobs or 0) if chat.logprobs else None
        self._logprobs: list[dict[str, Any]] = []  # of tokens whose text is still held back
        self._output: list[dict[str, Any]] = []
        self._is_open = False  # the last item of the output
        self._number, self._reason = 0, ""
        self._namespaces = {name: (space, tool.name) for name, (space, tool) in functions_of(body)}
        self._replies = Replies(service, chat, request, tools)
        self._parser = self._replies.parser()

    def choice_events(self, i: int, piece: StreamPiece) -> str:
        reason = reason_in(piece)
        if not (piece.text or piece.token_ids or reason):
            return ""
        begin = ""
        if not self._number:
            response = self._response("in_progress")
            begin = self._event("created", response=response) + self._event("in_progress", response=response)
        return begin + self._read(piece, reason)

    def whole(self, generation: Generation, outputs: list[RequestOutput]) -> dict[str, Any]:
        ((completion,),) = [output.outputs for output in outputs]
        self._read(completion, reason_in(completion))
        return self._finished(generation)

    def last_events(self, generation: Generation, error: ApiError | None) -> str:
        if error is None:
            response = self._finished(generation)
            return self._event(response["status"], response=response) + DONE
        if self._is_open:
            self._output[-1]["status"] = "incomplete"
        code = "invalid_prompt" if error.status < 500 else "server_error"
        told = {"error": {"code": code, "message": error.message}, "usage": self._usage(generation)}
        return self._event("failed", response=self._response("failed", **told)) + DONE

    def _read(self, part: StreamPiece | CompletionOutput, reason: str | None) -> str:
        """Add what a part of the completion brings, and return the events that tell it."""
        self._replies.note(0, part.token_ids, reason is not None)
        if self._top_logprobs is not None and part.logprobs:
            of_text = [entry for entry in part.logprobs if self.names[next(iter(entry))].is_text]
            self._logprobs += chat_logprobs(self.names, of_text, self._top_logprobs)["content"]
        events = "".join([self._add(each) for each in self._parser.read(part.text, reason is not None)])
        if reason is not None:
            self._reason = reason
            if not self._output:
                events += self._begin_text("message")
            events += self._end(self._status)
        return events

    def _add(self, part: Part) -> str:
        if isinstance(part, Text):
            return self._add_text("message", part.text)
        if isinstance(part, Reasoning):
            return self._add_text("reasoning", part.text)
        if isinstance(part, CallBegin):
            return self._begin_call(part.name, part.id)
        if isinstance(part, Arguments):
            return self._add_arguments(part.text)
        return self._end("completed" if part.is_whole else "incomplete")

    @property
    def _status(self) -> str:
        return "incomplete" if self._reason == "length" else "completed"

    def _begin_text(self, kind: str) -> str:
        item = {"type": kind, "id": new_id(kind), "status": "in_progress"}
        more: dict[str, Any] = {"role": "assistant"} if kind == "message" else {"summary": []}
        events = self._begin({**item, **more, "content": []})
        self._output[-1]["content"].append(self._part(kind))
        return events + self._event_of_item("content_part.added", content_index=0, part=self._part(kind))

    def _part(self, kind: str) -> dict[str, Any]:
        more: dict[str, Any] = {"annotations": [], "logprobs": []} if kind == "message" else {}
        return {"type": TEXTS[kind], "text": "", **more}

    def _add_text(self, kind: str, text: str) -> str:
        if not text:
            return ""
        events = ""
        if not (self._is_open and self._output[-1]["type"] == kind):
            events = self._end("completed") + self._begin_text(kind)
        part, logprobs = self._output[-1]["content"][0], self._logprobs
        self._logprobs = []
        part["text"] += text
        more: dict[str, Any] = {}
        if kind == "message":
            part["logprobs"] += logprobs
            more["logprobs"] = logprobs
        return events + self._event_of_item(f"{TEXTS[kind]}.delta", content_index=0, delta=text, **more)

    def _begin_call(self, name: str, call_id: str) -> str:
        item = {"type": "function_call", "id": new_id("function_call"), "status": "in_progress"}
        namespace, name = self._namespaces.get(name, (None, name))
        more = {} if namespace is None else {"namespace": namespace}
        return self._end("completed") + self._begin({**item, "call_id": call_id, "name": name, **more, "arguments": ""})

    def _add_arguments(self, text: str) -> str:
        self._logprobs = []
        self._output[-1]["arguments"] += text
        return self._event_of_item("function_call_arguments.delta", delta=text) if text else ""

    def _begin(self, item: dict[str, Any]) -> str:
        self._output.append(item)
        self._is_open = True
        return self._event("output_item.added", output_index=len(self._output) - 1, item=item)

    def _end(self, status: str) -> str:
        """End the item that is open, if one is."""
        if not self._is_open:
            return ""
        item, self._is_open = self._output[-1], False
        item["status"] = status
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
        told = {"completed_at": ended, "incomplete_details": details, "usage": self._usage(generation)}
        response = self._response(self._status, **told)
        if self._keep is not None:
            self._keep(response)
        return response

    def _usage(self, generation: Generation) -> dict[str, Any]:
        usage = {**NOT_REASONED, **usage_of(generation), **self._replies.usage()}
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": usage["completion_tokens_details"],
            "total_tokens": usage["total_tokens"],
        }

    def _response(self, status: str, **told: Any) -> dict[str, Any]:
        """The response now: what was asked for, and the output so far."""
        body, params = self._body, self.request.params
        return {
            "id": self.answer_id,
            "object": "response",
            "created_at": self.created,
            "model": self.request.model,
            "status": status,
            "output": self._output,
            **{name: getattr(body, name) for name in SAME},
            **{name: getattr(params, name) for name in SAMPLING},
            **dict.fromkeys(UNSET),
            "tools": [tool.model_dump() for tool in body.tools or ()],
            "tool_choice": "auto" if body.tool_choice is None else body.tool_choice,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "text": {"format": _text_format(body)},
            "reasoning": {"effort": body.reasoning and body.reasoning.effort, "summary": None},
            "top_logprobs": body.top_logprobs or 0,
            "metadata": body.metadata or {},
            "store": self._keep is not None,
            "truncation": "disabled",
            "background": False,
            "service_tier": "default",
            **told,
        }


def _text_format(body: ResponsesRequest) -> dict[str, Any]:
    if body.text is None or body.text.format is None:
        return {"type": "text"}
    given = body.text.format.model_dump(by_alias=True, exclude_none=True)
    more = {"name": "schema", "description": None, "strict": True} if given["type"] == "json_schema" else {}
    return {**more, **given}

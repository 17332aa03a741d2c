"""What /v1/chat/completions answers."""

from typing import Any

from nanoinfer.outputs import CompletionOutput, RequestOutput, StreamPiece
from nanoinfer.requests.tool_calls.cursor import Arguments, CallBegin, Part, Reasoning, Text
from nanoinfer.requests.tool_calls.reply import ReplyParser
from nanoinfer.server.formatter import ResponseFormatter, reason_in
from nanoinfer.server.generation import Generation, GenerationRequest
from nanoinfer.server.logprobs import chat_logprobs, prompt_logprobs
from nanoinfer.server.protocol import ChatRequest
from nanoinfer.server.replies import Replies, Reply
from nanoinfer.server.request_parsing import Tools
from nanoinfer.server.service import Service


class ChatFormatter(ResponseFormatter):
    """Choices with a `message`, or with `delta`s: the first carries the role, the one with the finish reason is empty."""

    stream_object, whole_object = "chat.completion.chunk", "chat.completion"

    def __init__(self, service: Service, body: ChatRequest, request: GenerationRequest, answer_id: str, tools: Tools):
        super().__init__(answer_id, request, service.token_names, body.include_usage)
        self._top_logprobs = (body.top_logprobs or 0) if body.logprobs else None
        self._wants_ids, self._prompt_top = bool(body.return_token_ids), body.prompt_logprobs
        self._tools, self._replies = tools, Replies(service, body, request, tools)
        self._parsers: dict[int, ReplyParser] = {}  # by choice
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
        (delta, *deltas), more = self._deltas(i, piece.text, reason is not None) or [{}], dict[str, Any]()
        at_end = dict[str, Any]()
        if self._top_logprobs is not None and (entries := piece.logprobs):
            # Clients that show text token by token take each token of a delta with content for text: the end is none.
            of_text = entries if reason is None or self.names[next(iter(entries[-1]))].is_text else entries[:-1]
            if of_text:
                more["logprobs"] = chat_logprobs(self.names, of_text, self._top_logprobs)
            if of_text is not entries:
                at_end["logprobs"] = chat_logprobs(self.names, entries[-1:], self._top_logprobs)
        if self._wants_ids:
            more["token_ids"] = piece.token_ids
        if delta or any(more.values()):
            events += self._delta(i, delta, **more)
        events += "".join([self._delta(i, each) for each in deltas])
        self._replies.note(i, piece.token_ids, reason is not None)
        if reason is not None:
            ended = {"finish_reason": self._reason(piece, self._parsers.get(i)), "stop_reason": piece.stop_reason}
            events += self._delta(i, {}, **ended, **at_end)
        return events

    def _delta(self, i: int, delta: dict[str, Any], **more: Any) -> str:
        nothing = {"logprobs": None, "finish_reason": None, "stop_reason": None}
        return self.event({"index": i, "delta": delta, **nothing, **more})

    def _deltas(self, i: int, text: str, last: bool) -> list[dict[str, Any]]:
        """What a piece of a choice's text adds. A delta has one kind of thing: not all clients look for more."""
        if not self._replies.may_have_parts:
            return [{"content": text}] if text else []
        parser = self._parsers.setdefault(i, self._replies.parser())
        deltas = list[dict[str, Any]]()
        for delta in filter(None, map(_delta_of, parser.read(text, last))):
            before = deltas[-1].get("tool_calls", ()) if deltas else ()
            if before and delta.get("tool_calls", [{}])[0].get("index") == before[-1]["index"]:
                before[-1]["function"]["arguments"] += delta["tool_calls"][0]["function"]["arguments"]
            else:
                deltas.append(delta)
        return deltas

    def usage(self, generation: Generation) -> dict[str, Any]:
        return super().usage(generation) | self._replies.usage()

    def _reason(self, part: StreamPiece | CompletionOutput, reply: Reply | ReplyParser | None) -> str:
        """OpenAI's: a call that the client has named is no reason of its own, nor one that a stop string has cut off."""
        reason = str(part.finish_reason)
        if reason != "stop" or reply is None or not reply.calls or self._tools.is_named:
            return reason
        return "tool_calls" if reply.is_whole or not isinstance(part.stop_reason, str) else reason

    def choice(self, i: int, output: RequestOutput, k: int) -> dict[str, Any]:
        completion = output.outputs[k]
        reply = self._replies.whole(completion.text)
        self._replies.note(i, completion.token_ids, has_ended=True)
        reason = self._reason(completion, reply)
        message: dict[str, Any] = {"role": "assistant", "content": reply.text, "refusal": None}
        if reply.reasoning:
            message |= _reasoning(reply.reasoning)
        if reply.calls:
            calls = [_call(call.id, call.name, call.arguments) for call in reply.calls]
            message |= {"content": reply.text or None, "tool_calls": calls}
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


def _delta_of(part: Part) -> dict[str, Any] | None:
    if isinstance(part, Text):
        return {"content": part.text}
    if isinstance(part, Reasoning):
        return _reasoning(part.text)
    if isinstance(part, CallBegin):
        return {"tool_calls": [{"index": part.index, **_call(part.id, part.name, "")}]}
    if isinstance(part, Arguments):
        return {"tool_calls": [{"index": part.index, "function": {"arguments": part.text}}]}
    return None


def _reasoning(text: str) -> dict[str, Any]:
    """Under vLLM's present name, and the one that most clients read."""
    return {"reasoning": text, "reasoning_content": text}


def _call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}

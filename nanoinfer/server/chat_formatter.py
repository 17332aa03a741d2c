"""What /v1/chat/completions answers."""

from typing import Any

from nanoinfer.outputs import CompletionOutput, RequestOutput, StreamPiece
from nanoinfer.requests.tool_calls.cursor import Arguments, CallBegin, Part, Reasoning, Text
from nanoinfer.server.formatter import ChoicesFormatter, reason_in
from nanoinfer.server.generation import Generation, GenerationRequest
from nanoinfer.server.logprobs import chat_logprobs
from nanoinfer.server.protocol import ChatRequest
from nanoinfer.server.replies import Replies
from nanoinfer.server.service import Service


class ChatFormatter(ChoicesFormatter):
    """Choices with a `message`, or with `delta`s: the first carries the role, the one with the finish reason is empty."""

    id_prefix, stream_object, whole_object = "chatcmpl-", "chat.completion.chunk", "chat.completion"

    def __init__(self, service: Service, body: ChatRequest, request: GenerationRequest, request_id: str):
        super().__init__(service, body, request, request_id)
        self._replies = Replies(service, request)
        self._begun: set[int] = set()

    def choice_events(self, i: int, piece: StreamPiece) -> str:
        events, reason = "", reason_in(piece)
        if i not in self._begun:
            self._begun.add(i)
            role = {"role": "assistant", "content": None if self.request.tools.must_call else "", "refusal": None}
            ids = {"prompt_token_ids": list(self.request.prompts[0])} if self.wants_ids else {}
            events = self._delta(i, role, **ids)
        # A delta has one kind of thing: not all clients look for more.
        delta, *deltas = [*filter(None, map(_delta_of, self._replies.read(i, piece)))] or [{}]
        more, at_end = dict[str, Any](), dict[str, Any]()
        if self.top_logprobs is not None and (entries := piece.logprobs):
            # Clients that show text token by token take each token of a delta with content for text: the end is none.
            of_text = entries if reason is None or self.names[next(iter(entries[-1]))].is_text else entries[:-1]
            if of_text:
                more["logprobs"] = chat_logprobs(self.names, of_text, self.top_logprobs)
            if of_text is not entries:
                at_end["logprobs"] = chat_logprobs(self.names, entries[-1:], self.top_logprobs)
        if self.wants_ids:
            more["token_ids"] = piece.token_ids
        if delta or any(more.values()):
            events += self._delta(i, delta, **more)
        events += "".join([self._delta(i, each) for each in deltas])
        if reason is not None:
            ended = {"finish_reason": self._reason(i, piece), "stop_reason": piece.stop_reason}
            events += self._delta(i, {}, **ended, **at_end)
        return events

    def _delta(self, i: int, delta: dict[str, Any], **more: Any) -> str:
        nothing = {"logprobs": None, "finish_reason": None, "stop_reason": None}
        return self.event({"index": i, "delta": delta, **nothing, **more})

    def usage(self, generation: Generation) -> dict[str, Any]:
        details = {"completion_tokens_details": {"reasoning_tokens": self._replies.reasoning_tokens}}
        return super().usage(generation) | (details if self._replies.reasoning is not None else {})

    def _reason(self, i: int, part: StreamPiece | CompletionOutput) -> str:
        """OpenAI's: a call that the client has named is no reason of its own, nor one that a stop string has cut off."""
        reason = str(part.finish_reason)
        if reason != "stop" or not self._replies.has_calls(i) or self.request.tools.is_named:
            return reason
        return "tool_calls" if self._replies.is_whole(i) or not isinstance(part.stop_reason, str) else reason

    def choice(self, i: int, output: RequestOutput, completion: CompletionOutput) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": "", "refusal": None}
        for part in self._replies.read(i, completion):
            if isinstance(part, CallBegin):
                message.setdefault("tool_calls", []).append(_call(part))
            elif isinstance(part, Arguments):
                message["tool_calls"][part.index]["function"]["arguments"] += part.text
            else:
                message |= {name: message.get(name, "") + text for name, text in _delta_of(part).items()}
        if "tool_calls" in message:
            message["content"] = message["content"] or None
        reason, logprobs = self._reason(i, completion), None
        if self.top_logprobs is not None:
            logprobs = chat_logprobs(self.names, completion.logprobs or [], self.top_logprobs)
        ended = {"logprobs": logprobs, "finish_reason": reason, "stop_reason": completion.stop_reason}
        choice: dict[str, Any] = {"index": i, "message": message, **ended}
        if self.wants_ids:
            choice |= {"token_ids": completion.token_ids, "prompt_token_ids": output.prompt_token_ids}
        return choice


def _delta_of(part: Part) -> dict[str, Any]:
    if isinstance(part, CallBegin):
        return {"tool_calls": [{"index": part.index, **_call(part)}]}
    if isinstance(part, Arguments):
        return {"tool_calls": [{"index": part.index, "function": {"arguments": part.text}}]}
    if isinstance(part, Reasoning):  # under vLLM's present name, and the one that most clients read
        return {"reasoning": part.text, "reasoning_content": part.text}
    return {"content": part.text} if isinstance(part, Text) else {}


def _call(part: CallBegin) -> dict[str, Any]:
    return {"id": part.id, "type": "function", "function": {"name": part.name, "arguments": ""}}

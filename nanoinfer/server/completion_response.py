"""What /v1/completions answers."""

from typing import Any

from nanoinfer.requests.outputs import CompletionOutput, RequestOutput
from nanoinfer.requests.stream_pieces import StreamPiece
from nanoinfer.server.bodies import CompletionRequest
from nanoinfer.server.generation import Wish
from nanoinfer.server.logprobs import Entry, Offsets, TokenNames, completion_logprobs, entries_of_prompt, vllm_entries
from nanoinfer.server.service import Service
from nanoinfer.server.shape import Shape, reason_in


class CompletionShape(Shape):
    """Choices with `text`. With `echo`, a choice begins with its prompt; with `max_tokens=0` it is only the prompt."""

    stream_object = whole_object = "text_completion"

    def __init__(self, service: Service, body: CompletionRequest, wish: Wish, answer_id: str):
        super().__init__(answer_id, wish, service.token_names, body.include_usage)
        self._wants_logprobs, self._wants_ids = body.logprobs is not None, bool(body.return_token_ids)
        self._top, self._prompt_top = body.logprobs or 0, body.prompt_logprobs
        self.hide_output = body.max_tokens == 0
        prompts = [body.prompt] if wish.names == ["prompt"] else body.prompt
        self._echo = [_prompt_text(service, each) for each in prompts] if body.echo else None
        self._offsets: dict[int, Offsets] = {}
        self._prompt_entries: dict[int, list[Entry | None]] = {}  # by prompt: what its first completion brings, for all
        self._early: dict[int, list[tuple[int, StreamPiece]]] = {}  # by prompt: pieces that came before that

    def piece(self, index: int, piece: StreamPiece) -> str:
        if self._echo is None or not self._wants_logprobs:
            return super().piece(index, piece)
        prompt = index // self.wish.params.n
        if piece.prompt_logprobs is not None:
            self._prompt_entries[prompt] = entries_of_prompt(
                self.wish.prompts[prompt], piece.prompt_logprobs, piece.prompt_top_logprobs, self._top
            )
        pieces = [*self._early.pop(prompt, ()), (index, piece)]
        if prompt not in self._prompt_entries:
            self._early[prompt] = pieces
            return ""
        return "".join(super(CompletionShape, self).piece(*each) for each in sorted(pieces, key=lambda each: each[0]))

    def choice_events(self, i: int, piece: StreamPiece) -> str:
        choice = self._choice(i, piece)
        return "" if choice is None else self.event(choice)

    def choice(self, i: int, output: RequestOutput, k: int) -> dict[str, Any]:
        if self._echo is not None and self._wants_logprobs:
            self._prompt_entries[i // self.wish.choices_per_prompt] = _of_prompt(output, self._top)
        choice = self._choice(i, output.outputs[k])
        assert choice is not None, "it has ended"
        if self._prompt_top is not None:
            choice["prompt_logprobs"] = prompt_logprobs(self.names, output, self._prompt_top)
        return choice

    def _choice(self, i: int, part: StreamPiece | CompletionOutput) -> dict[str, Any] | None:
        """Choice `i`, as far as it is told now. None if there is nothing to tell."""
        prompt, begins, reason = i // self.wish.choices_per_prompt, i not in self._offsets, reason_in(part)
        text, ids, entries, stop_reason = (
            part.text,
            part.token_ids,
            list[Entry | None](part.logprobs or ()),
            part.stop_reason,
        )
        if self.hide_output:
            text, ids, entries, stop_reason, reason = "", [], [], None, reason and "length"
        if not (text or ids or reason):
            return None
        tokens = ids
        if begins:
            self._offsets[i] = self._offsets_of(prompt)
            if self._echo is not None:
                text = self._echo[prompt] + text
                if self._wants_logprobs:
                    tokens = [*self.wish.prompts[prompt], *ids]
                    entries = [*self._prompt_entries[prompt], *entries]
        choice = {"index": i, "text": text, "logprobs": None, "finish_reason": reason, "stop_reason": stop_reason}
        if self._wants_logprobs:
            choice["logprobs"] = completion_logprobs(self.names, self._offsets[i], tokens, entries, self._top)
        if self._wants_ids:
            choice |= {"token_ids": ids, "prompt_token_ids": list(self.wish.prompts[prompt]) if begins else None}
        return choice

    def _offsets_of(self, prompt: int) -> Offsets:
        """For the tokens of a choice for prompt number `prompt`."""
        shows_special = not self.wish.params.skip_special_tokens
        if self._echo is None or not self._wants_logprobs:
            return Offsets(self.names, shows_special)
        return Offsets(self.names, shows_special, self.wish.prompts[prompt], self._echo[prompt])


def prompt_logprobs(names: TokenNames, output: RequestOutput, count: int) -> list[dict[str, Any] | None]:
    """vLLM's `prompt_logprobs` of a choice, with `count` likeliest tokens per position."""
    return vllm_entries(names, _of_prompt(output, count))


def _of_prompt(output: RequestOutput, count: int) -> list[Entry | None]:
    return entries_of_prompt(output.prompt_token_ids, output.prompt_logprobs, output.prompt_top_logprobs, count)


def _prompt_text(service: Service, prompt: str | list[int]) -> str:
    if isinstance(prompt, str):
        return prompt
    return service.tokenizer.decode(prompt)

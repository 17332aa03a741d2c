"""What callers get back: a RequestOutput (the state of a request after a step) or a StreamPiece (newly generated text)."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NoReturn

import numpy as np

from nanoinfer.requests.aliases import COMPLETION_ATTRIBUTES, OUTPUT_ATTRIBUTES
from nanoinfer.requests.keywords import attribute_answers
from nanoinfer.requests.req import FinishReason, Req
from nanoinfer.requests.request import Prompt


@attribute_answers(COMPLETION_ATTRIBUTES)
@dataclass(frozen=True, eq=False)
class CompletionOutput:
    """The state of one completion after a step; later steps do not change it.

    - `text`: all text so far; `token_ids`: all tokens sampled so far, including an end token.
    - `finish_reason`: None while it is running, else `stop`, `length`, `abort` or `timeout`.
    - `stop_reason`: the stop string or the one of `stop_token_ids` that ended it; None otherwise, even if one of the
      model's end tokens did.
    - `logprobs`: one dict {token id: log-probability} per sampled token, the sampled one first; None unless requested.
    - `drafted_tokens`: how many drafts passes have checked; `accepted_tokens`: how many of them are in `token_ids`.
    """

    index: int
    text: str
    finish_reason: FinishReason | None
    stop_reason: int | str | None
    cached_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    _buffer: np.ndarray = field(repr=False)  # the request's tokens, to which the request only appends
    _start: int = field(repr=False)
    _end: int = field(repr=False)
    _logprobs: list[dict[int, float]] | None = field(repr=False)

    @cached_property
    def token_ids(self) -> list[int]:
        return self._buffer[self._start : self._end].tolist()

    @cached_property
    def logprobs(self) -> list[dict[int, float]] | None:
        return None if self._logprobs is None else [dict(entry) for entry in self._logprobs[: self._end - self._start]]

    @property
    def cumulative_logprob(self) -> float | None:
        """The sum of the sampled tokens' log-probabilities; None unless `logprobs` were requested."""
        return None if self.logprobs is None else sum(next(iter(entry.values())) for entry in self.logprobs if entry)


@attribute_answers(OUTPUT_ATTRIBUTES)
@dataclass(frozen=True)
class RequestOutput:
    """A request after a step. `text`, `token_ids`, `finish_reason`, `stop_reason` and `logprobs` are those of the first of
    its `outputs`.

    - `prompt`: the prompt's text; None if token ids were given, as `chat` does.
    - `prompt_tokens`: how many tokens the prompt has; `cached_tokens`: how many of them had K/V in the radix cache.
    - `prompt_logprobs`: the log-probability of each prompt token given the tokens before it (None for the first token);
      None unless requested. `prompt_top_logprobs`: at each prompt token's position, the likeliest tokens, {token id:
      log-probability} (None for the first token); None unless requested.
    - `ttft`: seconds from arrival to the first token; `latency`: seconds from arrival to the end. Each is None until then.
    - `error`: the exception of the step that ended the request; None if no step failed.
    """

    request_id: int
    outputs: list[CompletionOutput]
    ttft: float | None
    latency: float | None
    error: BaseException | None = field(default=None, repr=False)
    prompt: str | None = field(default=None, repr=False)
    _prompt_ids: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64), repr=False, compare=False)
    _prompt_logprobs: list[float | None] | None = field(default=None, repr=False)
    _prompt_top_logprobs: list[dict[int, float] | None] | None = field(default=None, repr=False)

    @cached_property
    def prompt_token_ids(self) -> list[int]:
        return self._prompt_ids.tolist()

    @cached_property
    def prompt_logprobs(self) -> list[float | None] | None:
        return None if self._prompt_logprobs is None else list(self._prompt_logprobs)

    @cached_property
    def prompt_top_logprobs(self) -> list[dict[int, float] | None] | None:
        found = self._prompt_top_logprobs
        return None if found is None else [None if entry is None else dict(entry) for entry in found]

    @property
    def text(self) -> str:
        return self.outputs[0].text

    @property
    def token_ids(self) -> list[int]:
        return self.outputs[0].token_ids

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.outputs[0].finish_reason

    @property
    def stop_reason(self) -> int | str | None:
        return self.outputs[0].stop_reason

    @property
    def logprobs(self) -> list[dict[int, float]] | None:
        return self.outputs[0].logprobs

    @property
    def finished(self) -> bool:
        """True when all completions have ended."""
        return all(output.finish_reason is not None for output in self.outputs)

    @property
    def prompt_tokens(self) -> int:
        return len(self._prompt_ids)

    @property
    def cached_tokens(self) -> int:
        return self.outputs[0].cached_tokens

    @property
    def drafted_tokens(self) -> int:
        """Of all completions together, as `accepted_tokens`."""
        return sum(output.drafted_tokens for output in self.outputs)

    @property
    def accepted_tokens(self) -> int:
        return sum(output.accepted_tokens for output in self.outputs)

    def __getitem__(self, name: object) -> NoReturn:
        raise TypeError(f"an output has attributes: use output.{name}")


@dataclass(frozen=True)
class StreamPiece:
    """The text and tokens since the last piece. The texts of all pieces of a completion (`index`) add up to its whole text.

    `finish_reason` and `stop_reason` (as in CompletionOutput) are set on a completion's last piece. Its text may be empty.
    `logprobs`: one entry per token, as in CompletionOutput; None unless requested. `prompt_logprobs` and
    `prompt_top_logprobs`, as in RequestOutput: on the first piece of the first completion, if requested.
    """

    request_id: int
    index: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None
    prompt_tokens: int
    cached_tokens: int
    stop_reason: int | str | None = None
    logprobs: list[dict[int, float]] | None = None
    prompt_logprobs: list[float | None] | None = None
    prompt_top_logprobs: list[dict[int, float] | None] | None = None

    def __add__(self, following: "StreamPiece") -> "StreamPiece":
        """Join this piece and the one that follows it, from the same completion, into one."""
        return replace(
            following,
            text=self.text + following.text,
            token_ids=self.token_ids + following.token_ids,
            logprobs=None if self.logprobs is None else self.logprobs + (following.logprobs or []),
            prompt_logprobs=self.prompt_logprobs,
            prompt_top_logprobs=self.prompt_top_logprobs,
        )


class RequestGroup:
    """A request as its caller sees it: one prompt and `params.n` completions, one Req per completion."""

    def __init__(self, request_id: int, reqs: list[Req], timeout_s: float | None = None, prompt: Prompt | None = None):
        self.request_id, self.reqs, self.timeout_s = request_id, reqs, timeout_s
        self._prompt = prompt if isinstance(prompt, str) else None
        self._prompt_ids = reqs[0].token_ids[: reqs[0].prompt_len]

    @property
    def finished(self) -> bool:
        return all(req.finished for req in self.reqs)

    def output(self) -> RequestOutput:
        """The request's current state."""
        reqs, arrival = self.reqs, self.reqs[0].arrival_time
        first_tokens = [req.first_token_time for req in reqs if req.first_token_time]
        ends = [req.finish_time for req in reqs if req.finish_reason is not None]
        errors = [req.error for req in reqs if req.error is not None]
        return RequestOutput(
            self.request_id,
            [_completion(i, req) for i, req in enumerate(reqs)],
            min(first_tokens) - arrival if first_tokens else None,
            max(ends) - arrival if len(ends) == len(reqs) else None,
            errors[0] if errors else None,
            self._prompt,
            self._prompt_ids,
            reqs[0].prompt_logprobs,
            reqs[0].prompt_top_logprobs,
        )


# What a step says of a request: its output or, while it goes on, only its group, of which an output can be made.
Update = RequestOutput | RequestGroup


def made(update: Update) -> RequestOutput:
    """The output, which is made now if it was not."""
    return update.output() if isinstance(update, RequestGroup) else update


class PieceReader:
    """Reads a request's output piece by piece: each read returns what is new since the last one."""

    def __init__(self, group: RequestGroup):
        self._group = group
        self._read = [(req.given_chars, req.given_tokens) for req in group.reqs]  # what is read already, per completion
        self._ended = [False] * len(group.reqs)

    @property
    def done(self) -> bool:
        """True when everything has been read: each completion has ended, and its last piece was read."""
        return all(self._ended)

    def read(self) -> Iterator[StreamPiece]:
        """One piece for each completion that has new tokens or has ended since the last read."""
        for i, req in enumerate(self._group.reqs):
            chars, tokens = self._read[i]
            if self._ended[i] or (req.num_output_tokens == tokens and not req.finished):
                continue
            self._read[i], self._ended[i] = (len(req.text), req.num_output_tokens), req.finished
            yield StreamPiece(
                self._group.request_id,
                i,
                req.text[chars:],
                req.token_ids[req.prompt_len + tokens : req.num_tokens].tolist(),
                req.finish_reason,
                req.prompt_len,
                req.cached_tokens,
                req.stop_reason,
                None if req.params.logprobs is None else req.output_logprobs[tokens : req.num_output_tokens],
                req.prompt_logprobs if chars == tokens == 0 else None,
                req.prompt_top_logprobs if chars == tokens == 0 else None,
            )


def _completion(index: int, req: Req) -> CompletionOutput:
    logprobs = None if req.params.logprobs is None else req.output_logprobs
    counts = req.cached_tokens, req.drafted_tokens, req.accepted_tokens
    tokens = req.token_ids, req.prompt_len, req.num_tokens
    return CompletionOutput(index, req.text, req.finish_reason, req.stop_reason, *counts, *tokens, logprobs)

"""What callers get back: RequestOutput, the state of a request after a step, and StreamPiece, what is new in it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

import numpy as np


class FinishReason(StrEnum):
    """Why a request ended. Each reason equals its plain string."""

    STOP = "stop"  # by a stop token, an end token or a stop string
    LENGTH = "length"  # max_new_tokens was reached
    ABORT = "abort"  # by its caller, or by an error in a step
    TIMEOUT = "timeout"  # timeout_s has passed


def tokens_by_tier(cached_tokens: int, fetched: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """Where the first `cached_tokens` tokens were, of which those at the positions `fetched` came from tiers."""
    below = {tier: min(end, cached_tokens) - min(start, cached_tokens) for tier, (start, end) in fetched.items()}
    return {"device": cached_tokens - sum(below.values()), "host": 0, "disk": 0} | below


@dataclass(frozen=True, eq=False)
class CompletionOutput:
    """The state of one completion after a step; later steps do not change it.

    - `text`: all text so far; `token_ids`: all tokens sampled so far, including an end token.
    - `finish_reason`: None while it is running, else `stop`, `length`, `abort` or `timeout`.
    - `stop_reason`: the stop string or the one of `stop_token_ids` that ended it; None otherwise, even if one of the
      model's end tokens did.
    - `logprobs`: one dict {token id: log-probability} per sampled token, the sampled one first; None unless requested.
    - `drafted_tokens`: how many drafts passes have checked; `accepted_tokens`: how many of them are in `token_ids`.
    - `cached_tokens`: how many prompt tokens had K/V in the radix cache or in a tier below it.
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
    _fetched: dict[str, tuple[int, int]] = field(default_factory=dict, repr=False)  # see `Req.fetched`

    @property
    def cached_tokens_by_tier(self) -> dict[str, int]:
        """Where the `cached_tokens` were: in the pool's tree (`device`), in host memory (`host`) or in files (`disk`)."""
        return tokens_by_tier(self.cached_tokens, self._fetched)

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


@dataclass(frozen=True)
class RequestOutput:
    """A request after a step. `text`, `token_ids`, `finish_reason`, `stop_reason` and `logprobs` are those of the first of
    its `outputs`.

    - `prompt`: the prompt's text; None if token ids were given, as `chat` does.
    - `prompt_tokens`: how many tokens the prompt has; `cached_tokens`: how many of them had K/V in the radix cache or in a
      tier below it; `cached_tokens_by_tier`: how many in which, {"device": n, "host": n, "disk": n}.
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
    prompt_logprobs: list[float | None] | None = field(default=None, repr=False)
    prompt_top_logprobs: list[dict[int, float] | None] | None = field(default=None, repr=False)

    @cached_property
    def prompt_token_ids(self) -> list[int]:
        return self._prompt_ids.tolist()

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
    def cached_tokens_by_tier(self) -> dict[str, int]:
        return self.outputs[0].cached_tokens_by_tier

    @property
    def drafted_tokens(self) -> int:
        """Of all completions together, as `accepted_tokens`."""
        return sum(output.drafted_tokens for output in self.outputs)

    @property
    def accepted_tokens(self) -> int:
        return sum(output.accepted_tokens for output in self.outputs)


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

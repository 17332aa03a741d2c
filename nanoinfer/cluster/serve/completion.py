"""Completion: what the door knows of one completion of a call, so that any replica can go on with it."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from nanoinfer.cluster.serve.messages import Ended
from nanoinfer.requests.outputs import CompletionOutput
from nanoinfer.requests.req import FinishReason
from nanoinfer.requests.request import Request
from nanoinfer.requests.stream_pieces import StreamPiece


class Completion:
    """`request`: as the first replica gets it, with n=1 and a seed. `sent`: what the client has got, or will get."""

    def __init__(self, index: int, request: Request):
        self.index, self.request = index, request
        self.token_ids: list[int] = []
        self.text = ""
        self.logprobs: list[dict[int, float]] = []
        self.prompt_logprobs: list[float | None] | None = None
        self.prompt_top_logprobs: list[dict[int, float] | None] | None = None
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self.cached_tokens: int | None = None  # where it began
        self.drafted_tokens = self.accepted_tokens = 0
        self.error: Exception | None = None
        self.ended = False

    def rest(self, timeout_s: float | None) -> Request:
        """The request for what is missing. Prompt log-probabilities are not asked for again once they are there."""
        params, given = self.request.params, tuple(self.token_ids)
        if given and params.prompt_logprobs:
            params = replace(params, prompt_logprobs=False, prompt_top_logprobs=0)
        return replace(self.request, params=params, output_ids=given, timeout_s=timeout_s)

    def add(self, piece: StreamPiece) -> StreamPiece:
        """Take a piece of a replica; returns it as the client gets it."""
        if self.cached_tokens is None:
            self.cached_tokens = piece.cached_tokens
        self.token_ids += piece.token_ids
        self.text += piece.text
        self.logprobs += piece.logprobs or ()
        self.prompt_logprobs = self.prompt_logprobs or piece.prompt_logprobs
        self.prompt_top_logprobs = self.prompt_top_logprobs or piece.prompt_top_logprobs
        self.finish_reason, self.stop_reason = piece.finish_reason, piece.stop_reason
        return replace(piece, index=self.index, cached_tokens=self.cached_tokens)

    def end(self, ended: Ended) -> None:
        """It is over."""
        self.drafted_tokens += ended.drafted_tokens
        self.accepted_tokens += ended.accepted_tokens
        self.error, self.ended = ended.error, True

    def lose(self) -> None:
        """Its replica is gone. If its last piece has come, all of it is there: only its counts of drafts are lost."""
        self.ended = self.finish_reason is not None

    def cut(self, reason: FinishReason, request_id: int, prompt_tokens: int) -> StreamPiece:
        """End it from outside; returns its last piece."""
        self.finish_reason, self.ended = reason, True
        logprobs: list[dict[int, float]] | None = None if self.request.params.logprobs is None else []
        cached = self.cached_tokens or 0
        return StreamPiece(request_id, self.index, "", [], reason, prompt_tokens, cached, None, logprobs)

    def output(self) -> CompletionOutput:
        """Its state."""
        logprobs = None if self.request.params.logprobs is None else self.logprobs
        counts = self.cached_tokens or 0, self.drafted_tokens, self.accepted_tokens
        tokens: Sequence[int] = self.token_ids
        buffer = np.array(tokens, dtype=np.int64)
        return CompletionOutput(
            self.index, self.text, self.finish_reason, self.stop_reason, *counts, buffer, 0, len(tokens), logprobs
        )

"""StreamPiece: newly generated text, and the PieceReader that reads a request's output piece by piece."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from nanoinfer.requests.req import FinishReason
from nanoinfer.requests.request_group import RequestGroup


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

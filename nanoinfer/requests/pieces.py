"""PieceReader: what a stream gives, piece by piece, of a request that goes on."""

from collections.abc import Iterator

from nanoinfer.outputs import StreamPiece
from nanoinfer.requests.request_group import RequestGroup


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

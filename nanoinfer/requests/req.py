"""Req: the state of one request, from arrival to its last token; and DraftView, as it will be if drafts are accepted."""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch

from nanoinfer.errors import NoTokenAllowedError
from nanoinfer.outputs import FinishReason
from nanoinfer.requests.request import AdapterKey
from nanoinfer.requests.tokenizer import IncrementalDetokenizer
from nanoinfer.sampling_params import SamplingParams

NO_TOKEN = -1  # in place of a token id: there was none to choose

# A tensor of its own in each request would be freed by whoever holds the request last. In a thread that is alive while
# Python exits, that aborts the process.
NO_SLOTS = torch.empty(0, dtype=torch.int32)


class Req:
    """One request, and where its K/V is.

        token_ids   |<------ prompt ------>|<--- output --->|
        slots       |<- the tree's ->|<- the request's ->|        in req_to_token[req_pool_idx]

    Row `req_pool_idx` of the ReqToTokenPool has `allocated_len` slots, in whole pages. The first `tree_len` belong to the
    radix tree (the request holds a lock on `last_node`), the rest to the request. The first `kv_len` slots are filled:
    one for every token but the newest, whose K/V is computed by the pass that reads it. There are fewer while part of the
    prompt is not computed yet. A request that is waiting, paused or retracted has no row and no slots, but keeps its
    tokens and everything else below.
    """

    def __init__(
        self,
        request_id: int,
        prompt_ids: np.ndarray,
        params: SamplingParams,
        stop_token_ids: frozenset[int] = frozenset(),
        seed: int = 0,
        extra_key: Hashable = None,
        detokenizer: IncrementalDetokenizer | None = None,
        adapter: Any = None,
        matcher: Any = None,
    ):
        self.request_id, self.params, self.seed = request_id, params, seed
        self.adapter = adapter  # an Adapter, or None for the base model
        self.extra_key = extra_key if adapter is None else AdapterKey(adapter.id, extra_key, adapter.name)
        self.stop_token_ids = stop_token_ids
        self.detokenizer = detokenizer
        self.matcher = matcher  # a grammars.Matcher, which has accepted all output tokens; None without a grammar
        self.prompt_len = self.num_tokens = len(prompt_ids)
        self.token_ids = np.empty(self.prompt_len + params.max_new_tokens, dtype=np.int64)
        self.token_ids[: self.prompt_len] = prompt_ids

        self.req_pool_idx: int | None = None
        self.prefix_indices = NO_SLOTS  # found in the tree at admission
        self.prefix_len = self.tree_len = self.allocated_len = self.kv_len = 0
        self.last_node: Any = None  # the node of the radix tree that it holds a lock on
        self.chunk_end = 0  # the position at which the current EXTEND pass stops computing
        self.ticket = 0  # its number in the order of arrival
        self.num_admissions = self.num_retractions = 0

        self.finish_reason: FinishReason | None = None
        self.error: BaseException | None = None  # what ended it, if something went wrong
        self.cached_tokens = 0
        self.fetched: dict[str, tuple[int, int]] = {}  # of these, by tier: the positions that came from it
        self.drafts = 0  # how many of its tokens are drafts: only an DraftView has any
        self.drafted_tokens = self.accepted_tokens = 0  # drafts that passes have checked, and those that were right
        self.text = ""
        self.given_chars = self.given_tokens = 0  # how much of its output it arrived with (see request_builder.py)
        self.output_logprobs: list[dict[int, float]] = []
        # When all are known: each prompt token's log-probability given those before it, and the likeliest tokens at its
        # position; None at the first.
        self.prompt_logprobs: list[float | None] | None = None
        self.prompt_top_logprobs: list[dict[int, float] | None] | None = None
        self._known_logprobs: list[float | None] = []
        self._known_top_logprobs: list[dict[int, float] | None] = []
        self.arrival_time = self.first_token_time = self.finish_time = 0.0  # in seconds of the engine's clock

    @property
    def num_output_tokens(self) -> int:
        return self.num_tokens - self.prompt_len

    @property
    def output_ids(self) -> list[int]:
        return self.token_ids[self.prompt_len : self.num_tokens].tolist()

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def stop_reason(self) -> int | str | None:
        """The stop string or the one of `stop_token_ids` that ended it. None for any other end, even by an end token."""
        if self.finish_reason is not FinishReason.STOP:
            return None
        if self.detokenizer is not None and self.detokenizer.stopped:
            return self.detokenizer.stop_found
        last = int(self.token_ids[self.num_tokens - 1])
        return last if last in self.params.stop_token_ids else None

    @property
    def reusable_tokens(self) -> np.ndarray:
        """The tokens that a prefix match may cover: all but the last, which must be computed to get logits.

        While prompt log-probabilities are being collected, only the tokens whose logits are no longer needed.
        """
        if self.wants_prompt_logprobs:
            return self.token_ids[: max(len(self._known_logprobs) - 1, 0)]
        return self.token_ids[: self.num_tokens - 1]

    @property
    def wants_prompt_logprobs(self) -> bool:
        """True when prompt log-probabilities were asked for and are not all known yet."""
        return self.params.prompt_logprobs and self.prompt_logprobs is None

    def add_prompt_logprobs(
        self,
        start: int,
        logprobs: Sequence[float],
        next_logprob: float | None,
        likeliest: Sequence[dict[int, float]] | None = None,
    ) -> None:
        """Add the results of a pass over the prompt's tokens from position `start` on.

        `logprobs`: one per token of the pass. The first is ignored: only the pass before it could compute it.
        `next_logprob`: that of the token after the pass's last; None at the prompt's end. `likeliest`: what to keep beside
        them, for each of these tokens but the first; None if nothing is. Known entries stay as they are, so a retracted
        request may compute them again.
        """
        known = len(self._known_logprobs) - start
        self._known_logprobs += [None, *logprobs[1:], *([] if next_logprob is None else [next_logprob])][known:]
        if likeliest is not None:
            self._known_top_logprobs += [None, *likeliest][known:]
        if len(self._known_logprobs) == self.prompt_len:
            self.prompt_logprobs, self.prompt_top_logprobs = self._known_logprobs, self._known_top_logprobs or None

    @property
    def max_kv_len(self) -> int:
        """How many slots it can fill at most. The last token that it may sample never needs a slot."""
        return self.prompt_len + self.params.max_new_tokens - 1

    def append(self, token_id: int) -> None:
        """Append one sampled token and its text, and end the request if the token does.

        If a stop condition is met by the last allowed token, the reason is `stop`, not `length`. With NO_TOKEN nothing is
        appended: the request ends. It also ends if its tokenizer fails, which concerns no other request.
        """
        if token_id == NO_TOKEN:
            self._end_without_token()
            return
        self.token_ids[self.num_tokens] = token_id
        self.num_tokens += 1
        may_stop = self.num_output_tokens >= self.params.min_new_tokens
        stopped = may_stop and token_id in self.stop_token_ids
        if self.detokenizer is not None:
            try:
                self.text += self.detokenizer.add(token_id, may_stop, stopped)
            except Exception as error:
                self.end(FinishReason.ABORT, error)
                return
            stopped = stopped or self.detokenizer.stopped
        if self.matcher is not None and not self.matcher.accept(token_id):
            self._end_without_token()
            return
        stopped = stopped or (self.matcher is not None and self.matcher.must_stop)
        if stopped or self.num_output_tokens == self.params.max_new_tokens:
            self.end(FinishReason.STOP if stopped else FinishReason.LENGTH)

    def _end_without_token(self) -> None:
        """End the request because it has no next token. That is an end like any other if its output is complete."""
        if self.matcher is not None and self.matcher.is_complete:
            self.end(FinishReason.STOP)
            return
        why = "its grammar and its other parameters leave no token to choose"
        if self.matcher is not None and self.matcher.error:
            why = f"its grammar cannot be followed any further: {self.matcher.error}"
        self.end(FinishReason.ABORT, NoTokenAllowedError(f"request {self.request_id}: {why}"))

    def end(self, reason: FinishReason, error: BaseException | None = None) -> None:
        """End the request, and release the text that was held back because of what might have followed. `error`: what ended
        it. If the tokenizer fails at this text, that is an error as well."""
        self.finish_reason, self.error = reason, error
        if self.detokenizer is not None:
            try:
                self.text += self.detokenizer.flush()
            except Exception as flush_error:
                self.finish_reason = reason if error is not None else FinishReason.ABORT
                self.error = error or flush_error


class DraftView:
    """A view of `req` with `drafts` more tokens: those that are in its `token_ids` behind its own. Everything else is the
    request's, so that what chooses a token (random number, penalties, minimum length) is what it would be then."""

    __slots__ = ("_req", "drafts", "num_output_tokens", "num_tokens")

    def __init__(self, req: Req, drafts: int):
        self._req, self.drafts = req, drafts
        self.num_tokens = req.num_tokens + drafts
        self.num_output_tokens = req.num_output_tokens + drafts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._req, name)


def adjusts_logits(req: Req | DraftView) -> bool:
    """True when some processor has to change this request's logits now."""
    return req.params.adjusts_logits or req.matcher is not None or req.num_output_tokens < req.params.min_new_tokens

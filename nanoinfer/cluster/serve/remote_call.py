"""RemoteCall: one request of a client, from the ingress to a replica, and on to another one if that dies. Completion:
what the ingress knows of one completion of it, so that any replica can go on with it."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np

from nanoinfer.cluster.serve.protocol import Accepted, Answer, Call, Ended, News, Refused
from nanoinfer.engine.async_stream import Delivery
from nanoinfer.errors import EngineClosedError, QueueFullError, ReplicaLostError
from nanoinfer.outputs import CompletionOutput, FinishReason, RequestOutput, StreamPiece
from nanoinfer.requests.request import Request
from nanoinfer.requests.seeds import derived_seed

PAUSE_S = 0.2  # before another try, when no replica could take a call


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
        buffer = np.array(self.token_ids, dtype=np.int64)
        return CompletionOutput(
            self.index, self.text, self.finish_reason, self.stop_reason, *counts, buffer, 0, len(buffer), logprobs
        )


class LostError(Exception):
    """A replica has died, or says nothing any more, or ends: the call goes on at another one."""


class RemoteCall:
    """`run` brings the request to its end, whatever happens to replicas, and puts what is generated into `delivery`.

    Its tokens are those that one engine alone would give: each completion is sent with a seed, and when it moves, with the
    tokens that it has (see `requests/request_builder.py`). It never waits without a limit: a replica that says nothing for
    `silence_s` has lost it, it looks for a replica for `replica_timeout_s` at most, and moves `most_moves` times at most.
    `replicas`: a ServeReplicas, which sends it.
    `accepted` is set when the first replica has queued it; QueueFullError or InvalidRequestError if none does.
    """

    def __init__(
        self,
        request_id: int,
        request: Request,
        ingress: str,
        replicas: Any,
        delivery: Delivery,
        limits: tuple[float, float, int],
    ):
        self.request_id, self.call_id, self._ingress = request_id, f"{ingress}-{request_id}", ingress
        self._replicas, self._delivery = replicas, delivery
        self._silence_s, self._replica_timeout_s, self._most_moves = limits
        self._completions = [Completion(i, each) for i, each in enumerate(one_each(request))]
        self._prompt, self._timeout_s = request.prompt, request.timeout_s
        self._started = self._looking_since = time.monotonic()
        self._first_token_s: float | None = None
        self._is_computed = False  # True once the replica where it is has computed its prompt
        self._avoid: frozenset[str] = frozenset()
        self.replica = ""  # where it is, or was last
        self.moves = 0
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Until the end, or until the task is cancelled: then what is missing counts as aborted."""
        error: Exception | None = None
        try:
            while any(not each.ended for each in self._completions):
                await self._attempt()
        except asyncio.CancelledError:
            pass
        except Exception as raised:
            error = raised
        finally:
            self._replicas.fleet.note_end(self.call_id)
        if not self.accepted.done():
            if error is None:
                self.accepted.cancel()
            else:
                self.accepted.set_exception(error)
            return
        self._finish(error)

    # --- one replica --------------------------------------------------------------------------------------------------

    async def _attempt(self) -> None:
        open_ones = [each for each in self._completions if not each.ended]
        self._is_computed = False
        timeout_s = self._time_left()
        if timeout_s is not None and timeout_s <= 0:
            self._cut(open_ones, FinishReason.TIMEOUT)
            return
        requests = [each.rest(timeout_s) for each in open_ones]
        call = Call(self.call_id, self._ingress, requests, self._avoid)
        answers = self._replicas.generate(call)
        try:
            if await self._wait_for_acceptance(answers):
                await self._read(answers, open_ones)
        except LostError as lost:
            for each in open_ones:
                each.lose()
            if any(not each.ended for each in open_ones):
                self._move(lost)
                await asyncio.sleep(0 if len(self._avoid) < 2 else PAUSE_S)
        finally:
            answers.cancel()
            ended = all(each.ended for each in self._completions)
            self._replicas.fleet.note_end(
                self.call_id, sum(len(each.token_ids) for each in self._completions) if ended else None
            )

    async def _wait_for_acceptance(self, answers: AsyncIterator[Answer]) -> bool:
        """False if the replica refuses the call, and another one may take it."""
        timeout_s = self._replica_timeout_s  # for Serve to find a replica that can be reached
        while True:
            answer = await self._next(answers, timeout_s)
            timeout_s = self._silence_s
            if isinstance(answer, Accepted):
                self.replica, self._looking_since = answer.replica, inf
                if not self.accepted.done():
                    self.accepted.set_result(None)
                self._delivery.repeat_hold()
                return True
            if isinstance(answer, Refused):
                await self._refused(answer)
                return False

    async def _refused(self, refused: Refused) -> None:
        """Try another replica, if that may help; raise the error otherwise."""
        error, tried = refused.error, refused.replica in self._avoid
        if not isinstance(error, QueueFullError | EngineClosedError):
            raise error
        if tried and isinstance(error, QueueFullError) and not self.accepted.done():
            raise error  # all are full
        if time.monotonic() - self._looking_since > self._replica_timeout_s and tried:
            raise ReplicaLostError(f"no replica takes the request: {error}") from error
        self._avoid |= {refused.replica}
        await asyncio.sleep(PAUSE_S if tried else 0)

    async def _read(self, answers: AsyncIterator[Answer], completions: list[Completion]) -> None:
        """Hand on what comes until these completions have ended."""
        held: dict[int, StreamPiece] = {}  # last pieces of completions that were aborted: by whom, their ends tell
        while any(not each.ended for each in completions):
            news = await self._next(answers, self._silence_s)
            if not isinstance(news, News):
                raise LostError(f"{self.replica} answers {type(news).__name__} to a call that it has")
            for piece in news.pieces:
                if piece.finish_reason is FinishReason.ABORT:
                    held[piece.index] = piece
                else:
                    self._put(completions[piece.index], piece)
            for ended in news.ends:
                completion = completions[ended.index]
                if ended.error is None and completion.finish_reason is not None:
                    completion.end(ended)
                elif ended.error is None or isinstance(ended.error, EngineClosedError):
                    raise LostError(f"{self.replica} has ended its engine")
                else:
                    if ended.index in held:
                        self._put(completion, held[ended.index])
                    completion.end(ended)

    async def _next(self, answers: AsyncIterator[Answer], wait_s: float) -> Answer:
        """The next answer. LostError when there is none, for whatever reason."""
        try:
            return await asyncio.wait_for(anext(answers), wait_s)
        except TimeoutError:
            raise LostError(f"{self.replica or 'no replica'} has said nothing for {wait_s:g} seconds") from None
        except StopAsyncIteration:
            raise LostError(f"{self.replica} has dropped the call") from None
        except Exception as error:  # what Ray and Serve raise when an actor, its node or its objects are gone
            raise LostError(f"{self.replica or 'a replica'}: {type(error).__name__}: {error}") from error

    def _move(self, lost: LostError) -> None:
        self.moves += 1
        self._looking_since = min(self._looking_since, time.monotonic())
        sent_to = self._replicas.fleet.note_end(self.call_id)  # also one that has never answered
        self._avoid |= {self.replica, sent_to or ""} - {""}
        if self.moves > self._most_moves:
            raise ReplicaLostError(f"the request was lost {self.moves} times, at last because {lost}") from lost

    # --- to the client ------------------------------------------------------------------------------------------------

    def _put(self, completion: Completion, piece: StreamPiece) -> None:
        if piece.token_ids and self._first_token_s is None:
            self._first_token_s = time.monotonic() - self._started
        if piece.token_ids and not self._is_computed:
            self._is_computed = True
            self._replicas.fleet.note_first_token(self.call_id, piece.cached_tokens)
        self._delivery.put(replace(completion.add(piece), request_id=self.request_id))

    def _cut(self, completions: list[Completion], reason: FinishReason) -> None:
        for each in completions:
            self._delivery.put(each.cut(reason, self.request_id, len(self._prompt)))
        if not self.accepted.done():
            self.accepted.set_result(None)

    def _finish(self, error: Exception | None) -> None:
        if error is not None and isinstance(error, EngineClosedError):
            self._delivery.put(error)
            return
        self._cut([each for each in self._completions if not each.ended], FinishReason.ABORT)
        outputs = [each.output() for each in self._completions]
        errors = [each.error for each in self._completions if each.error is not None]
        first = self._completions[0]
        self._delivery.put(
            RequestOutput(
                self.request_id,
                outputs,
                self._first_token_s,
                time.monotonic() - self._started,
                error or (errors[0] if errors else None),
                None,
                np.asarray(self._prompt, dtype=np.int64),
                first.prompt_logprobs,
                first.prompt_top_logprobs,
            )
        )

    def _time_left(self) -> float | None:
        return None if self._timeout_s is None else self._timeout_s - (time.monotonic() - self._started)


def one_each(request: Request) -> list[Request]:
    """A request with n completions as n requests with one each, which give the same tokens. It must have a seed if it
    samples."""
    params = request.params
    if params.n == 1:
        return [request]
    assert params.seed is not None
    return [
        replace(
            request,
            params=replace(
                params,
                n=1,
                seed=derived_seed(params.seed, i),
                prompt_logprobs=params.prompt_logprobs and i == 0,
                prompt_top_logprobs=params.prompt_top_logprobs if i == 0 else 0,
            ),
        )
        for i in range(params.n)
    ]

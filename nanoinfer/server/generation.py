"""GenerationRequest: what a client asks to be generated, as the engine needs it. Generation: its streams, meanwhile."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import Histogram

from nanoinfer.engine.async_stream import AsyncStream
from nanoinfer.outputs import RequestOutput, StreamPiece
from nanoinfer.requests.request import Request
from nanoinfer.sampling_params import SamplingParams


@dataclass(frozen=True)
class Tools:
    """`definitions`: for the template; None if the model may call nothing. `must_call`: name → JSON schema of the arguments
    of each function of which it must call one; None if it need not call any. `is_named`: the client has named that one.
    `parallel`: whether there may be several calls. `schemas`: as `must_call`, of all functions."""

    definitions: list[dict[str, Any]] | None = None
    must_call: Mapping[str, Any] | None = None
    is_named: bool = False
    parallel: bool = True
    schemas: Mapping[str, Any] | None = None


@dataclass(frozen=True, eq=False)
class GenerationRequest:
    """`requests`: one per prompt; their parameters differ only in `max_new_tokens`. `copies`: how often each completion is
    answered. At temperature 0 all `n` completions are equal, so the engine computes one, and `copies` is n. `field_names`:
    what the client calls fields of SamplingParams, where that differs. `tools`: what the model may call. `hidden_tokens`:
    special tokens that the text has, for tags among them, and that the client does not see."""

    requests: Sequence[Request]
    model: str
    copies: int
    field_names: Mapping[str, str]
    tools: Tools = Tools()
    hidden_tokens: Sequence[str] = ()

    @property
    def prompts(self) -> list[Any]:
        """Their token ids."""
        return [request.prompt for request in self.requests]

    @property
    def params(self) -> SamplingParams:
        """Those of the first prompt."""
        return self.requests[0].params

    @property
    def grammar_field(self) -> str | None:
        """What the client calls the field with its grammar; None if it has none."""
        field = self.params.grammar_field
        return field and self.field_names.get(field, field)

    @property
    def choices_per_prompt(self) -> int:
        """How many choices the answer has per prompt."""
        return self.params.n * self.copies

    @property
    def prompt_tokens(self) -> int:
        """The tokens of all prompts."""
        return sum(map(len, self.prompts))


class Generation:
    """One stream per prompt, each with `request.params.n` completions.

    `closed_by`: what ended it early: "disconnect", "shutdown" or "error"; None if nothing did. `failed`: its answer is an
    error, whatever was raised. `ends`: how its completions ended. `output_tokens`, `cached_tokens`: of what the engine
    computed, without copies. `token_gaps` gets the seconds between two tokens of a completion. `started`,
    `first_token_at`: seconds of `time.perf_counter`.
    """

    def __init__(self, request: GenerationRequest, streams: list[AsyncStream], token_gaps: Histogram):
        self.request, self.streams = request, streams
        self.closed_by: str | None = None
        self.failed = False
        self.output_tokens, self.ends = 0, list[str]()
        self.started = time.perf_counter()
        self.first_token_at: float | None = None
        self._token_gaps = token_gaps
        self._cached = [0] * len(streams)
        self._last_at: dict[int, float] = {}
        self._unfinished = set(range(len(streams)))
        self._reads: dict[int, asyncio.Task[list[StreamPiece]]] = {}  # of several streams

    @property
    def cached_tokens(self) -> int:
        """Of all prompts."""
        return sum(self._cached)

    async def read(self) -> list[tuple[int, StreamPiece]]:
        """What is new, as (index, piece): completion `index % n` of prompt `index // n`. Empty at the end.

        A completion that was ended early has `finish_reason` abort or timeout. StepFailedError as in `AsyncStream.read`.
        """
        if len(self.streams) == 1:
            pieces = [(piece.index, piece) for piece in await self.streams[0].read()]
        else:
            pieces = await self._read_several()
        if pieces:
            self._count(pieces)
        return pieces

    @property
    def client_left(self) -> bool:
        """True when it was ended because nobody reads the answer."""
        return self.closed_by == "disconnect"

    async def outputs(self) -> list[RequestOutput]:
        """Read to the end. One output per prompt, in order. Errors as in `read`."""
        while await self.read():
            pass
        return [stream.final for stream in self.streams if stream.final is not None]

    def close(self, reason: str) -> None:
        """Abort what has not ended yet. What is there can still be read."""
        if self.closed_by is None and any(stream.final is None for stream in self.streams):
            self.closed_by = reason
        for stream in self.streams:
            stream.close()

    def stop_reading(self) -> None:
        """Nobody reads it any more."""
        if self._reads:  # gathered, so that nobody misses an exception of those that have ended
            asyncio.gather(*self._reads.values(), return_exceptions=True).cancel()

    def _count(self, pieces: list[tuple[int, StreamPiece]]) -> None:
        now, n = time.perf_counter(), self.request.params.n
        for index, piece in pieces:
            tokens = len(piece.token_ids)
            self.output_tokens += tokens
            if tokens:
                if self.first_token_at is None:
                    self.first_token_at = now
                if (before := self._last_at.get(index)) is not None:
                    for _ in range(tokens):
                        self._token_gaps.observe((now - before) / tokens)
                self._last_at[index] = now
            if index % n == 0:
                self._cached[index // n] = piece.cached_tokens
            if piece.finish_reason is not None:
                self.ends.append(piece.finish_reason)

    async def _read_several(self) -> list[tuple[int, StreamPiece]]:
        """What any of several streams has. No more is read than is asked for: the engine must notice a slow client."""
        found = list[tuple[int, StreamPiece]]()
        while self._unfinished and not found:
            for i in self._unfinished - self._reads.keys():
                self._reads[i] = asyncio.create_task(self.streams[i].read())
            await asyncio.wait(self._reads.values(), return_when=asyncio.FIRST_COMPLETED)
            for i in [i for i, read in self._reads.items() if read.done()]:
                pieces = self._reads.pop(i).result()
                found += [(i * self.request.params.n + piece.index, piece) for piece in pieces]
                if not pieces:
                    self._unfinished.remove(i)
        return found

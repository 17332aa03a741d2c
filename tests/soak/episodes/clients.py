"""Episodes of one engine that is used by several clients at once.

Threads make calls of its LLM; others run event loops, in which AsyncEngines are made, used by many tasks, and closed, over
and over; and others abort, pause, look, and try manual steps. In some episodes passes fail. Which requests are made
follows from the seed; how they meet does not, because the operating system decides that.
"""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from nanoinfer import (
    LLM,
    AsyncEngine,
    AsyncStream,
    Engine,
    EngineClosedError,
    QueueFullError,
    StepFailedError,
    StreamPiece,
)
from nanoinfer.requests.request import Request
from tests.helpers.pressure import InjectedError, InjectedPanic, Oracle
from tests.helpers.tiny_llm import Job, check_completion, words
from tests.helpers.waiting import until
from tests.soak.episodes.threads import SECONDS, Crowd, hurry, random_jobs

CALLS = 10  # of a thread
ROUNDS, TASKS = 3, 10  # of an event loop: its AsyncEngines are made anew in each round
CLOSED = (EngineClosedError, QueueFullError)  # what a request of a client that closes may raise


class Visitors(Crowd):
    """The threads around one engine, those that run event loops among them."""

    is_over = False  # True: the LLM has been shut down

    # --- threads -----------------------------------------------------------------------------------------------------

    def call_on_and_on(self, jobs: Sequence[Job]) -> None:
        """Until the LLM is shut down."""
        while True:
            for job in jobs:
                try:
                    self.do([job])
                except EngineClosedError:
                    assert self.is_over
                    return

    def pause_others(self, seed: int, others: int) -> None:
        """Requests of all clients, until only `others` threads like this one are left."""
        rng, engine = np.random.default_rng(seed), self.llm.engine
        while self.is_busy(others) and not self.errors:
            request_ids = sorted(engine.loop.request_ids())
            chosen = [request_id for request_id in request_ids if rng.random() < 0.3]
            try:
                for request_id in chosen:
                    with suppress(ValueError):  # it has ended
                        engine.pause(request_id)
                        self.counts["pauses"] += 1
                time.sleep(float(rng.uniform(0, 0.003)))
            finally:
                for request_id in chosen:
                    with suppress(ValueError):
                        engine.resume(request_id)

    # --- event loops -------------------------------------------------------------------------------------------------

    def run_loop(self, jobs: Sequence[Sequence[Job]], seed: int) -> None:
        """An event loop per round. At its end all tasks have ended, or it is closed with streams that are open."""
        for of_round in jobs:
            seed += 1
            rng = np.random.default_rng(seed)
            if rng.random() < 0.7:
                asyncio.run(asyncio.wait_for(self.round(of_round, rng), SECONDS))
                continue
            loop = asyncio.new_event_loop()
            coroutine = self.leave_open(of_round, rng)
            streams = loop.run_until_complete(asyncio.wait_for(coroutine, SECONDS))
            loop.close()
            self.counts["loops closed"] += 1
            del streams[::2]  # the others nobody reads, but somebody keeps

    async def round(self, jobs: Sequence[Job], rng: np.random.Generator) -> None:
        """One or two AsyncEngines, which are closed while tasks still use them, or when all have ended."""
        clients = [AsyncEngine(self.llm) for _ in range(int(rng.integers(1, 3)))]
        looks = [0]
        if watched := rng.random() < 0.3:
            clients[0].after_step = lambda engine: _look(engine, looks)
        tasks = []
        for job in jobs:
            client = clients[int(rng.integers(len(clients)))]
            tasks.append(asyncio.create_task(self.serve(client, job, int(rng.integers(2**31)))))
            if rng.random() < 0.4:
                await asyncio.sleep(float(rng.uniform(0, 0.003)))
            if rng.random() < 0.2:
                tasks[int(rng.integers(len(tasks)))].cancel()
            if rng.random() < 0.05:
                await asyncio.gather(*[client.shutdown() for client in clients[1:]])
        if rng.random() < 0.6:
            await asyncio.wait(tasks)
        assert not watched or clients[0].after_step is not None, "a look has failed"
        for client in clients:
            await client.shutdown()
            assert client.is_closed
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, asyncio.CancelledError):
                self.counts["cancelled"] += 1
            elif isinstance(result, CLOSED):
                self.counts["refused"] += 1
            elif isinstance(result, StepFailedError):
                self.counts["step failed"] += 1
            elif result is not None:
                raise result
        assert clients[0].after_step is None, "a look is left"
        self.counts["looks"] += looks[0]
        self.counts["rounds"] += 1
        assert self.is_over or not self.llm.engine.is_closed, "an AsyncEngine has shut down what it was made from"

    async def leave_open(self, jobs: Sequence[Job], rng: np.random.Generator) -> list[AsyncStream]:
        """Streams of which some have been read a little."""
        client, streams = AsyncEngine(self.llm), list[AsyncStream]()
        for job in jobs:
            try:
                streams += await client.add_all(_requests(job, rng))
                if rng.random() < 0.5:
                    await anext(streams[-1], None)
            except CLOSED:
                self.counts["refused"] += 1
            except StepFailedError:
                self.counts["step failed"] += 1
        return streams

    async def serve(self, client: AsyncEngine, job: Job, seed: int) -> None:
        """One job through an AsyncEngine, by one of its methods."""
        rng, timeout_s = np.random.default_rng(seed), job.timeout_s
        if "chat" in job.how:
            chat = [{"role": "user", "content": words(job.prompts[0])}]
            if job.how == "chat":
                output = await client.chat(chat, job.params[0], timeout_s=timeout_s)
                for completion, wanted in zip(output.outputs, job.wanted[0], strict=True):
                    cut = self._is_cut(client, job, output.request_id)
                    check_completion(completion.token_ids, completion.text, completion.finish_reason, wanted, cut)
            else:
                pieces = [piece async for piece in client.stream_chat(chat, job.params[0], timeout_s=timeout_s)]
                self._check_pieces(pieces, job.wanted[0], self._is_cut(client, job, pieces[0].request_id))
        elif job.how == "drop":
            await self._leave(client, job, rng)
        else:
            max_unread = int(rng.integers(1, 5)) if rng.random() < 0.5 else None
            streams = await client.add_all(_requests(job, rng), max_unread)
            for stream, wanted in zip(streams, job.wanted, strict=True):
                await self._read_all(client, job, stream, wanted, rng)
        self.counts[f"async {job.how}"] += 1

    async def _read_all(
        self, client: AsyncEngine, job: Job, stream: AsyncStream, wanted: list[list[int]], rng: np.random.Generator
    ) -> None:
        """To the end, slowly or in great pieces; some are paused, resumed or aborted on the way."""
        pieces = list[StreamPiece]()
        is_slow, meddles = rng.random() < 0.2, rng.random() < 0.2
        while new := await stream.read() if rng.random() < 0.5 else [it for it in [await anext(stream, None)] if it]:
            pieces += new
            if is_slow:
                await asyncio.sleep(float(rng.uniform(0, 0.001)))
            if meddles and rng.random() < 0.2:
                await self._meddle(client, stream.request_id, rng)
        self._check_pieces(pieces, wanted, self._is_cut(client, job, stream.request_id))
        final = stream.final
        assert final is not None
        assert final.finished, "the last output is not the last"
        for completion in final.outputs:
            tokens = [token for piece in pieces if piece.index == completion.index for token in piece.token_ids]
            assert completion.token_ids == tokens, "the pieces are not the output"

    async def _meddle(self, client: AsyncEngine, request_id: int, rng: np.random.Generator) -> None:
        try:
            if rng.random() < 0.3:
                self.aborted.add(request_id)
                await client.abort(request_id)
                return
            await client.pause(request_id)
            try:
                self.counts["pauses"] += 1
                await (client.check_integrity() if rng.random() < 0.5 else asyncio.sleep(0))
            finally:
                await client.resume(request_id)
        except (ValueError, EngineClosedError):
            pass  # it has ended, or the client is closed, which ends it

    async def _leave(self, client: AsyncEngine, job: Job, rng: np.random.Generator) -> None:
        """A stream that is left in the middle."""
        prompt, params, tokens, number = job.prompts[0], job.params[0], list[int](), 0
        pieces = client.stream(prompt, params, timeout_s=job.timeout_s)
        async for piece in pieces:
            tokens += piece.token_ids if piece.index == 0 else []
            assert tokens == job.wanted[0][0][: len(tokens)], "a wrong token"
            number += 1
            if number > job.pieces:
                break
        if rng.random() < 0.5:
            await pieces.aclose()  # otherwise garbage collection ends it

    def _is_cut(self, client: AsyncEngine, job: Job, request_id: int) -> bool:
        return job.timeout_s is not None or client.is_closed or self._may_be_cut(request_id)

    def _may_be_cut(self, request_id: int) -> bool:
        return self.is_over or super()._may_be_cut(request_id)


def _requests(job: Job, rng: np.random.Generator) -> list[Request]:
    return [
        Request(words(prompt) if rng.random() < 0.5 else prompt, params, timeout_s=job.timeout_s)
        for prompt, params in zip(job.prompts, job.params, strict=True)
    ]


def _look(engine: Engine, looks: list[int]) -> None:
    engine.check_integrity()
    looks[0] += 1


@contextmanager
def failing(engine: Engine, share: float, seed: int) -> Iterator[None]:
    """A share of the passes fail: before or after the model has computed."""
    rng, runner = np.random.default_rng(seed), engine.model_runner
    forward_batch = runner.forward_batch

    def broken(*args: Any) -> Any:
        chance = rng.random()
        if chance < share / 2:
            raise InjectedError
        result = forward_batch(*args)
        if chance < share:
            raise InjectedPanic
        return result

    runner.forward_batch = broken  # type: ignore[method-assign]
    try:
        yield
    finally:
        runner.forward_batch = forward_batch  # type: ignore[method-assign]


def check_that_threads_end() -> None:
    """Those of engines that nothing refers to."""
    for thread in threading.enumerate():
        if thread.name == "nanoinfer-engine" and thread.ident is not None:  # one interrupted before it began has none
            thread.join(SECONDS)
            assert not thread.is_alive(), "an engine's thread is left"


def run_episode(
    llm: LLM, rng: np.random.Generator, oracle: Oracle, prompts: Sequence[Sequence[int]], max_new_tokens: int
) -> Counter[str]:
    """Some threads, up to two event loops; then the LLM is shut down while they go on, or serves alone."""
    counts: Counter[str] = Counter()
    visitors = Visitors(llm, counts)

    def jobs(*lengths: int) -> list[list[Job]]:
        return random_jobs(rng, oracle, prompts, max_new_tokens, list(lengths))

    loops = [jobs(*[TASKS] * ROUNDS) for _ in range(int(rng.integers(0, 3)))]
    callers = jobs(*[CALLS] * int(rng.integers(1, 4 if loops else 9)))
    meddlers, pausers = int(rng.integers(0, 3)), int(rng.integers(0, 2))
    if share := float(rng.choice([0.0, 0.0, 0.01, 0.1])):  # of passes fail
        visitors.failures = (
            InjectedError,
            InjectedPanic,
            StepFailedError,
        )  # the call that raises it itself, and the others
    with hurry(rng), failing(llm.engine, share, int(rng.integers(2**31))):
        for of_one in callers:
            visitors.start(visitors.do, of_one)
        for of_loop in loops:
            visitors.start(visitors.run_loop, of_loop, int(rng.integers(2**31)))
        for _ in range(meddlers):
            visitors.start(visitors.meddle, int(rng.integers(2**31)), meddlers + pausers)
        for _ in range(pausers):
            visitors.start(visitors.pause_others, int(rng.integers(2**31)), meddlers + pausers)
        visitors.join()
    visitors.check_all_free()
    again = Visitors(llm, counts)
    if rng.random() < 0.5:
        again.do(callers[0][:5])
        again.check_all_free()
    else:
        shut_down_in_the_middle(again, callers, [*loops, []][0], int(rng.integers(2**31)))
    stats = llm.engine.stats()
    counts["steps"] = stats.extend_steps + stats.decode_steps
    return counts


def shut_down_in_the_middle(
    visitors: Visitors, callers: Sequence[Sequence[Job]], of_loop: Sequence[Sequence[Job]], seed: int
) -> None:
    """Every request ends with the beginning of what it would have come to, and so does the engine's thread."""
    llm, loop = visitors.llm, visitors.llm._calls.loop
    for of_one in callers:
        visitors.start(visitors.call_on_and_on, of_one)
    visitors.start(visitors.run_loop, of_loop, seed)
    until(loop.request_ids, "a request")
    visitors.is_over = True
    llm.shutdown()
    visitors.join()
    visitors.counts["shut down in the middle"] += 1
    assert loop._thread is None or not loop._thread.is_alive(), "the engine's thread goes on"
    visitors.check_all_free()

"""AsyncEngine: many coroutines, one engine; nothing is lost when they are cancelled, abandoned or unlucky."""

import asyncio
import gc
import threading
from collections.abc import Iterator

import pytest

from nanoinfer import (
    LLM,
    AsyncEngine,
    Engine,
    EngineClosedError,
    InvalidRequestError,
    QueueFullError,
    SamplingParams,
    StepFailedError,
)
from tests.helpers.async_engines import assert_all_free, following, gated, idle, run
from tests.helpers.engines import V, greedy, make_engine


def _threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "nanoinfer-engine"}


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    """Other tests of the session may still have theirs."""
    before = _threads()
    yield
    assert not _threads() - before


# --- generate, stream, add -------------------------------------------------------------------------------------------


def test_generate_gives_what_the_engine_gives() -> None:
    async def test() -> None:
        engine, _ = gated()
        async with AsyncEngine(engine) as front:
            output = await front.generate([5, 6, 7], greedy(3))
            assert (output.token_ids, output.finish_reason, output.prompt_tokens) == ([8, 9, 10], "length", 3)
            both = await asyncio.gather(front.generate("abc", greedy(2)), front.generate([90], greedy(4)))
            assert [one.token_ids for one in both] == [[100, 101], following(90, 4)]
        assert_all_free(engine)

    run(test)


def test_a_stream_gives_each_token_once_and_its_text_joined_is_the_whole() -> None:
    async def test() -> None:
        engine, _ = gated()
        async with AsyncEngine(engine) as front:
            pieces = [piece async for piece in front.stream("abc", greedy(5))]
            assert "".join(piece.text for piece in pieces) == "defgh"
            assert [token for piece in pieces for token in piece.token_ids] == list(b"defgh")
            assert [piece.finish_reason for piece in pieces] == [None] * (len(pieces) - 1) + ["length"]
        assert_all_free(engine)

    run(test)


def test_an_added_request_runs_whether_or_not_it_is_read_and_is_read_when_one_likes() -> None:
    async def test() -> None:
        engine, _ = gated()
        async with AsyncEngine(engine) as front:
            stream = await front.add("abc", greedy(5))
            await idle(front)
            assert [piece.text async for piece in stream] == list("defgh")
            output = await stream.output()
            assert (output.request_id, output.text) == (stream.request_id, "defgh")
            assert [piece async for piece in stream] == []

    run(test)


def test_completions_of_one_request_come_marked_with_their_index() -> None:
    async def test() -> None:
        engine, _ = gated()
        async with AsyncEngine(engine) as front:
            params = SamplingParams(max_new_tokens=3, n=3, seed=1, temperature=30.0)
            texts = {0: "", 1: "", 2: ""}
            async for piece in front.stream("a", params):
                texts[piece.index] += piece.text
            output = await front.generate("a", params)
            assert [one.text for one in output.outputs] == list(texts.values())

    run(test)


def test_a_request_that_is_refused_raises_where_it_was_asked_for() -> None:
    async def test() -> None:
        engine, _ = gated()
        async with AsyncEngine(engine) as front:
            with pytest.raises(InvalidRequestError, match="prompt 7: is empty"):
                await front.generate("", greedy(), name="prompt 7")
            with pytest.raises(InvalidRequestError, match="timeout_s"):
                await front.add("a", greedy(), timeout_s=-1)
            stream = front.stream([V], greedy())
            with pytest.raises(InvalidRequestError, match="token id"):
                await anext(stream)
        assert_all_free(engine)

    run(test)


def test_a_request_that_finds_the_queue_full_is_refused_and_the_one_before_it_served() -> None:
    async def test() -> None:
        engine, gate = gated(open_at_once=False, rows=1, max_queue=1)
        async with AsyncEngine(engine) as front:
            busy = await front.add([1], greedy(2))
            while not engine.scheduler.running:  # its pass waits at the gate: what comes now arrives together
                await asyncio.sleep(0)
            tasks = [asyncio.create_task(front.generate([base], greedy(2))) for base in (10, 20)]
            await asyncio.sleep(0)
            gate.open()
            assert (await tasks[0]).token_ids == [11, 12]
            with pytest.raises(QueueFullError):
                await tasks[1]
            assert (await busy.output()).token_ids == [2, 3]
            assert (await front.generate([30], greedy(2))).token_ids == [31, 32]
        assert_all_free(engine)

    run(test)


def test_deadlines_hold() -> None:
    async def test() -> None:
        engine, _ = gated()
        async with AsyncEngine(engine) as front:
            output = await front.generate([1], greedy(50), timeout_s=1e-9)
            assert output.finish_reason == "timeout"

    run(test)


def test_it_works_on_a_real_model_from_several_event_loops() -> None:
    llm = LLM("story")
    wanted = [llm.generate(f"Once upon a time, there were {i}", greedy(8))[0].text for i in range(4)]
    front = AsyncEngine(llm)
    got: dict[int, str] = {}

    async def one(i: int) -> None:
        got[i] = (await front.generate(f"Once upon a time, there were {i}", greedy(8))).text

    threads = [threading.Thread(target=lambda i=i: asyncio.run(one(i))) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    run(front.shutdown)
    assert [got[i] for i in range(4)] == wanted


# --- aborted, cancelled, abandoned -----------------------------------------------------------------------------------


def test_abort_ends_the_stream_and_says_so_and_the_others_notice_nothing() -> None:
    async def test() -> None:
        engine, gate = gated(open_at_once=False)
        async with AsyncEngine(engine) as front:
            stream = await front.add([1], greedy(20))
            gate.let_one_through()
            assert (await anext(stream)).token_ids == [2]
            other = asyncio.create_task(front.generate([50], greedy(4)))
            gate.open()
            await front.abort(stream.request_id)
            await front.abort(stream.request_id)
            await front.abort(10**9)
            pieces = [piece async for piece in stream]
            assert pieces[-1].finish_reason == "abort"
            output = await stream.output()
            assert output.token_ids == following(1, len(output.token_ids))
            assert (await other).token_ids == following(50, 4)
        assert_all_free(engine)

    run(test)


@pytest.mark.parametrize("how", ["close", "break", "aclose", "cancel", "collect the stream", "collect the generator"])
def test_a_request_whose_reader_goes_away_is_aborted(how: str) -> None:
    async def test() -> None:
        engine, gate = gated(open_at_once=False)
        async with AsyncEngine(engine) as front:
            gate.let_one_through()
            if how == "close":
                stream = await front.add([1], greedy(40))
                await anext(stream)
                stream.close()
            elif how == "break":
                async for _ in front.stream([1], greedy(40)):
                    break
            elif how == "aclose":
                generator = front.stream([1], greedy(40))
                await anext(generator)
                await generator.aclose()  # type: ignore[attr-defined]
            elif how == "cancel":
                task = asyncio.create_task(front.generate([1], greedy(40)))
                while not gate.passes:
                    await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            elif how == "collect the stream":
                stream = await front.add([1], greedy(40))
                await anext(stream)
                del stream
            else:
                generator = front.stream([1], greedy(40))
                await anext(generator)
                del generator
            for _ in range(3):
                gc.collect(1)  # what is new is in the young generations
                await asyncio.sleep(0)
            gate.open()
            await idle(front)
            stats = await front.stats()
            assert (stats.aborted, stats.finished) == (1, 0)
            assert gate.passes < 40
            assert (await front.generate([60], greedy(2))).token_ids == [61, 62]
        assert_all_free(engine)

    run(test)


def test_a_task_cancelled_before_its_request_was_queued_leaves_nothing() -> None:
    async def test() -> None:
        engine, gate = gated(open_at_once=False)
        async with AsyncEngine(engine) as front:
            busy = await front.add([1], greedy(2))
            while not engine.scheduler.running:  # the thread is in a pass now, and takes no commands
                await asyncio.sleep(0)
            task = asyncio.create_task(front.generate([60], greedy(40)))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            gate.open()
            assert (await busy.output()).token_ids == [2, 3]
            await idle(front)
            assert (await front.stats()).prompt_tokens == 1
        assert_all_free(engine)

    run(test)


def test_readers_whose_event_loop_was_closed_are_forgotten() -> None:
    engine, gate = gated(open_at_once=False)
    front = AsyncEngine(engine)
    kept = []

    async def leave() -> None:
        kept.append(await front.add([1], greedy(40)))

    asyncio.run(leave())
    gate.open()

    async def test() -> None:
        await idle(front)
        assert (await front.stats()).aborted == 1
        assert (await front.generate([60], greedy(2))).token_ids == [61, 62]
        await front.shutdown()

    run(test)
    assert_all_free(engine)


# --- steps that raise ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), KeyboardInterrupt("odd")])
def test_an_exception_in_a_step_fails_its_requests_and_the_engine_goes_on(error: BaseException) -> None:
    async def test() -> None:
        engine, gate = gated(open_at_once=False, rows=2)
        async with AsyncEngine(engine) as front:
            streams = [await front.add([1], greedy(20))]
            later = [asyncio.create_task(front.add([base], greedy(20))) for base in (40, 80)]
            await asyncio.sleep(
                0
            )  # they are posted while the thread is in its first pass; the second admits one of them
            gate.error, gate.error_at = error, 3
            gate.open()
            streams += [await task for task in later]
            first = await anext(streams[0])
            with pytest.raises(StepFailedError, match=rf"request {first.request_id} ended .*{error}") as raised:
                await streams[0].output()
            assert raised.value.__cause__ is error
            with pytest.raises(StepFailedError):
                await anext(streams[0])
            with pytest.raises(StepFailedError):
                async for _ in streams[1]:
                    pass
            assert (await streams[2].output()).token_ids == following(80, 20)
            stats = await front.stats()
            assert (stats.failed, stats.finished) == (2, 1)
        assert_all_free(engine)

    run(test)


def test_a_failure_that_is_nobodys_ends_all_instead_of_failing_for_ever() -> None:
    async def test() -> None:
        engine, _ = gated()
        held = engine.model_runner.token_to_kv_pool.alloc(200)  # behind the engine's back
        assert held is not None
        async with AsyncEngine(engine) as front:
            with pytest.raises(StepFailedError, match="something outside the engine"):
                await front.generate([1] * 60, greedy(4))
            engine.model_runner.token_to_kv_pool.free(held)
            assert (await front.generate([1] * 60, greedy(2))).token_ids == [2, 3]

    run(test)


@pytest.mark.parametrize("broken_too", [(), ("abort_all", "shutdown")])
def test_a_thread_that_dies_leaves_nobody_waiting(broken_too: tuple[str, ...]) -> None:
    """That takes a bug in the engine; here `has_unfinished` raises."""

    async def test() -> None:
        engine, gate = gated(open_at_once=False)
        front = AsyncEngine(engine)
        stream = await front.add([1], greedy(20))

        def broken(*args: object) -> bool:
            raise ZeroDivisionError("a bug")

        for name in ("has_unfinished", *broken_too):
            setattr(engine, name, broken)
        other = asyncio.create_task(front.generate([50], greedy(20)))
        await asyncio.sleep(0)  # it is posted while the thread is in its first pass
        gate.open()
        with pytest.raises((StepFailedError, EngineClosedError), match="a bug") as raised:
            await stream.output()
        assert isinstance(raised.value.__cause__, ZeroDivisionError)
        with pytest.raises((StepFailedError, EngineClosedError)):
            await anext(stream)
        with pytest.raises((StepFailedError, EngineClosedError)):
            await other
        with pytest.raises(EngineClosedError):
            await front.stats()
        await front.shutdown()
        if not broken_too:
            del engine.has_unfinished
            assert_all_free(engine)

    run(test)


# --- starting and stopping -------------------------------------------------------------------------------------------


def test_shutdown_ends_streams_and_may_be_called_again() -> None:
    async def test() -> None:
        engine, gate = gated(open_at_once=False)
        front = AsyncEngine(engine)
        stream = await front.add([1], greedy(40))
        gate.let_one_through()
        await anext(stream)
        closing = [asyncio.create_task(front.shutdown()) for _ in range(3)]
        gate.open()
        await asyncio.gather(*closing)
        await front.shutdown()
        pieces = [piece async for piece in stream]
        assert pieces[-1].finish_reason == "abort"
        for call in (front.generate([1], greedy()), front.stats(), front.abort(0)):
            with pytest.raises(EngineClosedError):
                await call
        stream.close()
        assert_all_free(engine)

    run(test)


def test_leaving_the_context_by_an_error_stops_the_thread() -> None:
    async def test() -> None:
        engine, _ = gated()

        async def fail() -> None:
            async with AsyncEngine(engine) as front:
                await front.add([1], greedy(40))
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        assert_all_free(engine)

    run(test)


def test_an_engine_with_requests_of_its_own_is_not_taken_over() -> None:
    engine = make_engine()
    engine.add_request([1], greedy())
    with pytest.raises(ValueError, match="unfinished requests"):
        AsyncEngine(engine)


def test_an_engine_serves_one_front_alone() -> None:
    async def test() -> None:
        llm = LLM("story", max_total_tokens=64, max_context_len=32)
        async with AsyncEngine(llm) as front:
            with pytest.raises(ValueError, match="an AsyncEngine is already using its engine"):
                AsyncEngine(llm)
            waiting = await front.add([1], greedy(8))
            for call in (
                lambda: llm.generate([1], greedy()),
                lambda: next(llm.stream([1], greedy())),
                lambda: llm.engine.add_request([1], greedy()),
                llm.engine.step,
            ):
                with pytest.raises(RuntimeError, match="an AsyncEngine is using this engine: call its methods"):
                    call()
            assert len((await waiting.output()).token_ids) == 8
            llm.engine.check_integrity()  # to look is possible from any thread
        with pytest.raises(EngineClosedError):
            llm.generate([1], greedy())

    run(test)


def test_a_long_prompt_is_tokenized_while_other_requests_go_on() -> None:
    async def test() -> None:
        engine, _ = gated(rows=2)
        tokenizer, until = engine.builder.tokenizer, threading.Event()
        assert tokenizer is not None

        def slow(text: str) -> list[int]:
            assert until.wait(timeout=30)
            return [7] * 100

        tokenizer.encode = slow  # type: ignore[method-assign, assignment]
        async with AsyncEngine(engine) as front:
            refused = asyncio.create_task(front.generate("x" * 5000, greedy()))
            await asyncio.sleep(0)
            output = await front.generate([5], greedy(3))
            assert (output.token_ids, refused.done()) == ([6, 7, 8], False)
            until.set()
            with pytest.raises(InvalidRequestError, match="100 prompt tokens"):
                await refused
        assert_all_free(engine)

    run(test)


def test_an_idle_engine_sleeps() -> None:
    async def test() -> None:
        engine, _ = gated()
        asked = []
        has_unfinished = engine.has_unfinished
        engine.has_unfinished = lambda: asked.append(1) or has_unfinished()  # type: ignore[method-assign, func-returns-value]
        async with AsyncEngine(engine) as front:
            await front.generate([1], greedy(2))
            await front.stats()
            before = len(asked)
            await asyncio.sleep(0.05)
            assert len(asked) - before <= 2, "it turns round and round"

    run(test)


# --- all at once -----------------------------------------------------------------------------------------------------


# --- looking at it ---------------------------------------------------------------------------------------------------


def test_after_step_is_called_between_steps_in_the_engines_thread() -> None:
    async def test() -> None:
        engine, _ = gated()
        seen = []

        def look(core: Engine) -> None:
            assert core is engine
            core.check_integrity()
            seen.append((threading.current_thread().name, core.last_batch and core.last_batch.forward_mode.name))

        async with AsyncEngine(engine) as front:
            await front.generate("abc", greedy(1))
            front.after_step = look
            await front.generate("abc", greedy(3))
            front.after_step = None
            await front.generate("abc", greedy(1))
        assert seen == [("nanoinfer-engine", "EXTEND"), ("nanoinfer-engine", "DECODE"), ("nanoinfer-engine", "DECODE")]

    run(test)


def test_an_after_step_that_fails_is_not_called_again_and_disturbs_no_request(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        engine, _ = gated()
        calls = []

        def fail(core: Engine) -> None:
            calls.append(1)
            raise ValueError("broken")

        async with AsyncEngine(engine) as front:
            front.after_step = fail
            assert (await front.generate("abc", greedy(4))).text == "defg"
            assert front.after_step is None
        assert len(calls) == 1
        assert "after_step failed, and is not called any more" in caplog.text

    run(test)


def test_visit_returns_or_raises_what_the_function_does() -> None:
    async def test() -> None:
        engine, _ = gated()
        async with AsyncEngine(engine) as front:
            assert await front.visit(lambda core: core is engine)
            with pytest.raises(ZeroDivisionError):
                await front.visit(lambda core: 1 // 0)
            assert (await front.generate("abc", greedy(2))).text == "de"
        with pytest.raises(EngineClosedError):
            await front.visit(lambda core: None)

    run(test)

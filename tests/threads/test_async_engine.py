"""AsyncEngine: many coroutines, one engine. What they ask for, what they get, and how they look at it."""

import asyncio
import threading

import pytest

from nanoinfer import (
    LLM,
    AsyncEngine,
    Engine,
    EngineClosedError,
    InvalidRequestError,
    QueueFullError,
    SamplingParams,
)
from nanoinfer.requests.request import Request
from tests.helpers.async_engines import arrival, following, idle, with_front
from tests.helpers.engines import Clock, V, greedy
from tests.helpers.waiting import HANG_S, Worker, run


async def test_generate_gives_what_the_engine_gives() -> None:
    async with with_front() as (front, _):
        output = await front.generate([5, 6, 7], greedy(3))
        assert (output.token_ids, output.finish_reason, output.prompt_tokens) == ([8, 9, 10], "length", 3)
        both = await asyncio.gather(front.generate("abc", greedy(2)), front.generate([90], greedy(4)))
        assert [one.token_ids for one in both] == [[100, 101], following(90, 4)]


async def test_a_stream_gives_each_token_once_and_its_text_joined_is_the_whole() -> None:
    async with with_front() as (front, _):
        pieces = [piece async for piece in front.stream("abc", greedy(5))]
        assert "".join(piece.text for piece in pieces) == "defgh"
        assert [token for piece in pieces for token in piece.token_ids] == list(b"defgh")
        assert [piece.finish_reason for piece in pieces] == [None] * (len(pieces) - 1) + ["length"]


async def test_an_added_request_runs_whether_or_not_it_is_read_and_is_read_when_one_likes() -> None:
    async with with_front() as (front, _):
        stream = await front.add("abc", greedy(5))
        await idle(front)
        assert [piece.text async for piece in stream] == list("defgh")
        output = await stream.output()
        assert (output.request_id, output.text) == (stream.request_id, "defgh")
        assert [piece async for piece in stream] == []


async def test_completions_of_one_request_come_marked_with_their_index() -> None:
    async with with_front() as (front, _):
        params = SamplingParams(max_new_tokens=3, n=3, seed=1, temperature=30.0)
        texts = {0: "", 1: "", 2: ""}
        async for piece in front.stream("a", params):
            texts[piece.index] += piece.text
        output = await front.generate("a", params)
        assert [one.text for one in output.outputs] == list(texts.values())


async def test_a_request_that_is_refused_raises_where_it_was_asked_for() -> None:
    async with with_front() as (front, _):
        with pytest.raises(InvalidRequestError, match="prompt 7"):
            await front.generate("", greedy(), name="prompt 7")
        with pytest.raises(InvalidRequestError, match="timeout_s"):
            await front.add("a", greedy(), timeout_s=-1)
        stream = front.stream([V], greedy())
        with pytest.raises(InvalidRequestError, match="token id"):
            await anext(stream)


async def test_a_request_that_finds_the_queue_full_is_refused_and_the_one_before_it_served() -> None:
    async with with_front(open_at_once=False, rows=1, max_queue=1) as (front, barrier):
        busy = await front.add([1], greedy(2))
        await arrival(barrier, 1)  # what comes now arrives together
        tasks = [asyncio.create_task(front.generate([base], greedy(2))) for base in (10, 20)]
        await asyncio.sleep(0)
        barrier.open()
        assert (await tasks[0]).token_ids == [11, 12]
        with pytest.raises(QueueFullError):
            await tasks[1]
        assert (await busy.output()).token_ids == [2, 3]
        assert (await front.generate([30], greedy(2))).token_ids == [31, 32]


async def test_deadlines_hold() -> None:
    clock = Clock()
    async with with_front(open_at_once=False, clock=clock) as (front, barrier):
        stream = await front.add([1], greedy(50), timeout_s=10.0)
        await arrival(barrier, 1)
        clock.now += 10.0
        barrier.open()
        output = await stream.output()
        assert (output.finish_reason, output.token_ids) == ("timeout", [2])


def test_it_works_on_a_real_model_from_several_event_loops() -> None:
    llm = LLM("story")
    prompts = [f"Once upon a time, there were {i}" for i in range(4)]
    wanted = [llm.generate(prompt, greedy(8))[0].text for prompt in prompts]
    front = AsyncEngine(llm)
    workers = [Worker(lambda prompt=prompt: run(lambda: front.generate(prompt, greedy(8)))) for prompt in prompts]
    assert [worker.result().text for worker in workers] == wanted
    run(front.shutdown)


@pytest.mark.parametrize(("prompt", "error"), [([500], InvalidRequestError), ([5], QueueFullError)])
async def test_of_several_requests_all_are_added_or_none(prompt: list[int], error: type[Exception]) -> None:
    asked = [Request(prompt, greedy(3)) for prompt in ([5], [50], prompt)]
    async with with_front(max_queue=2) as (front, _):
        with pytest.raises(error):
            await front.add_all(asked)
        stats = await front.stats()
        assert (stats.waiting, stats.running, stats.prompt_tokens) == (0, 0, 0)
        outputs = [await stream.output() for stream in await front.add_all(asked[:2])]
        assert [output.token_ids for output in outputs] == [following(5, 3), following(50, 3)]


async def test_a_long_prompt_is_tokenized_while_other_requests_go_on() -> None:
    others_are_done = threading.Event()

    def slow(text: str) -> list[int]:
        assert others_are_done.wait(HANG_S)
        return [7] * 100

    async with with_front(rows=2) as (front, _):
        front.engine.builder.tokenizer.encode = slow  # type: ignore[method-assign, assignment]
        refused = asyncio.create_task(front.generate("x" * 5000, greedy()))
        await asyncio.sleep(0)
        output = await front.generate([5], greedy(3))
        assert (output.token_ids, refused.done()) == ([6, 7, 8], False)
        others_are_done.set()
        with pytest.raises(InvalidRequestError, match="100"):
            await refused


# --- looking at it ---------------------------------------------------------------------------------------------------


async def test_after_step_is_called_between_steps_in_the_engines_thread() -> None:
    seen = []

    def look(core: Engine) -> None:
        core.check_integrity()
        seen.append((threading.current_thread().name, core.last_batch and core.last_batch.forward_mode.name))

    async with with_front() as (front, _):
        await front.generate("abc", greedy(1))
        front.after_step = look
        await front.generate("abc", greedy(3))
        front.after_step = None
        await front.generate("abc", greedy(1))
        front.after_step = look
    assert front.after_step is None, "it ends with the AsyncEngine"
    assert seen == [("nanoinfer-engine", "EXTEND"), ("nanoinfer-engine", "DECODE"), ("nanoinfer-engine", "DECODE")]


async def test_an_after_step_that_fails_is_not_called_again_and_disturbs_no_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls = []

    def fail(core: Engine) -> None:
        calls.append(1)
        raise ValueError("broken")

    async with with_front() as (front, _):
        front.after_step = fail
        assert (await front.generate("abc", greedy(4))).text == "defg"
        assert front.after_step is None
    assert len(calls) == 1
    assert "after_step failed, and is not called any more" in caplog.text


async def test_a_visit_sees_the_engine_between_two_steps_and_returns_or_raises_what_its_function_does() -> None:
    async with with_front() as (front, _):
        await front.generate([5], greedy(3))
        assert await front.visit(lambda visited: visited is front.engine and visited.flush_cache()) == 3
        with pytest.raises(ZeroDivisionError):
            await front.visit(lambda visited: 1 // 0)
        assert (await front.generate("abc", greedy(2))).text == "de"
        assert not front.is_closed
    assert front.is_closed
    with pytest.raises(EngineClosedError):
        await front.visit(lambda visited: None)

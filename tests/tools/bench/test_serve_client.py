"""`bench serve`: what the client reads, what the loops send, and what is counted. No times."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from nanoinfer import LLM
from nanoinfer.bench.load import (
    TURNS,
    WORDS,
    Conversations,
    Exchange,
    Lengths,
    Traffic,
    arrivals,
    as_request,
    ask,
    closed_loop,
    open_loop,
)
from nanoinfer.bench.processes import free_port
from nanoinfer.bench.serve import Goodput, figures, percentiles, problem
from tests.helpers import fake_server
from tests.helpers.bench_serve import GOOD, NEW_TOKENS, Ticking, cut, pieces_of, stream, text_event
from tests.helpers.waiting import until_async

REQUEST = as_request({"prompt": "hi", "max_tokens": NEW_TOKENS})


@asynccontextmanager
async def serving(server: fake_server.Server) -> AsyncIterator[int]:
    """The port of a fake server in this event loop."""
    started = await asyncio.start_server(server.connected, "127.0.0.1", 0)
    try:
        yield started.sockets[0].getsockname()[1]
    finally:
        started.close()


# --- an answer -------------------------------------------------------------------------------------------------------


USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
WHOLE = (
    *(text_event("é"), text_event(""), text_event("b"), ": ping", text_event("", "length")),
    *("data: " + json.dumps({"choices": [], "usage": USAGE}), "data: [DONE]"),
)


@pytest.mark.parametrize("separator", ["\n\n", "\r\n\r\n"])
@pytest.mark.parametrize("chunked", [True, False])
def test_an_answer_is_the_same_however_it_is_cut_and_a_piece_has_the_time_of_its_last_byte(
    separator: str, chunked: bool
) -> None:
    data, end = stream(*WHOLE, separator=separator, chunked=chunked), separator[: len(separator) // 2]
    ends = [data.index(event.encode()) + len((event + end).encode()) for event in (WHOLE[0], WHOLE[2])]
    rng = Random(0)
    for places in [[], *([i] for i in range(1, len(data))), *(rng.sample(range(1, len(data)), 9) for _ in range(50))]:
        answer = Exchange(0.0, cut(data, places)).read()
        assert (answer.has_reason, answer.is_done, answer.error) == (True, True, None)
        assert (answer.tokens, answer.prompt_tokens, answer.cached_tokens) == (3, 9, 4)
        assert answer.times == [float(sum(place < end for place in places)) for end in ends]


def test_an_answer_without_usage_has_a_token_per_piece() -> None:
    answer = Exchange(0.0, [(0.0, stream(text_event("a"), text_event("b", "length"), "data: [DONE]"))]).read()
    assert answer.output_tokens == 2
    ids = 'data: {"choices": [{"text": "", "token_ids": [5, 6]}]}'
    assert Exchange(0.0, [(0.0, stream(ids, ids))]).read().token_ids == [5, 6, 5, 6]


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"HTTP/1.1 502 X\r\ncontent-length: 3\r\n\r\nbad", "bad"),
        (stream("data: {not JSON"), "not understood"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "not understood"),
    ],
)
def test_what_is_wrong_with_an_answer_is_said(data: bytes, error: str) -> None:
    assert error in str(Exchange(0.0, [(0.0, data)]).read().error)


# --- the client ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        ("", None),
        ("500", "no room"),
        ("error", "a step failed"),
        ("cut", "finish reason"),
        ("short", "3 tokens instead of 4"),
        ("endless", "finish reason"),
    ],
)
async def test_each_kind_of_failure_is_named(trouble: str, words: str | None) -> None:
    exchange = Exchange(0.0)
    async with serving(fake_server.Server(trouble)) as port:
        await ask(port, REQUEST, exchange)
    found = problem(exchange.read(), NEW_TOKENS)
    assert (found is None) == (words is None)
    assert (words or "None") in str(found)


async def test_nobody_at_the_port_is_a_failure_of_the_request() -> None:
    exchange = Exchange(0.0)
    await ask(free_port(), REQUEST, exchange)
    assert exchange.error
    assert exchange.ended is None


# --- the loops -------------------------------------------------------------------------------------------------------


def numbered(number: int) -> bytes:
    return as_request({"prompt": str(number), "max_tokens": NEW_TOKENS})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Ticking:
    return Ticking(monkeypatch)


async def test_a_closed_loop_has_as_many_open_requests_as_clients_and_never_more(clock: Ticking) -> None:
    server = fake_server.Server()
    answer = server.answer

    async def answer_once_all_have_asked(writer: Any, tokens: int) -> None:
        await until_async(lambda: server.most_open == 3, "three open requests")
        await answer(writer, tokens)

    server.answer = answer_once_all_have_asked  # type: ignore[method-assign]
    async with serving(server) as port:
        traffic = await closed_loop(port, numbered, 3, 0.1)
    assert server.most_open == 3
    assert len(traffic.exchanges) == server.served > 3
    assert sorted(map(int, server.prompts)) == list(range(server.served)), "each request once"
    assert figures(traffic, NEW_TOKENS, GOOD)["finished"] == server.served


async def test_an_open_loop_waits_for_no_answer(clock: Ticking) -> None:
    server = fake_server.Server("hang")
    times = arrivals(50, 0.2, "seed")
    clock.over = lambda: server.served == len(times)
    async with serving(server) as port:
        traffic = await open_loop(port, numbered, 50, 0.2, "seed")
    assert len(traffic.exchanges) == server.served == len(times) > 1
    assert [exchange.due - traffic.began for exchange in traffic.exchanges] == pytest.approx(times)
    found = figures(traffic, NEW_TOKENS, GOOD)
    assert (found["finished"], found["unfinished"], found["errors"]) == (0, len(times), 0)
    assert found["ttft_ms"]["at_least"] == ["p50", "p99"]
    assert found["gap_ms"] is None


def test_arrivals_are_seeded_and_have_their_rate() -> None:
    assert arrivals(20, 5, "a") == arrivals(20, 5, "a") != arrivals(20, 5, "b")
    assert 0.9 * 20_000 < len(arrivals(20, 1000, "a")) < 1.1 * 20_000
    assert all(0 <= at < 5 for at in arrivals(20, 5, "a"))
    assert arrivals(0.001, 1, "a") == [1], "at least one"


async def test_a_refused_client_waits_before_it_asks_again(clock: Ticking) -> None:
    server = fake_server.Server("429")
    async with serving(server) as port:
        traffic = await closed_loop(port, numbered, 2, 0.3)
    assert server.served == 2, "the wait is longer than the loop"
    found = figures(traffic, NEW_TOKENS, GOOD)
    assert (found["requests"], found["refused"], found["errors"]) == (2, 2, 0)


# --- what is asked ---------------------------------------------------------------------------------------------------


def test_conversations_share_their_system_prompt_and_each_turn_continues_the_one_before(story: LLM) -> None:
    assert story.tokenizer is not None
    encode = story.tokenizer.encode
    lengths, per_word = Lengths(50, 10, 20, 8), len(encode(" ".join(WORDS))) / len(WORDS)
    one, same, other_round = (Conversations(per_word, lengths, seed, f"{seed}/closed", 2) for seed in "112")
    prompts = [one.prompt(i) for i in range(2 * TURNS + 2)]
    assert prompts == [same.prompt(i) for i in range(2 * TURNS + 2)]
    for first in (0, 1):
        for turn in range(1, TURNS):
            assert prompts[first + 2 * turn].startswith(prompts[first + 2 * turn - 2] + " ")
    system = prompts[0].split("\n")[0]
    assert all(prompt.startswith(system + "\n") for prompt in prompts)
    assert len({prompt.split("\n")[1] for prompt in (prompts[0], prompts[1], prompts[-1])}) == 3
    assert not other_round.prompt(0).startswith(system)
    sizes = [len(encode(prompt)) for prompt in prompts]
    assert 0.7 * 60 < min(sizes) < max(sizes) < lengths.longest


# --- figures ---------------------------------------------------------------------------------------------------------


def test_percentiles_say_when_they_are_only_bounds() -> None:
    known = [(float(i), False) for i in range(1, 100)]
    assert percentiles(known) == {"p50": 50.0, "p99": 99.0}
    assert percentiles([*known, (500.0, True)]) == {"p50": 50.0, "p99": 99.0}
    assert percentiles([*known[:10], (500.0, True)]) == {"p50": 6.0, "p99": 500.0, "at_least": ["p99"]}
    assert percentiles([]) is None


def test_only_tokens_and_ends_within_the_window_count_and_goodput_needs_both_limits() -> None:
    def exchange(due: float, times: list[float]) -> Exchange:
        pieces = [(due + t, data) for t, data in zip(times, pieces_of(len(times)), strict=True)]
        return Exchange(due, pieces, ended=pieces[-1][0])

    fast, slow_start, slow_rest = [0.1, 0.2, 0.3, 0.4], [0.9, 1.0, 1.1, 1.2], [0.1, 0.6, 1.1, 1.6]
    traffic = Traffic(2.0, 100.0, [exchange(100.0, fast), exchange(100.5, slow_start), exchange(101.0, slow_rest)])
    traffic.wall_s, traffic.client_s = 4.0, 1.0
    found = figures(traffic, NEW_TOKENS, Goodput(500, 200))
    assert found["tokens_s"] == pytest.approx((4 + 4 + 2) / 2.0), "the last one's last two tokens came too late"
    assert found["requests_s"] == pytest.approx(2 / 2.0)
    assert found["goodput"] == pytest.approx(1 / 2.0)
    assert found["ttft_ms"] == {"p50": pytest.approx(100), "p99": pytest.approx(900)}
    assert found["gap_ms"] == {"p50": pytest.approx(100), "p99": pytest.approx(500)}
    assert found["client_share"] == 0.25

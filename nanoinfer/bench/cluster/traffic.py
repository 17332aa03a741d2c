"""What clients ask a cluster: conversations that share system prompts, and bursts of prefixes that nobody has seen before;
and what came back when."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from nanoinfer.bench.serve import client

FIRST_TOKEN, LAST_TOKEN = 10, 1999  # ordinary tokens of the bundled model, and of every larger vocabulary


@dataclass(frozen=True)
class Ask:
    """One request: at `at` seconds or, after the answer of the request before it in its session, `at` seconds later. Its
    prompt is the session's tokens so far, prompts and answers, then `token_ids`."""

    at: float
    token_ids: Sequence[int]
    max_tokens: int


Session = Sequence[Ask]


@dataclass(frozen=True)
class Size:
    """Tokens of each part, and how many of everything. `seconds`: until the last conversation begins, and of all bursts.
    `burst_s`: seconds in which the clients of a burst ask. It should be about the prefill of a prefix."""

    seconds: float = 12.0
    chats: int = 48
    systems: int = 8
    system: int = 256
    question: int = 24
    answer: int = 16
    turns: int = 3
    bursts: int = 3
    burst_prefixes: int = 4
    burst_clients: int = 60
    burst_prefix: int = 1024
    burst_s: float = 0.5


def chat(size: Size, seed: int) -> list[Session]:
    """Conversations of several turns. A few system prompts begin all of them; some are asked far more often than others."""
    rng = Random(f"chat {seed}")
    systems = [_tokens(rng, size.system) for _ in range(size.systems)]
    weights = [1 / rank for rank in range(1, size.systems + 1)]
    sessions: list[Session] = []
    for start in sorted(rng.uniform(0, size.seconds) for _ in range(size.chats)):
        (system,) = rng.choices(systems, weights)
        first = Ask(start, [*system, *_tokens(rng, size.question)], size.answer)
        later = [Ask(rng.expovariate(2.0), _tokens(rng, size.question), size.answer) for _ in range(size.turns - 1)]
        sessions.append([first, *later])
    return sessions


def burst(size: Size, seed: int) -> list[Session]:
    """Again and again, many clients ask within about one prefill, with a few new prefixes, some far more often than others.
    Nobody has them cached: a router that waits for reports sends each client elsewhere, and one that looks at nothing but
    prefixes lets the clients of the first one wait for each other, beside replicas that have nothing to do."""
    rng = Random(f"burst {seed}")
    weights = [1 / rank for rank in range(1, size.burst_prefixes + 1)]
    sessions: list[Session] = []
    for number in range(size.bursts):
        start = size.seconds * number / size.bursts
        prefixes = [_tokens(rng, size.burst_prefix) for _ in weights]
        for at in sorted(rng.uniform(0, size.burst_s) for _ in range(size.burst_clients)):
            (prefix,) = rng.choices(prefixes, weights)
            sessions.append([Ask(start + at, [*prefix, *_tokens(rng, size.question)], size.answer)])
    return sessions


WORKLOADS = {"chat": chat, "burst": burst}


def _tokens(rng: Random, count: int) -> list[int]:
    return [rng.randint(FIRST_TOKEN, LAST_TOKEN) for _ in range(count)]


@dataclass
class Exchange:
    """One request: seconds are of the traffic's clock. `error`: what went wrong, if something did."""

    prompt: list[int]
    sent: float
    first_token: float = 0.0
    end: float = 0.0
    cached_tokens: int = 0
    output: list[int] = field(default_factory=list)
    error: str | None = None


async def run_traffic(port: int, model: str, sessions: Sequence[Session]) -> list[Exchange]:
    """All sessions; each asks when its time has come. In the order in which requests were sent."""
    exchanges: list[Exchange] = []
    began = time.perf_counter()

    async def hold(session: Session) -> None:
        so_far: list[int] = []
        for turn, ask in enumerate(session):
            due = ask.at - (time.perf_counter() - began) if turn == 0 else ask.at
            await asyncio.sleep(max(due, 0.0))
            exchange = Exchange([*so_far, *ask.token_ids], time.perf_counter() - began)
            exchanges.append(exchange)
            await _ask(port, model, exchange, ask.max_tokens, began)
            if exchange.error is not None:
                return
            so_far = [*exchange.prompt, *exchange.output]

    await asyncio.gather(*(hold(session) for session in sessions))
    return exchanges


async def _ask(port: int, model: str, exchange: Exchange, max_tokens: int, began: float) -> None:
    exactly = {"max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    body = {"model": model, "prompt": exchange.prompt, **exactly, **streamed}
    sent = client.Exchange(exchange.sent)
    await client.ask(port, client.as_request("/v1/completions", body), sent)
    answer = client.read_answer(sent.packets)
    exchange.error = sent.failure or answer.error
    if exchange.error is None and answer.times:
        exchange.first_token, exchange.end = answer.times[0] - began, answer.times[-1] - began
        exchange.cached_tokens, exchange.output = answer.cached_tokens or 0, answer.token_ids
    elif exchange.error is None:
        exchange.error = "the answer has no tokens"

"""The load client of servers: a request and its answer, loops that ask, and what is asked.

In a closed loop, so many clients wait each for an answer before they ask again. In an open loop, requests come when they
come, however many are unanswered: as Poisson would have them, at a rate. Both begin requests for `seconds`, then wait for
the answers that are missing, at most as long again. Client and server share the cores, so what the client does is taken
from what it measures: it stores packets with the time at which they came, and they are read when the clock has stopped.
"""

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

TURNS = 3
REFUSED_WAIT_S = 1.0  # a client that was not answered asks again after so long
TEXT = """
the and was his her they said had day big little dog cat girl boy tree house ball park bird red blue happy sad mom dad play
run went home saw very good new friend one two with for from then help found sun rain water food box car hill sky star book
door smile nice old small long walk jump sing look take give want like love time
"""
WORDS = TEXT.split()
Requests = Callable[[int], bytes]  # the i-th request of a loop


@dataclass
class Exchange:
    """A request and what came for it. `due`: when it was to be sent; a client that is late makes no server look faster.

    `ended`: when the answer was there; None while it is not. `error`: what went wrong. `read` fills in the rest: status;
    `times`, when each piece of text came; token ids, where the server sends them; `tokens` and so on, as the server counts
    them; whether there was a finish reason, and `[DONE]`.
    """

    due: float
    packets: list[tuple[float, bytes]] = field(default_factory=list)
    ended: float | None = None
    error: str | None = None
    status: int = 0
    times: list[float] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    has_reason: bool = False
    is_done: bool = False

    @property
    def output_tokens(self) -> int:
        """A server that does not count tokens is taken to send one per piece."""
        return len(self.times) if self.tokens is None else self.tokens

    def read(self) -> "Exchange":
        """Read the packets, as far as they came: lines of server-sent events, among which are HTTP's own. What is malformed
        is an error."""
        rest = b""
        try:
            for at, data in self.packets:
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    if not self.status:
                        self.status = int(line.split(b" ", 2)[1])
                    elif line.startswith(b"data:"):
                        self._take(at, line[5:].strip())
        except (ValueError, IndexError, AttributeError) as error:
            self.error = f"not understood: {error}"
        if self.status != 200 and self.packets and self.error is None:
            body = b"".join(data for _, data in self.packets).partition(b"\r\n\r\n")[2]
            self.error = f"{self.status or 'no status'}: {body[:200].decode(errors='replace')}"
        return self

    def _take(self, at: float, data: bytes) -> None:
        if data == b"[DONE]":
            self.is_done = True
            return
        content: Any = json.loads(data)
        if "error" in content:
            self.error = f"{self.status}: {content['error']}"
        for choice in content.get("choices") or ():
            self.token_ids += choice.get("token_ids") or ()
            if choice.get("text") or choice.get("token_ids"):
                self.times.append(at)
            self.has_reason |= bool(choice.get("finish_reason"))
        if usage := content.get("usage"):
            self.tokens, self.prompt_tokens = usage.get("completion_tokens"), usage.get("prompt_tokens")
            self.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")


def as_request(body: Mapping[str, Any]) -> bytes:
    """A POST to /v1/completions, streamed, as it goes over the wire. The answer ends with its connection."""
    streamed = {"stream": True, "stream_options": {"include_usage": True}, "temperature": 0, "ignore_eos": True}
    content = json.dumps({**streamed, **body}).encode()
    head = ["POST /v1/completions HTTP/1.1", "host: 127.0.0.1", "content-type: application/json", "connection: close"]
    return "\r\n".join([*head, f"content-length: {len(content)}", "", ""]).encode() + content


async def ask(port: int, request: bytes, exchange: Exchange) -> None:
    """Send a request; what comes is stored in `exchange`, also when the server or the connection fails."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(request)
            while data := await reader.read(2**16):
                exchange.packets.append((time.perf_counter(), data))
        finally:
            writer.close()
        exchange.ended = exchange.packets[-1][0] if exchange.packets else time.perf_counter()
    except OSError as error:
        exchange.error = str(error) or type(error).__name__


@dataclass
class Traffic:
    """What happened: exchanges in the order of their requests. `began`: when the clock started.

    `client_s`: the processor time that the client took, of `wall_s` seconds.
    """

    seconds: float
    began: float = 0.0
    exchanges: list[Exchange] = field(default_factory=list)
    client_s: float = 0.0
    wall_s: float = 0.0


async def closed_loop(port: int, requests: Requests, clients: int, seconds: float) -> Traffic:
    """`clients` ask one request after another."""
    numbers = count()

    async def ask_again_and_again(traffic: Traffic) -> None:
        end = traffic.began + seconds
        while time.perf_counter() < end:
            exchange, request = Exchange(time.perf_counter()), requests(next(numbers))
            traffic.exchanges.append(exchange)
            await ask(port, request, exchange)
            if not exchange.packets or b" 200 " not in exchange.packets[0][1][:16]:
                await asyncio.sleep(min(REFUSED_WAIT_S, max(0.0, end - time.perf_counter())))

    async def all_of_them(traffic: Traffic) -> None:
        await asyncio.gather(*(ask_again_and_again(traffic) for _ in range(clients)))

    return await _run(all_of_them, seconds)


async def open_loop(port: int, requests: Requests, rate: float, seconds: float, seed: str) -> Traffic:
    """`rate` requests per second, at times that `seed` decides."""
    times = arrivals(rate, seconds, seed)
    ready = [requests(number) for number in range(len(times))]

    async def as_they_come(traffic: Traffic) -> None:
        async with asyncio.TaskGroup() as group:
            for at, request in zip(times, ready, strict=True):
                due = traffic.began + at
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                exchange = Exchange(due)
                traffic.exchanges.append(exchange)
                group.create_task(ask(port, request, exchange))

    return await _run(as_they_come, seconds)


def arrivals(rate: float, seconds: float, seed: str) -> list[float]:
    """Times of arrivals in `seconds`, with gaps that are distributed exponentially. At least one."""
    rng, times, at = Random(seed), list[float](), 0.0
    while (at := at + rng.expovariate(rate)) < seconds or not times:
        times.append(min(at, seconds))
    return times


async def _run(work: Callable[[Traffic], Coroutine[Any, Any, None]], seconds: float) -> Traffic:
    traffic = Traffic(seconds, time.perf_counter())
    cpu_before = time.process_time()
    with suppress(TimeoutError):  # exchanges that have not ended say so
        await asyncio.wait_for(work(traffic), 2 * seconds)
    traffic.client_s = time.process_time() - cpu_before
    traffic.wall_s = time.perf_counter() - traffic.began
    return traffic


@dataclass(frozen=True)
class Lengths:
    """About so many tokens of a conversation's parts: the system prompt, a question, an earlier answer; and exactly of the
    answer asked for."""

    system: int = 96
    question: int = 24
    answer: int = 32
    new_tokens: int = 32

    @property
    def longest(self) -> int:
        """About as many tokens as the last turn has, its answer included; 16 per turn are for the names of the parts."""
        return self.system + TURNS * (self.question + 16) + (TURNS - 1) * self.answer + self.new_tokens


class Conversations:
    """The prompts of one loop: `prompt(i)` is that of its i-th request. So many conversations as are `together` take turns.
    Each has several turns, and all begin with the same system prompt. Their answers are drawn, not the model's own, so that
    every server gets the same prompts.

    `shared_seed` decides the system prompt, `seed` all else. `per_word`: how many tokens a word has.
    """

    def __init__(self, per_word: float, lengths: Lengths, shared_seed: str, seed: str, together: int):
        self._per_word, self._lengths, self._seed, self._together = per_word, lengths, seed, together
        self._system = self._text(Random(shared_seed), lengths.system)

    def prompt(self, number: int) -> str:
        """The turns of a conversation up to the one that this request asks for."""
        rounds, place = divmod(number, self._together)
        conversation, turn = rounds // TURNS * self._together + place, rounds % TURNS
        rng, lines = Random(f"{self._seed}/{conversation}"), [self._system]
        for earlier in range(turn + 1):
            lines += [f"User: {self._text(rng, self._lengths.question)}", "Assistant:"]
            answer = self._text(rng, self._lengths.answer)
            if earlier < turn:
                lines[-1] += f" {answer}"
        return "\n".join(lines)

    def _text(self, rng: Random, tokens: int) -> str:
        return " ".join(rng.choices(WORDS, k=max(1, round(tokens / self._per_word))))

"""Sends sessions to a door over HTTP, and notes what came back when."""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass

import httpx

from nanoinfer.bench.cluster.workloads import Session

TIMEOUT_S = 120.0


@dataclass
class Exchange:
    """One request: seconds are of the traffic's clock. `error`: what went wrong, if something did."""

    prompt: list[int]
    sent: float
    first_token: float = 0.0
    end: float = 0.0
    cached_tokens: int = 0
    output: list[int] | None = None
    error: str | None = None


async def run_traffic(url: str, model: str, sessions: Sequence[Session]) -> list[Exchange]:
    """All sessions; each asks when its time has come. In the order in which requests were sent."""
    exchanges: list[Exchange] = []
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    async with httpx.AsyncClient(timeout=TIMEOUT_S, limits=limits) as client:
        began = time.perf_counter()

        async def hold(session: Session) -> None:
            so_far: list[int] = []
            for turn, ask in enumerate(session):
                due = ask.at - (time.perf_counter() - began) if turn == 0 else ask.at
                await asyncio.sleep(max(due, 0.0))
                exchange = Exchange([*so_far, *ask.token_ids], time.perf_counter() - began)
                exchanges.append(exchange)
                await _ask(client, url, model, exchange, ask.max_tokens, began)
                if exchange.error is not None:
                    return
                so_far = [*exchange.prompt, *(exchange.output or ())]

        await asyncio.gather(*(hold(session) for session in sessions))
    return exchanges


async def _ask(
    client: httpx.AsyncClient, url: str, model: str, exchange: Exchange, max_tokens: int, began: float
) -> None:
    body = {
        "model": model,
        "prompt": exchange.prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }
    output: list[int] = []
    try:
        async with client.stream("POST", f"{url}/v1/completions", json=body) as response:
            if response.status_code != 200:
                exchange.error = f"{response.status_code} {(await response.aread()).decode()[:200]}"
                return
            async for line in response.aiter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    exchange.error = event["error"]["message"]
                    return
                for choice in event["choices"]:
                    new = choice.get("token_ids") or []
                    if new and not output:
                        exchange.first_token = time.perf_counter() - began
                    output += new
                if event.get("usage"):
                    exchange.cached_tokens = event["usage"]["prompt_tokens_details"]["cached_tokens"]
    except httpx.HTTPError as error:
        exchange.error = f"{type(error).__name__}: {error}"
        return
    exchange.end, exchange.output = time.perf_counter() - began, output

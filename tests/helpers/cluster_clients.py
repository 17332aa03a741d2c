"""Clients of a cluster's ingress, and what their answers must be: one engine's."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from nanoinfer import LLM, SamplingParams
from tests.helpers.waiting import HANG_S


@dataclass
class Answer:
    """What a client has got. `error`: what ended it, if it was not the server's `[DONE]`."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None
    error: str | None = None

    @property
    def in_full(self) -> tuple[list[int], str, str | None, str | None]:
        return self.token_ids, self.text, self.finish_reason, self.error


async def stream(url: str, body: dict[str, Any], read: asyncio.Event | None = None, least: int = 3) -> Answer:
    """Stream a completion. `read` is set once `least` pieces have come."""
    answer, pieces = Answer(), 0
    asked = {"model": "story", "stream": True, "return_token_ids": True, **body}
    try:
        async with (
            httpx.AsyncClient(timeout=HANG_S) as client,
            client.stream("POST", f"{url}/v1/completions", json=asked) as response,
        ):
            if response.status_code != 200:
                answer.error = f"{response.status_code} {(await response.aread()).decode()}"
                return answer
            async for line in response.aiter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    answer.error = event["error"]["message"]
                    continue
                for choice in event["choices"]:
                    answer.text += choice["text"]
                    answer.token_ids += choice.get("token_ids") or []
                    answer.finish_reason = choice["finish_reason"] or answer.finish_reason
                pieces += 1
                if read is not None and pieces == least:
                    read.set()
    except httpx.HTTPError as error:
        answer.error = f"{type(error).__name__}: {error}"
    finally:
        if read is not None:
            read.set()
    return answer


async def whole(url: str, body: dict[str, Any]) -> Answer:
    """A completion that is not streamed."""
    async with httpx.AsyncClient(timeout=HANG_S) as client:
        response = await client.post(f"{url}/v1/completions", json={"model": "story", "return_token_ids": True, **body})
    if response.status_code != 200:
        return Answer(error=f"{response.status_code} {response.text}")
    (choice,) = response.json()["choices"]
    return Answer(choice["token_ids"], choice["text"], choice["finish_reason"])


def bodies(count: int, max_tokens: int) -> list[dict[str, Any]]:
    """Requests that differ, some greedy and some sampled; all go on to `max_tokens`."""
    names = ("fox", "hen", "bear", "owl", "frog", "bee", "cat", "duck")
    return [
        {
            "prompt": f"Once upon a time, there was a little {names[i % len(names)]} who",
            "max_tokens": max_tokens,
            "ignore_eos": True,
            "seed": i,
            "temperature": 0.0 if i % 3 == 0 else 1.0,
        }
        for i in range(count)
    ]


def expected(llm: LLM, asked: Sequence[dict[str, Any]]) -> list[tuple[list[int], str, str | None, str | None]]:
    """What one engine answers to the same."""
    params = [
        SamplingParams(
            max_new_tokens=body["max_tokens"],
            ignore_eos=body["ignore_eos"],
            seed=body["seed"],
            temperature=body["temperature"],
        )
        for body in asked
    ]
    outputs = llm.generate([body["prompt"] for body in asked], params, use_tqdm=False)
    return [(output.token_ids, output.text, str(output.finish_reason), None) for output in outputs]

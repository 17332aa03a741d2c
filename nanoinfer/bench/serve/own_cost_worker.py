"""The other side of `bench serve --own-cost`: an AsyncEngine in this process, whose streams are read here.

    python -m nanoinfer.bench.serve.own_cost_worker '{"model": "story", "threads": 1}'

It answers each line `{"prompts": [...], "new_tokens": N}` with `{"seconds": ..., "tokens": ..., "stall_s": ...}`: the time
from the first request to the end of the last answer, and the tokens of all answers.
"""

import asyncio
import gc
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch

from nanoinfer import LLM, AsyncEngine, SamplingParams
from nanoinfer.bench.serve.stalls import Stalls


async def serve_lines(engine: AsyncEngine, send: Any) -> None:
    """Answer lines of standard input until it ends."""
    gc.collect()
    gc.freeze()  # as in the server's client: collections look only at what is made from now on
    while line := await asyncio.to_thread(sys.stdin.readline):
        job = json.loads(line)
        send(await serve_prompts(engine, job["prompts"], job["new_tokens"]))


async def serve_prompts(engine: AsyncEngine, prompts: Sequence[str], new_tokens: int) -> dict[str, Any]:
    """Serve all at the same time, each by a reader of its own."""
    params = SamplingParams(max_new_tokens=new_tokens, temperature=0.0, ignore_eos=True)

    async def read(prompt: str) -> int:
        return sum([len(piece.token_ids) async for piece in engine.stream(prompt, params)])

    with Stalls() as stalls:
        began = time.perf_counter()
        counts = await asyncio.gather(*map(read, prompts))
        seconds = time.perf_counter() - began
    return {"seconds": seconds, "tokens": sum(counts), "stall_s": stalls.longest}


def main() -> None:
    """Load the model, say so, and serve."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # standard output has only answers

    def send(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    settings = json.loads(sys.argv[1])
    torch.set_num_threads(settings["threads"])
    llm = LLM(settings["model"])

    async def serve() -> None:
        async with AsyncEngine(llm) as engine:
            send({"ready": True})
            await serve_lines(engine, send)

    asyncio.run(serve())


if __name__ == "__main__":
    main()

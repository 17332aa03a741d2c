"""`python -m nanoinfer demo agent`: ten tool calls over HTTP, each with a prompt that begins with the one before."""

import argparse
import inspect
import json
import time
from dataclasses import replace
from typing import Any
from urllib.request import Request, urlopen

import nanoinfer
from nanoinfer.cli.demos import title
from nanoinfer.cli.options import load
from nanoinfer.cli.terminal import filled, styled, table, terminal_width
from nanoinfer.llm import make_engine, serve_in_background
from nanoinfer.requests.tokenizer import Tokenizer

ROUNDS = 10
SYSTEM_TOKENS, RESULT_TOKENS = 1500, 60  # less where the context is short
CALL_TOKENS = 40  # at most, with what the chat template puts around a call and its result
SYSTEM = (
    "You explain the Python package nanoinfer. To read about one of its classes, call the tool: answer with "
    '{"read": "NAME"} and nothing else. What you know about them already:'
)
QUESTION = "How does this package serve many requests at a time? Read what you need."
HEAD = ("round", "it reads", "prompt tokens", "from the cache", "computed", "first token with cache", "without")

Messages = list[dict[str, str]]


def agent(args: argparse.Namespace) -> int:
    """Let the model choose what to read, ten times, and ask a server without a radix cache the same. The exit code is 1 if
    the two answer differently."""
    llm = load(args, needs_text=True)
    assert llm.tokenizer is not None
    context = llm.config.max_context_len
    plain = make_engine(llm.model, replace(llm.config, disable_radix_cache=True))
    docs = {name: inspect.getdoc(getattr(nanoinfer, name)) or "" for name in nanoinfer.__all__}
    size = min(SYSTEM_TOKENS, context // 2)
    system = _cut(llm.tokenizer, "\n\n".join([SYSTEM, *(f"{name}: {doc}" for name, doc in docs.items())]), size)
    result_tokens = min(RESULT_TOKENS, (context - size) // ROUNDS - CALL_TOKENS)
    messages: Messages = [{"role": "system", "content": system}, {"role": "user", "content": QUESTION}]
    rows, sums, same = [], [0, 0, 0.0, 0.0], True
    with serve_in_background(llm, 0, "127.0.0.1") as cached, serve_in_background(plain, 0, "127.0.0.1") as uncached:
        for url in (cached.url, uncached.url):
            _ask(url, [{"role": "user", "content": QUESTION}], ["yes", "no"])  # first passes take longer
        title(f"Model {llm.model.name}: {ROUNDS} rounds of an agent, over a system prompt of {size:,} tokens\n")
        for number in range(1, ROUNDS + 1):
            choices = [json.dumps({"read": name}) for name in docs]
            call, usage, seconds = _ask(cached.url, messages, choices)
            other, _, seconds_without = _ask(uncached.url, messages, choices)
            same &= call == other
            name = json.loads(call)["read"]
            read = _cut(llm.tokenizer, docs.pop(name), result_tokens)
            messages += [{"role": "assistant", "content": call}, {"role": "user", "content": f"{name}: {read}"}]
            prompt, hits = usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
            sums = [*map(sum, zip(sums, (prompt, hits, seconds, seconds_without), strict=True))]
            times = (styled(f"{1e3 * seconds:.0f} ms", "green"), f"{1e3 * seconds_without:.0f} ms")
            rows.append((number, name, prompt, styled(hits, "green"), prompt - hits, *times))
    print(table(HEAD, rows, left=(1,)))
    found = f"{sums[1]:,} of {sums[0]:,} prompt tokens came from the cache ({sums[1] / sums[0]:.0%})"
    took = f"the {ROUNDS} first tokens took {sums[2]:.1f} s, and {sums[3]:.1f} s without it"
    print("\n" + filled(f"{found}, as usage.prompt_tokens_details.cached_tokens says; {took}.", terminal_width()))
    verdict = styled("equal", "green") if same else styled("DIFFERENT", "red")
    print(f"The calls with and without the cache: {verdict}")
    return 0 if same else 1


def _cut(tokenizer: Tokenizer, text: str, most: int) -> str:
    """The beginning of a text, of at most so many tokens."""
    return tokenizer.decode(tokenizer.encode(text, False)[:most])


def _ask(url: str, messages: Messages, choices: list[str]) -> tuple[str, dict[str, Any], float]:
    """Ask for one of the choices: what was chosen, the usage, and the seconds to the first token."""
    body = {
        "model": json.load(urlopen(f"{url}/v1/models"))["data"][0]["id"],
        "messages": messages,
        "guided_choice": choices,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    request = Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}, method="POST"
    )
    began, seconds, text, usage = time.perf_counter(), 0.0, "", dict[str, Any]()
    with urlopen(request) as response:
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            seconds = seconds or time.perf_counter() - began
            chunk = json.loads(line.removeprefix(b"data: "))
            if "error" in chunk:
                raise ValueError(f"demo: {chunk['error']['message']}")
            text += "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
            usage = chunk.get("usage") or usage
    return text, usage, seconds

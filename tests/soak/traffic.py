"""Mixed traffic against a server in a process of its own, and a SIGTERM at the end.

`python -m tests.soak.traffic --minutes 30`; an episode of the soak's kind `server` takes half a minute. Clients of all
kinds work side by side: whole answers and streams, several choices, JSON, clients that go in the middle, that read late,
that cut their request off, that ask for nonsense. Each request has one of these ends, and each is counted: answered,
refused (with a status that says why), ended with an error in its stream, or left by its client. Whatever else happens is a
fault, and the exit code is 1. Before the SIGTERM there is a lull, in which every slot must be back.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
WORDS = (
    "once",
    "upon",
    "a",
    "time",
    "there",
    "was",
    "little",
    "fox",
    "said",
    "hello",
    "to",
    "the",
    "old",
    "bear",
    "sea",
)
ALLOWED = {200, 400, 404, 429, 503, 504}
SECONDS_TO_WAIT = 120


class Traffic:
    """Clients of one server, and what happened to their requests."""

    def __init__(self, port: int, seed: int):
        self.port, self.rng = port, random.Random(seed)
        self.ends: Counter[str] = Counter()
        self.faults: list[str] = []
        self.is_ending = False
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    async def client(self) -> None:
        """One request after another, until the server ends."""
        while not self.is_ending:
            await self.goes_on.wait()
            try:
                await self.one_request()
            except ConnectionRefusedError:
                if not self.is_ending:
                    self.faults.append("connection refused")
                return
            except ConnectionError as error:
                self.ends["connection closed by the ending server"] += self.is_ending
                if not self.is_ending:
                    self.faults.append(f"{type(error).__name__}: {error}")

    async def one_request(self) -> None:
        """Send a random request, and behave as one of many kinds of clients."""
        rng = self.rng
        path, body = self.random_request()
        content = json.dumps(body).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\ncontent-type: application/json\r\n"
            writer.write(f"{head}content-length: {len(content)}\r\n\r\n".encode())
            how = rng.choices(["read", "go", "cut", "slow"], [80, 14, 3, 3])[0]
            if how == "cut":
                writer.write(content[: rng.randrange(len(content))])
                self.ends["cut by its client"] += 1
                return
            writer.write(content)
            if how == "go":
                with suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(rng.choice([1, 300, 3000])), rng.random() * 0.3)
                self.ends["left by its client"] += 1
                return
            if how == "slow":
                await asyncio.sleep(rng.random() * 3)
            answer = await asyncio.wait_for(reader.read(), SECONDS_TO_WAIT)
            self.note(answer, body)
        except TimeoutError:
            self.faults.append(f"no answer in {SECONDS_TO_WAIT} s: {path} {str(body)[:200]}")
        finally:
            writer.close()

    def random_request(self) -> tuple[str, dict[str, Any]]:
        rng = self.rng
        text = " ".join(rng.choices(WORDS, k=rng.choice([2, 8, 30])))
        body: dict[str, Any] = {"model": "story", "stream": rng.random() < 0.6}
        if rng.random() < 0.5:
            path, body["messages"] = "/v1/chat/completions", [{"role": "user", "content": text}]
        else:
            path, body["prompt"] = "/v1/completions", rng.choice([text, [text, text[:9]], [1, 50, 60]])
        body["max_tokens"] = rng.choice([1, 8, 40, 150])
        body["temperature"] = rng.choice([0, 0.8])
        body["n"] = rng.choice([1, 1, 1, 3])
        if rng.random() < 0.1:
            body["response_format"] = {"type": "json_schema", "json_schema": {"schema": {"enum": ["yes", "no"]}}}
        if rng.random() < 0.1:
            body |= rng.choice(
                [{"temperature": -1}, {"nonsense": 1}, {"model": "none"}, {"max_tokens": 10**6}, {"n": 0}]
            )
        return path, body

    def note(self, answer: bytes, body: dict[str, Any]) -> None:
        """Count how a request ended; whatever is no proper end is a fault."""
        head, _, rest = answer.partition(b"\r\n\r\n")
        if not answer:
            self.ends["closed without an answer while the server ended"] += 1
            if not self.is_ending:
                self.faults.append("closed without an answer")
            return
        status = int(head.split(b" ")[1])
        if status not in ALLOWED:
            self.faults.append(f"status {status}: {rest[:300]!r}")
        elif status != 200:
            self.ends[f"{status} {json.loads(rest)['error']['code'] or 'wrong field'}"] += 1
        elif not body["stream"]:
            self.ends["answered"] += 1
            prompt = body.get("prompt", "")
            prompts = 2 if isinstance(prompt, list) and isinstance(prompt[0], str) else 1
            if len(json.loads(rest)["choices"]) != body["n"] * prompts:
                self.faults.append(f"wrong number of choices: {rest[:300]!r}")
        elif b"data: [DONE]" not in rest:
            self.faults.append(f"a stream without an end: {rest[-300:]!r}")
        elif b'data: {"error"' in rest:
            self.ends["stream ended by an error"] += 1
        else:
            self.ends["streamed"] += 1


async def get(port: int, path: str, method: str = "GET") -> str:
    """The body of a simple answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n".encode())
    text = (await reader.read()).decode()
    writer.close()
    return text.partition("\r\n\r\n")[2]


async def metrics(port: int) -> dict[str, float]:
    """All metrics by their whole name with labels."""
    lines = [line for line in (await get(port, "/metrics")).splitlines() if line.startswith(("vllm:", "nanoinfer:"))]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


async def check_lull(traffic: Traffic) -> None:
    """Let all clients wait, and look whether every slot is back; then let them go on."""
    traffic.goes_on.clear()
    end = time.monotonic() + SECONDS_TO_WAIT
    while True:
        now = await metrics(traffic.port)
        slots = {name.partition('owner="')[2].rstrip('"}'): value for name, value in now.items() if ":slots" in name}
        busy = sum(value for name, value in now.items() if ":num_requests" in name)
        if not busy and not slots["requests"] and not slots["tree_protected"]:
            print(f"lull: slots {slots}")
            break
        if time.monotonic() > end:
            traffic.faults.append(f"slots are not back: {slots}, {busy} requests")
            break
        await asyncio.sleep(0.2)
    traffic.goes_on.set()
    await asyncio.sleep(1)


def resident_mib(pid: int) -> float:
    """The memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


async def run(minutes: float, clients: int, seed: int) -> bool:
    """True when there were no faults."""
    command = [sys.executable, "-m", "nanoinfer", "serve", "story", "--port", "0", "--max-total-tokens", "8192"]
    options = ["--max-queue", "64", "--request-timeout", "20", "--drain-timeout", "20"]
    log, path = tempfile.mkstemp(".log", "traffic-")
    process = subprocess.Popen([*command, *options], cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    port = int(process.stdout.readline().rpartition(":")[2])
    traffic, begun, seconds = Traffic(port, seed), time.monotonic(), minutes * 60
    tasks = [asyncio.create_task(traffic.client()) for _ in range(clients)]
    await asyncio.sleep(seconds / 10)
    early = resident_mib(process.pid)
    while time.monotonic() - begun < seconds:
        await asyncio.sleep(min(10, seconds / 10))
        now = await metrics(port)
        running = {name: value for name, value in now.items() if "num_requests" in name}
        text = (
            f"{time.monotonic() - begun:6.0f} s  {resident_mib(process.pid):.0f} MiB  {running}  {dict(traffic.ends)}"
        )
        print(text.replace('{model_name="story"}', ""), flush=True)
    late = resident_mib(process.pid)
    await check_lull(traffic)
    traffic.is_ending = True
    process.send_signal(signal.SIGTERM)
    ended = time.monotonic()
    await asyncio.wait_for(asyncio.gather(*tasks), SECONDS_TO_WAIT)
    code = await asyncio.to_thread(process.wait, SECONDS_TO_WAIT)
    print(f"ends: {sum(traffic.ends.values())} requests, {dict(traffic.ends.most_common())}")
    print(f"memory: {early:.0f} MiB after a tenth of the time, {late:.0f} MiB at the end")
    print(f"SIGTERM: exit code {code} after {time.monotonic() - ended:.1f} s")
    text = Path(path).read_text()
    if code != 0 or "Traceback" in text:
        traffic.faults.append(f"exit code {code}; see {path}")
    for fault in traffic.faults[:20]:
        print("FAULT", fault)
    print(f"faults: {len(traffic.faults)}")
    return not traffic.faults


def run_episode(seed: int) -> Counter[str]:
    """Half a minute of it."""
    assert asyncio.run(run(0.5, 24, seed)), "faults"
    return Counter({"servers": 1})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    sys.exit(0 if asyncio.run(run(args.minutes, args.clients, args.seed)) else 1)

"""Mixed traffic against a server in a process of its own, and a SIGTERM at the end.

`python -m tests.soak.traffic --minutes 30`; an episode of the soak's kind `server` takes half a minute. Clients of all
kinds work side by side: whole answers and streams, several choices, grammars, tools, thoughts, adapters that come and go,
deadlines that pass; clients that go in the middle, read late or nothing, cut their request off, ask for nonsense; pages
that watch, load balancers that ask for its health, and connections that are opened and dropped. random_requests.py has
what they ask for.

Each request has one of these ends, and each is counted: answered, refused (with a status that says why), ended by an
error in its stream, or left by its client. Equal questions have equal answers, and grammars are kept. Whatever else
happens is a fault, and the exit code is 1. There are two lulls, in which every slot must be back: one early, one
before the SIGTERM. Between them, the server's memory may not have grown by more than MAX_GROWTH_MIB.
"""

import argparse
import asyncio
import json
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from nanoinfer.model.loader import BUNDLED_ROOTS
from nanoinfer.model.lora.manager import bundled_adapter
from tests.soak.random_requests import (
    END_OF_THOUGHT,
    GUEST,
    OLD_TOKEN,
    RESIDENTS,
    TEMPLATE,
    TOOLS,
    WORDS,
    Answers,
    choices_of,
    random_request,
)

ROOT = Path(__file__).parents[2]
ALLOWED = {200, 400, 404, 429, 503, 504}
AT_ONCE = 50  # connections that are dropped one after the other
SECONDS_TO_WAIT = 120  # until a client takes the server for hung
EARLY = 0.2  # of the time, until the first lull
MAX_GROWTH_MIB = 48.0


def post_bytes(path: str, body: Any) -> tuple[bytes, bytes]:
    """Head and body of a POST."""
    content = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "host: 127.0.0.1", "connection: close", "content-type: application/json"]
    return "\r\n".join([*lines, f"content-length: {len(content)}", "", ""]).encode(), content


def parts_of(answer: bytes) -> tuple[int, bytes]:
    """Status and body of a whole answer."""
    head, _, rest = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), rest


async def ask(port: int, request: bytes) -> tuple[int, bytes]:
    """Send a request, and read until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        return parts_of(await reader.read())
    finally:
        writer.close()


async def get(port: int, path: str, method: str = "GET") -> tuple[int, bytes]:
    """A simple request."""
    return await ask(port, f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n".encode())


async def post(port: int, path: str, body: Any) -> tuple[int, bytes]:
    """A request with a body."""
    return await ask(port, b"".join(post_bytes(path, body)))


async def metrics(port: int) -> dict[str, float]:
    """All metrics by their whole name with labels."""
    text = (await get(port, "/metrics"))[1].decode()
    lines = [line for line in text.splitlines() if line.startswith(("vllm:", "nanoinfer:"))]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


class Traffic:
    """Clients of one server, those who come besides, and what happened to their requests; they stop at `is_ending`."""

    def __init__(self, port: int, seed: int):
        self.port, self.rng = port, random.Random(seed)
        self.ends: Counter[str] = Counter()
        self.faults: list[str] = []
        self.answers = Answers()
        self.is_ending = False
        self.slowest_health = 0.0  # seconds
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
        path, body, pattern = random_request(rng)
        head, content = post_bytes(path, body)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(head)
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
            self.note(answer, body, pattern)
        except TimeoutError:
            self.faults.append(f"no answer in {SECONDS_TO_WAIT} s: {path} {str(body)[:200]}")
        finally:
            writer.close()

    def note(self, answer: bytes, body: dict[str, object], pattern: str | None) -> None:
        """Count how a request ended; whatever is no proper end is a fault."""
        if not answer:
            self.ends["closed without an answer while the server ended"] += 1
            if not self.is_ending:
                self.faults.append("closed without an answer")
            return
        status, rest = parts_of(answer)
        if status not in ALLOWED:
            self.faults.append(f"status {status}: {rest[:300]!r}")
        elif status != 200:
            self.ends[f"{status} {json.loads(rest)['error']['code'] or 'wrong field'}"] += 1
        elif body["stream"] and b"data: [DONE]" not in rest:
            self.faults.append(f"a stream without an end: {rest[-300:]!r}")
        elif body["stream"] and b'data: {"error"' in rest:
            self.ends["stream ended by an error"] += 1
        else:
            self.ends["streamed" if body["stream"] else "answered"] += 1
            if fault := self.answers.fault(body, choices_of(rest, body), pattern):
                self.faults.append(f"{fault}; asked: {str(body)[:300]}")

    async def converse(self) -> None:
        """Go on from one stored response to the next, by its id, and ask /v1/messages in between; some answers are left."""
        previous, called, rng = None, list[str](), self.rng
        while not self.is_ending:
            await self.goes_on.wait()
            said, path = " ".join(rng.choices(WORDS, k=5)), rng.choice(["/v1/responses", "/v1/messages"])
            body: dict[str, Any] = {"model": "story", "stream": rng.random() < 0.5, "previous_response_id": previous}
            if path == "/v1/responses":
                body |= {
                    "input": said,
                    "max_output_tokens": 40,
                    "tools": [{"type": "function", **each} for each in TOOLS],
                }
                body["tool_choice"] = rng.choice(["auto", "required"])
                if called:
                    body["input"] = [
                        {"type": "function_call_output", "call_id": each, "output": said} for each in called
                    ]
            else:
                body |= {"max_tokens": 40, "messages": [{"role": "user", "content": said}]}
                body["tools"] = [{"name": each["name"], "input_schema": each["parameters"]} for each in TOOLS]
                body["tool_choice"] = {"type": rng.choice(["auto", "any"])}
            leaves = rng.random() < 0.2
            try:
                seconds = rng.random() / 5 if leaves else SECONDS_TO_WAIT
                status, rest = await asyncio.wait_for(post(self.port, path, body), seconds)
            except TimeoutError:
                if not leaves:
                    self.faults.append(f"no answer in {SECONDS_TO_WAIT} s: {path}")
                self.ends["left by its client"] += 1
            except (ConnectionError, IndexError):  # closed without an answer
                if not self.is_ending:
                    self.faults.append(f"connection closed: {path}")
            else:
                self.ends[f"{path} {status}"] += 1
                ended = re.search(
                    rb'"status":"(completed|incomplete|failed)"|"type":"(message_stop|message|error)"', rest
                )
                if status not in ALLOWED or (status == 200 and ended is None):
                    self.faults.append(f"{path} {status}: {rest[-300:]!r}")
                found = re.search(rb'"id":"(resp_\w+)"', rest)
                previous = found[1].decode() if found else previous if status in (200, 429, 503, 504) else None
                calls = set(re.findall(rb'"call_id":"(\w+)"', rest)) if found else ()
                called = sorted(map(bytes.decode, calls))

    # --- those who come besides: pages, load balancers, and who means no good ----------------------------------------

    async def drop_connections(self) -> None:
        """Open and drop connections, many at once: silent, in the middle of a head, or by a reset."""
        while not self.is_ending:
            with suppress(ConnectionError):
                for _ in range(AT_ONCE):
                    _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                    how = self.rng.randrange(3)
                    if how == 1:
                        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-")
                    if how == 2:
                        sock = writer.get_extra_info("socket")
                        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    writer.close()
                    self.ends["connections opened and dropped"] += 1
            await asyncio.sleep(1)

    async def watch(self) -> None:
        """Watch as the live page does, leave, and come again. At the end it must be told."""
        while not self.is_ending:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=2**24)  # news are long lines
            writer.write(b"GET /live/events HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
            leaves_at, seen = time.monotonic() + self.rng.uniform(1, 20), 0
            with suppress(ConnectionError):
                while time.monotonic() < leaves_at or not seen or self.is_ending:
                    line = await asyncio.wait_for(reader.readline(), SECONDS_TO_WAIT)
                    seen += line == b"event: news\n"
                    if not line or line == b"event: end\n":
                        self.ends["pages that were told of the end"] += bool(line)
                        break
            self.ends["news that pages have seen"] += seen
            writer.close()

    async def check_health(self) -> None:
        """Ask as a load balancer does."""
        while not self.is_ending:
            begun = time.monotonic()
            with suppress(ConnectionError):
                status, body = await asyncio.wait_for(get(self.port, "/health", "HEAD"), SECONDS_TO_WAIT)
                self.slowest_health = max(self.slowest_health, time.monotonic() - begun)
                self.ends[f"health: {status}"] += 1
                if not self.is_ending and (status, body) != (200, b""):
                    self.faults.append(f"health: {status} {body!r}")
            await asyncio.sleep(0.5)

    async def swap_adapters(self) -> None:
        """Load and unload an adapter, again and again, from one folder and from another."""
        while not self.is_ending:
            folder = self.rng.choice(RESIDENTS)
            for path, body in (
                ("/v1/load_lora_adapter", {"lora_name": GUEST, "lora_path": folder}),
                ("/v1/unload_lora_adapter", {"lora_name": GUEST}),
            ):
                with suppress(ConnectionError):
                    status, answer = await asyncio.wait_for(post(self.port, path, body), SECONDS_TO_WAIT)
                    self.ends[f"{path.split('/')[-1]}: {status}"] += 1
                    if status not in (200, 400, 404, 409, 503):
                        self.faults.append(f"{path}: {status} {answer[:300]!r}")
                await asyncio.sleep(self.rng.uniform(0.1, 1.5))

    async def read_nothing(self) -> None:
        """Ask for much, read nothing for a while, then all that is there or nothing at all."""
        body = {"model": "story", "prompt": "Once", "max_tokens": 700, "n": 6, "stream": True, "ignore_eos": True}
        body |= {"logprobs": 5, "return_token_ids": True, "temperature": 0.8}
        while not self.is_ending:
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.setblocking(False)
            with suppress(ConnectionError, TimeoutError):
                await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
                reader, writer = await asyncio.open_connection(sock=sock, limit=2048)
                writer.write(b"".join(post_bytes("/v1/completions", body)))
                await asyncio.sleep(self.rng.uniform(2, 20))
                if self.rng.random() < 0.5:
                    status, rest = parts_of(await asyncio.wait_for(reader.read(), SECONDS_TO_WAIT))
                    self.ends[f"read late: {status}"] += 1
                    if status == 200 and b"[DONE]" not in rest and not self.is_ending:
                        self.faults.append(f"a late reader's stream has no end: {rest[-200:]!r}")
                else:
                    self.ends["read nothing"] += 1
                writer.close()
            sock.close()


async def lull(traffic: Traffic, pid: int) -> float:
    """Let all clients wait, and look whether every slot is back; then let them go on. The server's memory in MiB."""
    traffic.goes_on.clear()
    end = time.monotonic() + SECONDS_TO_WAIT
    while True:
        now = await metrics(traffic.port)
        slots = {name.partition('owner="')[2].rstrip('"}'): value for name, value in now.items() if ":slots" in name}
        busy = sum(value for name, value in now.items() if ":num_requests" in name)
        if not busy and not slots["requests"] and not slots["tree_protected"]:
            print(f"lull: slots {slots}", flush=True)
            break
        if time.monotonic() > end:
            traffic.faults.append(f"slots are not back: {slots}, {busy} requests")
            break
        await asyncio.sleep(0.2)
    resident = resident_mib(pid)
    traffic.goes_on.set()
    await asyncio.sleep(1)
    return resident


def resident_mib(pid: int) -> float:
    """The memory of a process."""
    return psutil.Process(pid).memory_info().rss / 2**20


def start(folder: Path) -> tuple["subprocess.Popen[str]", int]:
    """A server, and its port. `folder` gets its log, its model and the adapters that can be loaded."""
    story = folder / "story"
    shutil.copytree(BUNDLED_ROOTS[0] / "story", story)
    (story / "chat_template.jinja").write_text(TEMPLATE)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (story / name).write_text((story / name).read_text().replace(OLD_TOKEN, END_OF_THOUGHT))
    for name in RESIDENTS:
        shutil.copytree(str(bundled_adapter(name)), folder / "adapters" / name)
    command = [sys.executable, "-m", "nanoinfer", "serve", str(story), "--port", "0", "--max-total-tokens", "8192"]
    options = ["--max-queue", "64", "--request-timeout", "10", "--drain-timeout", "20"]
    options += ["--served-model-name", "story", "--store-responses", "20", "--adapter-root", str(folder / "adapters")]
    options += [word for name in RESIDENTS for word in ("--adapter", f"{name}={name}")]
    log = (folder / "log").open("w")
    process = subprocess.Popen([*command, *options], cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    process.stdout.readline()  # that it loads
    return process, int(process.stdout.readline().partition(" on http://127.0.0.1:")[2].split()[0])


async def run(minutes: float, clients: int, seed: int) -> bool:
    """True when there were no faults."""
    folder = Path(tempfile.mkdtemp(prefix="traffic-"))
    process, port = start(folder)
    traffic, begun, seconds = Traffic(port, seed), time.monotonic(), minutes * 60
    works = (
        [traffic.client() for _ in range(clients)]
        + [traffic.converse() for _ in range(4)]
        + [traffic.watch() for _ in range(3)]
    )
    works += [traffic.check_health(), traffic.swap_adapters(), traffic.drop_connections(), traffic.read_nothing()]
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.sleep(EARLY * seconds)
        early = await lull(traffic, process.pid)
        while time.monotonic() - begun < seconds:
            await asyncio.sleep(min(10, seconds / 10))
            now = await metrics(port)
            running = [value for name, value in now.items() if "num_requests" in name]
            text = f"{time.monotonic() - begun:6.0f} s  {resident_mib(process.pid):.0f} MiB  requests {running}"
            print(f"{text}  {sum(traffic.ends.values())} ends, {len(traffic.faults)} faults", flush=True)
        late = await lull(traffic, process.pid)
        traffic.is_ending = True
        process.send_signal(signal.SIGTERM)
        ended = time.monotonic()
        await asyncio.wait_for(asyncio.gather(*tasks), SECONDS_TO_WAIT)
        code = await asyncio.to_thread(process.wait, SECONDS_TO_WAIT)
    finally:
        process.kill()
    if code != 0 or "Traceback" in (folder / "log").read_text():
        traffic.faults.append(f"exit code {code}; see {folder / 'log'}")
    if late - early > MAX_GROWTH_MIB:
        traffic.faults.append(f"memory has grown by {late - early:.0f} MiB: more than {MAX_GROWTH_MIB:g}")
    answers = traffic.answers
    print(f"ends: {dict(traffic.ends.most_common())}")
    print(f"{answers.compared} answers compared, {answers.matched} matched with a grammar")
    print(f"slowest HEAD /health: {traffic.slowest_health:.2f} s")
    print(f"memory: {early:.0f} MiB in the first lull, {late:.0f} MiB in the last one")
    print(f"SIGTERM: exit code {code} after {time.monotonic() - ended:.1f} s")
    for fault in traffic.faults[:20]:
        print("FAULT", fault)
    print(f"faults: {len(traffic.faults)}")
    if not traffic.faults:
        shutil.rmtree(folder)
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

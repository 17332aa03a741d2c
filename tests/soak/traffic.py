"""Mixed traffic against a server in a process of its own, and a SIGTERM at the end.

`python -m tests.soak.traffic --minutes 30`; an episode of the soak's kind `server` takes half a minute. Clients of all
kinds work side by side: whole answers and streams, several choices, grammars, adapters that come and go, deadlines that
pass; clients that go in the middle, read late or nothing, cut their request off, ask for nonsense; pages that watch, load
balancers that ask for its health, and 10,000 connections that are opened and dropped (wishes.py, guests.py).

Each request has one of these ends, and each is counted: answered, refused (with a status that says why), ended by an
error in its stream, or left by its client. Equal questions have equal answers, and grammars are kept. Whatever else
happens is a fault, and the exit code is 1. There are two lulls, in which every slot must be back: one early, one
before the SIGTERM. Between them, the server's memory may not have grown by more than `--max-growth-mib`.
"""

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from nanoinfer.adapters.manager import bundled_adapter
from tests.soak.guests import Guests
from tests.soak.wire import choices_of, metrics, parts_of, post_bytes
from tests.soak.wishes import RESIDENTS, Answers, random_wish

ROOT = Path(__file__).parents[2]
ALLOWED = {200, 400, 404, 429, 503, 504}
SECONDS_TO_WAIT = 120
EARLY = 0.2  # of the time, until the first lull
MAX_GROWTH_MIB = 48.0


class Traffic:
    """Clients of one server, and what happened to their requests."""

    def __init__(self, port: int, seed: int):
        self.port, self.rng = port, random.Random(seed)
        self.ends: Counter[str] = Counter()
        self.faults: list[str] = []
        self.answers = Answers()
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
        path, body, pattern = random_wish(rng)
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
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def start(folder: Path) -> tuple["subprocess.Popen[str]", int]:
    """A server, and its port. `folder` gets its log and the adapters that can be loaded."""
    for name in RESIDENTS:
        shutil.copytree(str(bundled_adapter(name)), folder / "adapters" / name)
    command = [sys.executable, "-m", "nanoinfer", "serve", "story", "--port", "0", "--max-total-tokens", "8192"]
    options = ["--max-queue", "64", "--request-timeout", "10", "--drain-timeout", "20"]
    options += ["--adapter-root", str(folder / "adapters")]
    options += [word for name in RESIDENTS for word in ("--adapter", f"{name}={name}")]
    log = (folder / "log").open("w")
    process = subprocess.Popen([*command, *options], cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    process.stdout.readline()  # that it loads
    return process, int(process.stdout.readline().partition(" on http://127.0.0.1:")[2].split()[0])


async def run(
    minutes: float, clients: int, connections: int, seed: int, max_growth_mib: float = MAX_GROWTH_MIB
) -> bool:
    """True when there were no faults."""
    folder = Path(tempfile.mkdtemp(prefix="traffic-"))
    process, port = start(folder)
    traffic, begun, seconds = Traffic(port, seed), time.monotonic(), minutes * 60
    guests = Guests(port, random.Random(seed + 1), traffic.ends, traffic.faults)
    works = [traffic.client() for _ in range(clients)] + [guests.watch() for _ in range(3)]
    works += [guests.check_health(), guests.swap_adapters(), guests.drop_connections(connections, 0.9 * seconds)]
    tasks = [asyncio.create_task(work) for work in works]
    reader = asyncio.create_task(guests.read_nothing())
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
        traffic.is_ending = guests.is_ending = True
        process.send_signal(signal.SIGTERM)
        ended = time.monotonic()
        await asyncio.wait_for(asyncio.gather(*tasks, reader), SECONDS_TO_WAIT)
        code = await asyncio.to_thread(process.wait, SECONDS_TO_WAIT)
    finally:
        process.kill()
    if code != 0 or "Traceback" in (folder / "log").read_text():
        traffic.faults.append(f"exit code {code}; see {folder / 'log'}")
    if late - early > max_growth_mib:
        traffic.faults.append(f"memory has grown by {late - early:.0f} MiB: more than {max_growth_mib:g}")
    answers = traffic.answers
    print(f"ends: {dict(traffic.ends.most_common())}")
    print(f"{answers.compared} answers compared, {answers.matched} matched with a grammar")
    print(f"slowest HEAD /health: {guests.slowest_health:.2f} s")
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
    assert asyncio.run(run(0.5, 24, 500, seed)), "faults"
    return Counter({"servers": 1})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--connections", type=int, default=10_000, help="opened and dropped in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-growth-mib", type=float, default=MAX_GROWTH_MIB, help="between the two lulls")
    args = parser.parse_args()
    is_well = asyncio.run(run(args.minutes, args.clients, args.connections, args.seed, args.max_growth_mib))
    sys.exit(0 if is_well else 1)

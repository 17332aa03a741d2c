"""Those who use a server that is soaked, besides the clients that ask: pages, load balancers, and who means no good."""

import asyncio
import random
import socket
import struct
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

from tests.soak.wire import get, parts_of, post, post_bytes
from tests.soak.wishes import GUEST, RESIDENTS

AT_ONCE = 50  # connections
LONGEST_EVENT = 16 << 20  # bytes; the first one has all that the engine holds
WAITS = 120  # seconds, until a client takes the server for hung


@dataclass
class Guests:
    """`ends`: what came of each visit. `faults`: what must not be. `slowest_health`: seconds. They stop at `is_ending`."""

    port: int
    rng: random.Random
    ends: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    is_ending: bool = False
    slowest_health: float = 0.0

    async def drop_connections(self, count: int, seconds: float) -> None:
        """Open and drop so many connections, spread over the time: silent, in the middle of a head, or by a reset."""
        left = count
        while left and not self.is_ending:
            writers = [(await asyncio.open_connection("127.0.0.1", self.port))[1] for _ in range(min(AT_ONCE, left))]
            for writer in writers:
                how = self.rng.randrange(3)
                if how == 1:
                    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-")
                if how == 2:
                    sock = writer.get_extra_info("socket")
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.close()
            left -= len(writers)
            self.ends["connections opened and dropped"] += len(writers)
            await asyncio.sleep(seconds * AT_ONCE / count)

    async def watch(self) -> None:
        """Watch as the live page does, leave, and come again. At the end it must be told."""
        while not self.is_ending:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=LONGEST_EVENT)
            writer.write(b"GET /live/events HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
            leaves_at, seen = time.monotonic() + self.rng.uniform(1, 20), 0
            with suppress(ConnectionError):
                while time.monotonic() < leaves_at or not seen or self.is_ending:
                    line = await asyncio.wait_for(reader.readline(), WAITS)
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
                status, body = await asyncio.wait_for(get(self.port, "/health", "HEAD"), WAITS)
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
                    status, answer = await asyncio.wait_for(post(self.port, path, body), WAITS)
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
                    status, rest = parts_of(await asyncio.wait_for(reader.read(), WAITS))
                    self.ends[f"read late: {status}"] += 1
                    if status == 200 and b"[DONE]" not in rest and not self.is_ending:
                        self.faults.append(f"a late reader's stream has no end: {rest[-200:]!r}")
                else:
                    self.ends["read nothing"] += 1
                writer.close()
            sock.close()

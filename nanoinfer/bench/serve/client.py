"""The client of servers: it stores packets with the time at which they came, and reads nothing while the clock runs: client
and server share the cores, so what the client does is taken from what it measures. The answers are read afterwards."""

import asyncio
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Packets = Sequence[tuple[float, bytes]]  # when they came, and what was in them
BLANK_LINE = re.compile(rb"\r\n\r\n|\n\n")


@dataclass
class Exchange:
    """A request and what came for it. `due`: when it was to be sent; a client that is late makes no server look faster.

    `ended`: when the answer was there; None while it is not. `failure`: what went wrong with the connection.
    """

    due: float
    packets: list[tuple[float, bytes]] = field(default_factory=list)
    ended: float | None = None
    failure: str | None = None


def as_request(path: str, body: Mapping[str, Any]) -> bytes:
    """A POST as it goes over the wire. The answer ends with its connection."""
    content = json.dumps(body).encode()
    head = [f"POST {path} HTTP/1.1", "host: 127.0.0.1", "content-type: application/json", "connection: close"]
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
        exchange.failure = str(error) or type(error).__name__


@dataclass
class Answer:
    """`times`: when each piece of text came. `token_ids`: where the server sends them. `tokens` and `cached_tokens`: as the
    server counts them; None: it does not.

    `has_reason`, `is_done`: there was a finish reason, and `[DONE]`. `error`: what the server says is wrong.
    """

    status: int = 0
    times: list[float] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    has_reason: bool = False
    is_done: bool = False
    error: str | None = None

    @property
    def output_tokens(self) -> int:
        """How many tokens it has. A server that does not count them is taken to send one per piece."""
        return len(self.times) if self.tokens is None else self.tokens


def read_answer(packets: Packets) -> Answer:
    """The answer that these packets hold, as far as it came. What is malformed is its `error`."""
    answer, rest, body, head = Answer(), bytearray(), b"", b""
    try:
        for at, data in packets:
            rest += data
            if not head:
                head, blank, after = bytes(rest).partition(b"\r\n\r\n")
                if not blank:
                    head = b""
                    continue
                rest = bytearray(after)
                answer.status = int(head.split(b" ", 2)[1])
            if b"transfer-encoding: chunked" in head.lower():
                body += _whole_chunks(rest)
            else:
                body, rest = body + rest, bytearray()
            if answer.status == 200:
                *events, body = BLANK_LINE.split(body)
                for event in events:
                    _take(answer, at, event.decode())
        if packets and answer.status != 200:
            answer.error = _message(body) if head else "the connection was closed before the headers"
    except (ValueError, IndexError) as error:
        answer.error = f"not understood: {error}"
    return answer


def _whole_chunks(rest: bytearray) -> bytes:
    """Takes what is complete out of a chunked body."""
    body = b""
    while (end := rest.find(b"\r\n")) >= 0:
        size = int(rest[:end].split(b";")[0], 16)
        if len(rest) < end + 4 + size:
            break
        body += rest[end + 2 : end + 2 + size]
        del rest[: end + 4 + size]
    return body


def _take(answer: Answer, at: float, event: str) -> None:
    """Add one event to an answer."""
    data = "\n".join(line[5:].removeprefix(" ") for line in event.splitlines() if line.startswith("data:"))
    if data == "[DONE]":
        answer.is_done = True
    if not data or data == "[DONE]":
        return
    content: Any = json.loads(data)
    if not isinstance(content, dict) or "error" in content:
        answer.error = _message(data.encode())
        return
    for choice in content.get("choices") or ():
        answer.token_ids += choice.get("token_ids") or ()
        if choice.get("text") or choice.get("token_ids"):
            answer.times.append(at)
        if choice.get("finish_reason"):
            answer.has_reason = True
    if usage := content.get("usage"):
        answer.tokens, answer.prompt_tokens = usage.get("completion_tokens"), usage.get("prompt_tokens")
        answer.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")


def _message(body: bytes) -> str:
    """The message of an error in OpenAI's shape, or the beginning of whatever else it is."""
    try:
        error = json.loads(body)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace")

"""HTTP for clients of a server that is soaked: bytes, and what is in them."""

import asyncio
import json
from typing import Any


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


def choices_of(rest: bytes, body: dict[str, Any]) -> list[tuple[str, str | None]]:
    """Text and finish reason of each choice of an answer, whole or streamed. ValueError if it is neither."""
    if not body.get("stream"):
        found = json.loads(rest)["choices"]
        return [
            (each["message"]["content"] if "message" in each else each["text"], each["finish_reason"]) for each in found
        ]
    texts, reasons = dict[int, str](), dict[int, str]()
    for event in _unchunked(rest).decode().split("\n\n")[:-1]:
        if event == "data: [DONE]":
            break
        for each in json.loads(event.removeprefix("data: "))["choices"]:
            new = each["delta"].get("content") if "delta" in each else each["text"]
            texts[each["index"]] = texts.get(each["index"], "") + (new or "")
            if each["finish_reason"]:
                reasons[each["index"]] = each["finish_reason"]
    return [(texts[i], reasons.get(i)) for i in sorted(texts)]


def _unchunked(rest: bytes) -> bytes:
    parts = []
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        parts.append(rest[: int(size, 16)])
        rest = rest[int(size, 16) + 2 :]
    return b"".join(parts)

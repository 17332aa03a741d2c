"""Answer: what a server sent for one request, read from the packets after the measurement, so that the client only stores
them while the clock runs."""

import json
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

Packets = Sequence[tuple[float, bytes]]  # when they came, and what was in them
BLANK_LINE = re.compile(rb"\r\n\r\n|\n\n|\r\r")


@dataclass
class Answer:
    """`times`: when each piece of text came. `tokens` and `cached_tokens`: as the server counts them; None: it does not.

    `has_reason`, `is_done`: there was a finish reason, and `[DONE]`. `error`: what the server says is wrong.
    """

    status: int = 0
    times: list[float] = field(default_factory=list)
    tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    has_reason: bool = False
    is_done: bool = False
    retry_after_s: float | None = None
    error: str | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it ended as it must."""
        return self.status == 200 and self.has_reason and self.is_done and self.error is None

    @property
    def output_tokens(self) -> int:
        """How many tokens it has. A server that does not count them is taken to send one per piece."""
        return len(self.times) if self.tokens is None else self.tokens


def split_head(data: bytes) -> tuple[int, dict[str, str], int] | None:
    """Status, headers with names in lower case, and where the body begins; None if the head is not there yet.

    ValueError if this is no HTTP."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return None
    first, *lines = data[:end].decode("latin-1").split("\r\n")
    words = first.split(" ", 2)
    if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
        raise ValueError(f"{first!r} is not the first line of an HTTP answer")
    pairs = (line.partition(":") for line in lines)
    return int(words[1]), {name.strip().lower(): value.strip() for name, _, value in pairs}, end + 4


def read_answer(packets: Packets) -> Answer:
    """The answer that these packets hold, as far as it came. What is malformed is its `error`."""
    raw = b"".join(data for _, data in packets)
    try:
        head = split_head(raw)
        if head is None:
            return Answer(error="the connection was closed before the headers" if raw else None)
        status, headers, start = head
        chunks = _chunks(raw, start) if headers.get("transfer-encoding") == "chunked" else [(raw[start:], len(raw))]
        answer = Answer(status)
        if status != 200:
            answer.error = _message(b"".join(data for data, _ in chunks))
            wait = headers.get("retry-after", "")
            answer.retry_after_s = float(wait) if wait.isdigit() else None
        else:
            for time, event in _events(chunks, packets):
                _take(answer, time, event)
    except ValueError as error:
        return Answer(error=f"not understood: {error}")
    return answer


def _chunks(raw: bytes, start: int) -> list[tuple[bytes, int]]:
    """What each chunk of a body has, and where in `raw` it ends. The last one may be incomplete."""
    found = []
    while (line_end := raw.find(b"\r\n", start)) >= 0:
        size = int(raw[start:line_end].split(b";")[0], 16)
        if not size:
            break
        data = raw[line_end + 2 : line_end + 2 + size]
        found.append((data, line_end + 2 + len(data)))
        start = line_end + 2 + size + 2
    return found


def _events(chunks: Sequence[tuple[bytes, int]], packets: Packets) -> Iterator[tuple[float, str]]:
    """The data of each event of a stream, with the time of the packet in which the event ended."""
    body = b"".join(data for data, _ in chunks)
    ends_in_body = list(accumulate(len(data) for data, _ in chunks))
    ends_of_packets = list(accumulate(len(data) for _, data in packets))
    start = 0
    for blank in BLANK_LINE.finditer(body):
        text, start = body[start : blank.start()].decode(), blank.end()
        chunk = bisect_left(ends_in_body, start)
        place = chunks[chunk][1] - (ends_in_body[chunk] - start)
        data = [line[5:].removeprefix(" ") for line in text.splitlines() if line.startswith("data:")]
        if data:
            yield packets[bisect_left(ends_of_packets, place)][0], "\n".join(data)


def _take(answer: Answer, time: float, data: str) -> None:
    """Add one event to an answer."""
    if data == "[DONE]":
        answer.is_done = True
        return
    event: Any = json.loads(data)
    if not isinstance(event, dict) or "error" in event:
        answer.error = _message(data.encode())
        return
    for choice in event.get("choices") or ():
        if choice.get("text") or (choice.get("delta") or {}).get("content"):
            answer.times.append(time)
        if choice.get("finish_reason"):
            answer.has_reason = True
    if usage := event.get("usage"):
        answer.tokens, answer.prompt_tokens = usage.get("completion_tokens"), usage.get("prompt_tokens")
        answer.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")


def _message(body: bytes) -> str:
    """The message of an error in OpenAI's shape, or the beginning of whatever else it is."""
    try:
        error = json.loads(body)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace")

"""A server for the tests of `bench serve`, without a model: it answers as it must, or has the trouble that it is told to.

`--trouble`: `start` (it never serves), `die` (at a request), `500`, `429`, `error` (in the middle of a stream), `cut` (the
connection, in the middle), `short` (a token is missing), `endless` (no finish reason), `hang` (no answer). `--after`: so
many requests are answered before the trouble begins. `--every`: one of so many requests has it.
"""

import argparse
import asyncio
import json
import os
import sys
from typing import Any

STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(content: Any) -> bytes:
    """An event as a chunk of a body."""
    data = f"data: {json.dumps(content)}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(choices: list[Any], **more: Any) -> bytes:
    """An event with these choices."""
    return chunk({"choices": choices, **more})


def plain(status: int, body: bytes) -> bytes:
    """An answer that is not a stream."""
    lines = [f"HTTP/1.1 {status} X", f"content-length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


class Server:
    """Answers requests. `open_now` and `most_open`: unanswered requests. `prompts`: those that came, in order."""

    def __init__(self, trouble: str = "", after: int = 0, every: int = 1):
        self.trouble, self.after, self.every, self.served = trouble, after, every, 0
        self.open_now, self.most_open, self.prompts = 0, 0, list[str]()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one request."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            lengths = [line.split(":")[1] for line in head.split("\r\n") if line.startswith("content-length:")]
            if not lengths:
                writer.write(plain(200, b"ok"))
                return
            body = json.loads(await reader.readexactly(int(lengths[0])))
            self.prompts.append(body["prompt"])
            self.open_now += 1
            self.most_open = max(self.most_open, self.open_now)
            try:
                await self.answer(writer, body["max_tokens"])
            finally:
                self.open_now -= 1
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def answer(self, writer: asyncio.StreamWriter, tokens: int) -> None:
        """Answer a request."""
        self.served += 1
        is_troubled = self.served > self.after and self.served % self.every == 0
        trouble = self.trouble if is_troubled else ""
        if trouble == "die":
            print("first line\nthe last words", file=sys.stderr, flush=True)
            os._exit(7)
        if trouble == "hang":
            await asyncio.Event().wait()
        if trouble == "500":
            writer.write(plain(500, b'{"error": {"message": "no room"}}'))
            return
        if trouble == "429":
            writer.write(plain(429, b'{"error": {"message": "too many"}}'))
            return
        writer.write(STREAM)
        for i in range(tokens - (trouble == "short")):
            await writer.drain()
            await asyncio.sleep(0)
            if i and trouble == "error":
                writer.write(chunk({"error": {"message": "a step failed"}}))
                break
            if i and trouble == "cut":
                return
            writer.write(event([{"index": 0, "text": f" {i}", "finish_reason": None}]))
        if trouble != "endless":
            writer.write(event([{"index": 0, "text": "", "finish_reason": "length"}]))
        usage = {"prompt_tokens": 9, "completion_tokens": tokens - (trouble == "short")}
        writer.write(event([], usage={**usage, "prompt_tokens_details": {"cached_tokens": 4}}))
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")


async def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--trouble", default="")
    parser.add_argument("--after", type=int, default=0)
    parser.add_argument("--every", type=int, default=1)
    args = parser.parse_known_args()[0]
    if args.trouble == "start":
        sys.exit("cannot read the model\nis there one?")
    server = await asyncio.start_server(Server(args.trouble, args.after, args.every).connected, "127.0.0.1", args.port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())

"""A server without a model: it answers at once with as many pieces as it is asked for. What a client sees of it is the
client's own cost, and that of the connection.

    python null_server.py --port 8000

It needs only Python's standard library.
"""

import argparse
import asyncio
import json
from typing import Any


def chunk(*events: Any) -> bytes:
    """Events as one chunk of a body."""
    data = "".join(f"data: {json.dumps(event)}\n\n" for event in events).encode()
    return b"%x\r\n%b\r\n" % (len(data), data)


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
ABOUT = {"id": "null", "object": "text_completion", "created": 0, "model": "null", "usage": None}
PIECE = chunk({**ABOUT, "choices": [{"index": 0, "text": " word", "logprobs": None, "finish_reason": None}]})
LAST = {**ABOUT, "choices": [{"index": 0, "text": "", "finish_reason": "length"}]}
DONE = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


async def serve_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer a request."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        lengths = [line.split(":")[1] for line in head.split("\r\n") if line.startswith("content-length:")]
        if not lengths:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
            return
        tokens = json.loads(await reader.readexactly(int(lengths[0])))["max_tokens"]
        writer.write(HEAD)
        for _ in range(tokens):
            writer.write(PIECE)
            await asyncio.sleep(0)  # the others' turn, as when a step gives one token to each
        writer.write(chunk(LAST, {"choices": [], "usage": {"prompt_tokens": 0, "completion_tokens": tokens}}) + DONE)
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description="Answers without a model.")
    parser.add_argument("--port", type=int, default=8000)
    server = await asyncio.start_server(serve_connection, "127.0.0.1", parser.parse_known_args()[0].port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())

"""ServerThread: a server in a thread of its own, for notebooks and for programs that have something else to do."""

import asyncio
import contextlib
import html
import socket
import threading
import time
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, TypeVar

from fastapi import FastAPI

from nanoinfer.server.run import Server, listening_socket, make_server
from nanoinfer.server.service import Service

T = TypeVar("T")


class ServerThread:
    """`with ServerThread(make_app("story")) as server:` serves while the block runs, on a free port of this machine.

    `app`: what `make_app` returned. `port`: 0 takes a free one. `url` and `port` say where it can be reached; `service` is
    what its routes share, with the engine in it.
    """

    def __init__(self, app: FastAPI, port: int = 0, host: str = "127.0.0.1"):
        if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= 65535:
            raise ValueError(f"port={port!r}: must be an integer in 0..65535")
        self.service: Service = app.state.service
        self._host, self._port = host, port
        self._server: Server = make_server(app, host, port)
        self._sock: socket.socket | None = None
        self._url: str | None = None
        self._thread = threading.Thread(target=self._run, name="nanoinfer-server", daemon=True)
        self._running: asyncio.AbstractEventLoop | None = None
        self._failure: BaseException | None = None

    def start(self) -> "ServerThread":
        """Serve, and return when connections are accepted. RuntimeError if that fails, for example on a port in use."""
        try:
            self._sock = listening_socket(self._host, self._port)
        except OSError as error:
            message = f"host={self._host!r}, port={self._port}: {error.strerror}"
            raise RuntimeError(f"the server could not start: {message}") from error
        self._thread.start()
        while not self._server.started:
            if not self._thread.is_alive():
                raise RuntimeError("the server could not start") from self._failure
            time.sleep(0.002)
        self._url = self._server.address
        return self

    @property
    def url(self) -> str:
        """Such as `http://127.0.0.1:8000`. OpenAI's clients want it with `/v1` behind it."""
        if self._url is None:
            raise RuntimeError("the server has not started")
        return self._url

    @property
    def port(self) -> int:
        """The port at which it listens."""
        return int(self.url.rpartition(":")[2])

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the server's event loop, and return or raise what it does. RuntimeError without a server."""
        if self._running is None or not self._thread.is_alive():
            coroutine.close()
            raise RuntimeError("the server is not running")
        return asyncio.run_coroutine_threadsafe(coroutine, self._running).result()

    def end(self) -> None:
        """What SIGTERM does to the command: serve what was accepted, and refuse newcomers. Once more: do not wait.

        Does nothing when the server has ended: it may do so between two calls.
        """
        if self._running is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._running.call_soon_threadsafe(self._server.end)

    def stop(self) -> None:
        """End it as SIGTERM does the command, and wait until it has: requests that it has accepted are served first, for at
        most `drain_timeout_s`. Called again meanwhile, or after Ctrl-C, it waits for none of them."""
        self.end()
        self.wait()

    def __repr__(self) -> str:
        if self._url is None or not self._thread.is_alive():
            return "<a server that does not run>"
        return f"<nanoinfer serves {self.service.base_name} on {self._url}>"

    def _repr_html_(self) -> str:
        """Its live page in a frame, for a notebook beside whose cells it runs."""
        if self._url is None or not self._thread.is_alive():
            return f"<p>{html.escape(repr(self))}</p>"
        style = "width: 100%; height: 820px; border: 1px solid #9a9a9a; border-radius: 6px"
        link = f'<p><a href="{self._url}/" target="_blank" rel="noopener">The page in a tab of its own</a></p>'
        return f'<iframe src="{self._url}/" title="nanoinfer: a chat beside the engine" style="{style}"></iframe>{link}'

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it has ended. False if that takes longer than `timeout_s`."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def __enter__(self) -> "ServerThread":
        return self if self._thread.ident is not None else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # uvicorn's way to say that it cannot start is SystemExit
            self._failure = error

    async def _serve(self) -> None:
        self._running = asyncio.get_running_loop()
        assert self._sock is not None
        await self._server.serve([self._sock])

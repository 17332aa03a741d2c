"""Runs an application with uvicorn, in the main thread or in one of its own; its end loses no request."""

import asyncio
import contextlib
import signal
import socket
import sys
import threading
from collections.abc import Coroutine
from types import FrameType
from typing import Any, TextIO, TypeVar

import uvicorn
from fastapi import FastAPI

from nanoinfer.model.loader import in_words
from nanoinfer.server.service import Service

T = TypeVar("T")
SECONDS_FOR_LAST_ANSWERS = 5  # after the deadline, when requests have been told that the server ends


class Server(uvicorn.Server):
    """uvicorn's server, which keeps accepting connections while it drains, so that newcomers are told to go elsewhere.

    The first signal (SIGTERM, SIGINT) begins the drain: requests that are being served have `drain_timeout_s`, then they
    are ended and told so. A second signal ends them at once. `out`: where it prints its address, and what it waits for.
    `has_started` is called once it accepts connections.
    """

    def __init__(self, app: FastAPI, out: TextIO | None = None):
        config = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            lifespan="on",
            loop="asyncio",
            access_log=False,
            log_config=None,
            log_level="warning",
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=60,
            timeout_graceful_shutdown=SECONDS_FOR_LAST_ANSWERS,
        )
        super().__init__(config)
        self._service: Service = app.state.service
        self._out = out
        self._waiting: asyncio.Task[None] | None = None  # for what is being served
        self._draining: asyncio.Task[None] | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.has_started = threading.Event()

    @property
    def address(self) -> str:
        """Where it can be reached, once it has started."""
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def startup(self, sockets: Any = None) -> None:
        """Start, and say so: where, what, and how to open the page."""
        self.loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if self.started:
            self.has_started.set()
            self._say(self._ready())

    def _say(self, line: str) -> None:
        if self._out is not None:
            print(line, file=self._out, flush=True)

    def _ready(self) -> str:
        service, config = self._service, self._service.core.config
        about = [f"context {config.max_context_len}", f"{config.max_total_tokens} slots"]
        if defaults := service.core.builder.sampling_defaults:
            about.append(f"by default {in_words(defaults)}")
        page = "open it in a browser" + ("; its page asks for an API key" if service.settings.api_keys else "")
        return f"nanoinfer serves {service.base_name} on {self.address} ({', '.join(about)}): {page}"

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal: begin to drain, or hurry. Ctrl-C ends the command as it should; SIGTERM is the usual way to end."""
        if sig == signal.SIGINT and sig not in self._captured_signals:
            self._captured_signals.append(sig)
        if self.loop is None:
            self.should_exit = True  # it has not started yet
        else:
            self.loop.call_soon_threadsafe(self.end)

    def end(self) -> None:
        """End, in the server's event loop: serve what has been accepted, refuse newcomers. Once more: hurry."""
        if self._waiting is not None:
            self._waiting.cancel()
            return
        drain, seconds = self._service.drain, self._service.settings.drain_timeout_s
        drain.begin()
        if count := drain.serving:
            self._say(f"nanoinfer waits for {count} requests, for {seconds:g} s at most; once more ends them now")
        self._waiting = asyncio.create_task(drain.wait(seconds))
        self._draining = asyncio.create_task(self._drain(self._waiting))

    async def _drain(self, waiting: asyncio.Task[None]) -> None:
        await asyncio.wait([waiting])
        service = self._service
        service.close_all("shutdown")
        await service.drain.wait(SECONDS_FOR_LAST_ANSWERS)
        service.is_ending.set()
        self.should_exit = True


def serve(app: FastAPI, sock: socket.socket) -> None:
    """Serve until a signal ends it, at what `bound_socket` returned."""
    Server(app, sys.stdout).run([sock])


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that has the address already, so that a wrong one is told before a model is loaded, or a thread begins.
    ValueError naming the address."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except (OSError, UnicodeError) as error:
        sock.close()
        raise ValueError(f"--host {host} --port {port}: cannot be listened at: {error}") from error
    return sock


class ServerThread:
    """`with ServerThread(make_app("story")) as server:` serves while the block runs, on a free port of this machine.

    `app`: what `make_app` returned. `port`: 0 takes a free one. `url` and `port` say where it can be reached; `service` is
    what its routes share, with the engine in it.
    """

    def __init__(self, app: FastAPI, port: int = 0, host: str = "127.0.0.1"):
        if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= 65535:
            raise ValueError(f"port={port!r}: must be an integer in 0..65535")
        self.service: Service = app.state.service
        self._address = host, port
        self._server = Server(app)
        self._thread = threading.Thread(target=self._run, name="nanoinfer-server", daemon=True)
        self._sockets: list[socket.socket] = []
        self._failure: BaseException | None = None
        self._url: str | None = None

    def start(self) -> "ServerThread":
        """Serve, and return when connections are accepted. RuntimeError if that fails, for example on a port in use."""
        try:
            self._sockets = [bound_socket(*self._address)]
        except ValueError as error:
            raise RuntimeError(f"the server could not start: {error}") from error
        self._thread.start()
        self._server.has_started.wait()
        if not self._server.started:
            raise RuntimeError("the server could not start") from self._failure
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
        if self._server.loop is None or not self._thread.is_alive():
            coroutine.close()
            raise RuntimeError("the server is not running")
        return asyncio.run_coroutine_threadsafe(coroutine, self._server.loop).result()

    def end(self) -> None:
        """What SIGTERM does to the command: serve what was accepted, and refuse newcomers. Once more: do not wait.

        Does nothing when the server has ended: it may do so between two calls.
        """
        if self._server.loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._server.loop.call_soon_threadsafe(self._server.end)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it has ended. False if that takes longer than `timeout_s`."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def stop(self) -> None:
        """End it as SIGTERM does the command, and wait until it has: requests that it has accepted are served first, for at
        most `drain_timeout_s`. Called again meanwhile, or after Ctrl-C, it waits for none of them."""
        self.end()
        self.wait()

    def _repr_html_(self) -> str | None:
        """Its live page in a frame, for a notebook beside whose cells it runs. None where it does not run."""
        if self._url is None or not self._thread.is_alive():
            return None
        style = "width: 100%; height: 820px; border: 1px solid #9a9a9a; border-radius: 6px"
        link = f'<p><a href="{self._url}/" target="_blank" rel="noopener">The page in a tab of its own</a></p>'
        about = 'title="nanoinfer: a chat beside the engine" allow="clipboard-write"'
        return f'<iframe src="{self._url}/" {about} style="{style}"></iframe>{link}'

    def __enter__(self) -> "ServerThread":
        return self if self._thread.ident is not None else self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            asyncio.run(self._server.serve(self._sockets))
        except BaseException as error:  # uvicorn's way to say that it cannot start is SystemExit
            self._failure = error
        finally:
            self._server.has_started.set()

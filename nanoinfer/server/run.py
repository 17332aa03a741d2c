"""Runs an application with uvicorn: one line when it accepts connections, and an end that loses no request."""

import asyncio
import signal
import socket
import sys
import time
from types import FrameType
from typing import Any, TextIO

import uvicorn
from fastapi import FastAPI

from nanoinfer.model.loader import in_words
from nanoinfer.server.service import Service

SECONDS_FOR_LAST_ANSWERS = 5  # after the deadline, when requests have been told that the server ends


class Server(uvicorn.Server):
    """uvicorn's server, which keeps accepting connections while it drains, so that newcomers are told to go elsewhere.

    The first signal (SIGTERM, SIGINT) begins the drain: requests that are being served have `drain_timeout_s`, then they
    are ended and told so. A second signal ends them at once. `out`: where it prints its address, and what it waits for.
    """

    def __init__(self, config: uvicorn.Config, service: Service, out: TextIO | None = None):
        super().__init__(config)
        self._service, self._out = service, out
        self._draining: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self._running: asyncio.AbstractEventLoop | None = None

    @property
    def address(self) -> str:
        """Where it can be reached, once it has started."""
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def startup(self, sockets: Any = None) -> None:
        """Start, and say so: where, what, and how to open the page."""
        self._running = asyncio.get_running_loop()
        await super().startup(sockets)
        if self._out is not None and self.started:
            print(self._ready(), file=self._out, flush=True)

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
        if self._running is None:
            self.should_exit = True  # it has not started yet
        else:
            self._running.call_soon_threadsafe(self.end)

    def end(self) -> None:
        """End, in the server's event loop: serve what has been accepted, refuse newcomers. Once more: hurry."""
        if self._draining is None:
            self._service.drain.begin()
            self._say_what_it_waits_for()
            self._draining = asyncio.ensure_future(self._drain())
        else:
            self._hurry.set()

    def _say_what_it_waits_for(self) -> None:
        waiting, seconds = self._service.drain.serving, self._service.settings.drain_timeout_s
        if self._out is None or not waiting:
            return
        what, them = ("1 request", "it") if waiting == 1 else (f"{waiting} requests", "them")
        at = time.strftime("%H:%M:%S", time.localtime(time.time() + seconds))
        now = f"a second Ctrl-C or SIGTERM ends {them} now"
        print(f"nanoinfer is ending: it waits for {what}, until {at} at the latest; {now}", file=self._out, flush=True)

    async def _drain(self) -> None:
        service = self._service
        wait = asyncio.ensure_future(service.drain.wait(service.settings.drain_timeout_s))
        hurry = asyncio.ensure_future(self._hurry.wait())
        await asyncio.wait((wait, hurry), return_when=asyncio.FIRST_COMPLETED)
        for task in (wait, hurry):
            task.cancel()
        service.close_all("shutdown")
        await service.drain.wait(SECONDS_FOR_LAST_ANSWERS)
        service.is_ending.set()
        self.should_exit = True


def make_server(app: FastAPI, host: str = "127.0.0.1", port: int = 8000, out: TextIO | None = None) -> Server:
    """A server for what `make_app` returned. `out`: see Server."""
    service: Service = app.state.service
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
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
        backlog=2048,
    )
    return Server(config, service, out)


def serve(app: FastAPI, sock: socket.socket) -> None:
    """Serve until a signal ends it, at what `bound_socket` returned."""
    host, port = sock.getsockname()[:2]
    make_server(app, host, port, sys.stdout).run([sock])


def bound_socket(host: str, port: int) -> socket.socket:
    """`listening_socket` for the command line. ValueError naming its options."""
    try:
        return listening_socket(host, port)
    except OSError as error:
        raise ValueError(f"--host {host} --port {port}: {error.strerror}") from error


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket that has the address already, so that a wrong one is told before a model is loaded, or a thread begins.
    OSError saying why there is none."""
    try:
        (family, kind, protocol, _, address), *_ = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        sock = socket.socket(family, kind, protocol)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except (OSError, UnicodeError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OSError(getattr(error, "errno", None), f"cannot be listened at: {reason}") from error
    return sock


def raise_open_files_limit() -> None:
    """Let this process have as many open files, and so connections, as the system allows it."""
    try:
        import resource
    except ImportError:  # not on this system
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

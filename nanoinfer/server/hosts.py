"""Hosts: a page from elsewhere may not use the server through a visitor's browser.

Two ways are closed. By DNS rebinding, a page from attacker.example lets that name lead to 127.0.0.1, so that the browser
takes this server for the page's own. Then the Host header has that name: it must be an IP address, a name without a dot
(no page can come from one), or one of `allowed_hosts`. And a page may send a form, or a plain POST, to any address. Then
the Origin header differs from the Host header: it must be one of `cors_origins`.
"""

import re
from collections.abc import Collection
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from nanoinfer.server.errors import ApiError

PORT = re.compile(r":[0-9]*")


class Hosts:
    """An ASGI application around another one."""

    def __init__(self, app: ASGIApp, allowed_hosts: Collection[str], cors_origins: Collection[str]):
        self._app = app
        self._allowed, self._origins = {name.lower().removesuffix(".") for name in allowed_hosts}, set(cors_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self._check(dict(scope["headers"]), scope["method"])
        await self._app(scope, receive, send)

    def _check(self, headers: dict[bytes, bytes], method: str) -> None:
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if not self._may_be(host):
            raise ApiError(
                403,
                f"host {host[:100]!r}: must be an IP address, a name without a dot, or an allowed host (--allowed-host)",
                "host",
                "host_not_allowed",
            )
        origin = headers.get(b"origin", b"").decode("latin-1")
        if not origin or method in ("GET", "HEAD", "OPTIONS") or self._origins & {"*", origin}:
            return
        if _netloc(origin) != host:
            raise ApiError(
                403,
                f"origin {origin[:100]!r}: must be this server's or allowed (--cors-origin)",
                "origin",
                "origin_not_allowed",
            )

    def _may_be(self, host: str) -> bool:
        if not host or "*" in self._allowed:  # only HTTP/1.0, which no browser speaks, has no Host header
            return True
        name = _name(host).removesuffix(".")  # "localhost." is localhost
        return name in self._allowed or not set(".:[]") & set(name) or name.endswith(".localhost") or _is_address(name)


def _name(host: str) -> str:
    """A Host header without its port; all of it if what follows the name is no port."""
    if host.startswith("["):
        address, bracket, rest = host[1:].partition("]")
        return address if bracket and (not rest or PORT.fullmatch(rest)) else host
    name, colon, port = host.rpartition(":")
    return name if ":" not in name and PORT.fullmatch(colon + port) else host


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""

"""Heads: answers HEAD as GET, without the body. Load balancers ask so whether a server is well."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Heads:
    """An ASGI application around another one, which gets a GET for a HEAD. A stream ends with its status and headers: what
    it sends later is dropped, and `receive` tells it that nobody reads on."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def send_head(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body"})

        await self._app({**scope, "method": "GET"}, receive, send_head)

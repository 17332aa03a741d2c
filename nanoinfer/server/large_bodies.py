"""Large bodies: their JSON is read beside the event loop, which serves all other clients meanwhile."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

SMALL = 2**18  # bytes, which are read in some milliseconds


class PatientRequest(Request):
    """A request whose body may be long."""

    async def json(self) -> Any:
        """The body. JSONDecodeError if it is no JSON."""
        body = await self.body()
        return await super().json() if len(body) <= SMALL else await asyncio.to_thread(_loads, body)


class PatientRoute(APIRoute):
    """A route that gets PatientRequests: the `route_class` of routers whose routes take bodies."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """What FastAPI calls with each request."""
        handle = super().get_route_handler()

        async def handle_patiently(request: Request) -> Response:
            return await handle(PatientRequest(request.scope, request.receive))

        return handle_patiently


def _loads(body: bytes) -> Any:
    """The parser is in C, and no other thread runs Python code during a call of it. These functions are Python's, so that
    others get a turn between two numbers."""
    return json.loads(body, parse_int=lambda text: int(text), parse_float=lambda text: float(text))

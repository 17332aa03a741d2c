"""JSON of bodies. That of large ones is read beside the event loop, which serves all other clients meanwhile."""

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from nanoinfer.server.errors import bad_request

SMALL = 2**18  # bytes, which are read in some milliseconds


class PatientRequest(Request):
    """A request whose body may be long."""

    async def json(self) -> Any:
        """The body. JSONDecodeError if it is no JSON, ApiError if it is some that cannot be read."""
        body = await self.body()
        try:
            text = body.decode("utf-8-sig")
            return json.loads(text) if len(body) <= SMALL else await asyncio.to_thread(_loads, text)
        except UnicodeDecodeError as error:
            why = f"it is not UTF-8: byte {error.start} is 0x{body[error.start]:02x}"
            raise json.JSONDecodeError(why, "", error.start) from None
        except json.JSONDecodeError:
            raise
        except RecursionError:
            raise bad_request("the body has too many lists and objects inside each other", code="too_deep") from None
        except ValueError:  # Python's limit
            most = sys.get_int_max_str_digits()
            raise bad_request(f"the body has an integer of more than {most} digits", code="too_many_digits") from None


class PatientRoute(APIRoute):
    """A route that gets PatientRequests: the `route_class` of routers whose routes take bodies."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """What FastAPI calls with each request."""
        handle = super().get_route_handler()

        async def handle_patiently(request: Request) -> Response:
            return await handle(PatientRequest(request.scope, request.receive))

        return handle_patiently


def _loads(text: str) -> Any:
    """The parser is in C, and no other thread runs Python code during a call of it. These functions are Python's, so that
    others get a turn between two numbers."""
    return json.loads(text, parse_int=lambda digits: int(digits), parse_float=lambda digits: float(digits))

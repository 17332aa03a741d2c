"""make_app: the routes of a server, and what a request passes on its way to one."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from nanoinfer.server import live
from nanoinfer.server.block_events import block_routes
from nanoinfer.server.middleware import RequestMiddleware
from nanoinfer.server.operations import add_operation_routes
from nanoinfer.server.responses.routes import add_responses_routes
from nanoinfer.server.routes import add_client_routes
from nanoinfer.server.service import Service
from nanoinfer.server.settings import ServerSettings
from nanoinfer.version import __version__

ERROR = {"description": "An error, in OpenAI's shape"}


def make_app(llm: Any, settings: ServerSettings | None = None, **options: Any) -> FastAPI:
    """The ASGI application that serves `llm`: an LLM, an Engine, the name or directory of a model, or a Served.

    `settings` or `options`: the fields of ServerSettings. The engine starts with the application's lifespan, or with the
    first request where there is none, and is shut down at the lifespan's end: from then on, all requests get a 503. So an
    application has one lifespan; make another one to serve again. ValueError or TypeError naming what is wrong.
    """
    service = Service(llm, replace(settings or ServerSettings(), **options))
    origins = list(service.settings.cors_origins)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.engine  # noqa: B018 - starts it
        yield
        await service.close()

    cors = Middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=["GET", "POST", "DELETE"],
        allow_headers=["*"],  # OpenAI's client for JavaScript sends many of its own
        expose_headers=["x-request-id", "retry-after", "x-should-retry"],
    )
    app = FastAPI(
        title="nanoinfer",
        version=__version__,
        lifespan=lifespan,
        middleware=[*([cors] if origins else []), Middleware(RequestMiddleware, service=service)],
        exception_handlers=dict.fromkeys((RequestValidationError, HTTPException), _raise),
        responses={"4XX": ERROR, "5XX": ERROR},
        docs_url=None,  # these pages load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.service = service
    for add_routes in (add_client_routes, add_responses_routes, add_operation_routes):
        add_routes(app, service)
    app.router.routes.extend(block_routes(service))
    if service.served.local:
        app.router.routes.extend(live.routes(service))
    return app


async def _raise(request: Request, error: Exception) -> Response:
    """Leave all errors to RequestMiddleware."""
    raise error

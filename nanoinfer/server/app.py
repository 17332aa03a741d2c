"""make_app: the routes of a server, and the layers around them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import fields, replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from nanoinfer.errors import EngineClosedError, QueueFullError, StepFailedError, UnknownArgumentError
from nanoinfer.server.adapter_routes import adapter_routes
from nanoinfer.server.block_events import block_routes
from nanoinfer.server.errors import ApiError, as_api_error, validation_error
from nanoinfer.server.fields import did_you_mean
from nanoinfer.server.gate import Gate
from nanoinfer.server.generate import generate_route
from nanoinfer.server.notes import notes_of
from nanoinfer.server.routes import openai_routes, operation_routes
from nanoinfer.server.service import Service
from nanoinfer.server.settings import ServerSettings
from nanoinfer.server.token_routes import token_routes
from nanoinfer.version import __version__

LIVE_PAGE = "nanoinfer.server.live"
KNOWN = {field.name for field in fields(ServerSettings)}

TEXT_OR_NULL = {"type": ["string", "null"]}
ERROR_FIELDS = {"message": {"type": "string"}, "type": {"type": "string"}, "param": TEXT_OR_NULL, "code": TEXT_OR_NULL}
ERROR = {"type": "object", "required": [*ERROR_FIELDS], "properties": ERROR_FIELDS}
ANSWER = {"type": "object", "required": ["error"], "properties": {"error": ERROR}}
ERRORS = {"description": "An error, in OpenAI's shape.", "content": {"application/json": {"schema": ANSWER}}}


def make_app(llm: Any, settings: ServerSettings | None = None, **options: Any) -> FastAPI:
    """The ASGI application that serves `llm`: an LLM, an Engine, the name or directory of a model, or a Served.

    `settings` or `options`: the fields of ServerSettings. The engine starts with the application's lifespan, or with the
    first request where there is none, and is shut down at the lifespan's end: from then on, all requests get a 503. So an
    application has one lifespan; make another one to serve again. ValueError naming what is wrong.
    """
    for name in options.keys() - KNOWN:
        raise UnknownArgumentError(f"{name}: a server has no such setting{did_you_mean(name, KNOWN)}")
    service = Service(llm, replace(settings or ServerSettings(), **options))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.engine  # noqa: B018 - starts it
        yield
        await service.close()

    app = FastAPI(
        title="nanoinfer",
        version=__version__,
        lifespan=lifespan,
        middleware=layers(service),
        docs_url=None,  # these pages load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.service = service
    for kind in (
        ApiError,
        RequestValidationError,
        HTTPException,
        ValueError,
        QueueFullError,
        EngineClosedError,
        StepFailedError,
    ):
        app.add_exception_handler(kind, _answer)
    for routes in (openai_routes, generate_route, token_routes, adapter_routes, operation_routes):
        app.include_router(routes(service))
    app.router.routes.extend(block_routes(service))
    if service.served.local and find_spec(LIVE_PAGE) is not None:
        app.router.routes.extend(import_module(LIVE_PAGE).routes(service))
    _describe(app)
    return app


def layers(service: Service) -> list[Middleware]:
    """What a request passes on its way to a route, the outermost first."""
    settings = service.settings
    cors = Middleware(
        CORSMiddleware,
        allow_origins=list(settings.cors_origins),
        allow_methods=["GET", "POST"],
        allow_headers=["*"],  # OpenAI's client for JavaScript sends many of its own
        expose_headers=["x-request-id", "retry-after", "x-should-retry"],
    )
    return [*([cors] if settings.cors_origins else []), Middleware(Gate, service=service)]


async def _answer(request: Request, error: Exception) -> Response:
    """An error that a route raised, in OpenAI's shape."""
    if isinstance(error, RequestValidationError):
        answer = validation_error(error.errors())
    elif isinstance(error.__cause__, ApiError):  # FastAPI has made an HTTPException of it
        answer = error.__cause__
    elif isinstance(error, HTTPException):
        detail = error.detail if error.__cause__ is None else f"the body is not JSON: {error.__cause__}"
        message = f"{request.method} {request.url.path}: {detail}{_right_path(request)}"
        answer = ApiError(error.status_code, message, headers=error.headers)
    else:
        answer = as_api_error(error)
    notes_of(request.scope).error = answer
    return Response(answer.body, answer.status, answer.headers, "application/json")


def _right_path(request: Request) -> str:
    """What a message adds about a path that is one of ours but for `/v1` or slashes: a base URL that is wrong."""
    parts = [part for part in request.url.path.split("/") if part]
    while parts[:1] == ["v1"]:
        parts.pop(0)
    for path in ("/".join(["", "v1", *parts]), "/".join(["", *parts])):
        if path in request.app.openapi()["paths"] and path != request.url.path:
            return f"; did you mean {path}? A client's base URL must be {request.base_url}v1"
    return ""


def _describe(app: FastAPI) -> None:
    """Replace FastAPI's own 422, which is never sent, by the errors that are, in /openapi.json."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(title=app.title, version=app.version, routes=app.routes)
            for operations in made["paths"].values():
                for operation in operations.values():
                    operation["responses"].pop("422", None)
                    operation["responses"] |= {"4XX": ERRORS, "5XX": ERRORS}
            schemas = made.get("components", {}).get("schemas", {})
            for name in ("HTTPValidationError", "ValidationError"):
                schemas.pop(name, None)
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]

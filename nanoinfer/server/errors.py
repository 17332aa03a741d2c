"""What a client is told when something is wrong: a status, and an error in OpenAI's shape, or Anthropic's. And what is
logged of it."""

import logging
import re
import traceback
from collections.abc import Mapping
from reprlib import repr as repr_in_short
from types import MappingProxyType
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

import nanoinfer.errors as engine_errors

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}
ANTHROPIC_TYPES = TYPES | {413: "request_too_large", 503: "overloaded_error"}
MESSAGES = "/v1/messages"  # the route whose errors are in Anthropic's shape
MAX_MESSAGE = 1000  # characters: messages quote values
CODES = {name: f"{name}_field" for name in ("unsupported", "unknown", "missing")}  # by pydantic's type
NO_RETRY = {"x-should-retry": "false"}  # OpenAI's clients repeat requests by themselves unless this says otherwise

logger = logging.getLogger("nanoinfer.server")


class ApiError(Exception):
    """An answer that is an error: `status`, a sentence for people, and for programs the field (`param`) and a `code`."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})
        if status in (429, 503):
            self.headers.setdefault("retry-after", "1")

    @property
    def content(self) -> dict[str, Any]:
        """The body, in OpenAI's shape."""
        kind = TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def anthropic_content(self, request_id: str) -> dict[str, Any]:
        """The body in Anthropic's shape. `param` and `code` say more than Anthropic's own errors do."""
        kind = ANTHROPIC_TYPES.get(self.status, "api_error" if self.status >= 500 else "invalid_request_error")
        told: dict[str, Any] = {"type": kind, "message": self.message, "param": self.param, "code": self.code}
        if self.param == "thread":  # Anthropic's client then sends the whole conversation each time
            told["details"] = {"error_code": "thread_unsupported_request"}
        return {"type": "error", "error": told, "request_id": request_id}

    def renamed(self, names: Mapping[str, str]) -> "ApiError":
        """The same, of fields that the client calls otherwise. `names`: ours → the client's."""
        message = self.message
        for ours, theirs in names.items():
            message = re.sub(rf"(?<![\w.'\"]){re.escape(ours)}(?![\w'\"])", theirs, message)
        param = names.get(self.param or "", self.param)
        return ApiError(self.status, message, param, self.code, self.headers) if names else self


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """A 400."""
    return ApiError(400, message, param, code)


def refuse_if(is_wrong: object, field: str, why: str, value: Any = None, code: str | None = None) -> None:
    """ApiError (400) naming the field, and its value if that is given here, if something `is_wrong` with it."""
    if is_wrong:
        raise bad_request(f"{field}{'' if value is None else f'={repr_in_short(value)}'}: {why}", field, code)


def shut_down() -> ApiError:
    """The server ends, and takes no more requests or cannot finish this one."""
    return ApiError(503, "the server is shutting down; send the request to another one, or later", code="shutting_down")


def as_api_error(
    error: BaseException, names: Mapping[str, str] = MappingProxyType({}), grammar_field: str | None = None
) -> ApiError:
    """The answer to what is raised. What is unexpected becomes a 500 that names only its type, since its message may quote
    prompts. `names`: our names of fields → the client's, where they differ. `grammar_field`: where it gives a grammar."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestValidationError):
        return _validation_error(error.errors()[0])
    if isinstance(error, HTTPException):
        if isinstance(error.__cause__, ApiError):  # FastAPI has made an HTTPException of it
            return error.__cause__
        detail = error.detail if error.__cause__ is None else f"the body is not JSON: {error.__cause__}"
        detail += "; a client's base URL must end with /v1" if error.status_code == 404 else ""
        return ApiError(error.status_code, detail, headers=error.headers)
    if isinstance(error, engine_errors.QueueFullError):
        return ApiError(429, str(error), code="queue_full")
    if isinstance(error, engine_errors.ReplicaLostError):
        return ApiError(503, str(error), code="replica_lost")
    if isinstance(error, engine_errors.EngineClosedError):
        return shut_down()
    if isinstance(error, engine_errors.AdapterError):
        return bad_request(str(error), "model")
    if isinstance(error, engine_errors.InvalidRequestError):
        theirs = None if error.field is None else names.get(error.field, error.field)
        message = str(error) if theirs == error.field else f"{theirs}: {error}"
        code = "context_length_exceeded" if isinstance(error, engine_errors.ContextLengthError) else None
        return bad_request(message[:MAX_MESSAGE], theirs, code)
    if isinstance(error, engine_errors.StepFailedError):
        if isinstance(error.__cause__, engine_errors.NoTokenAllowedError):
            return bad_request(f"{grammar_field}: {error.__cause__}", grammar_field, "no_token_allowed")
        kind = type(error.__cause__ or error).__name__
        return ApiError(500, f"the request ended because a step of the engine failed ({kind})", code="step_failed")
    return ApiError(500, f"internal error ({type(error).__name__})", code="internal_error")


def _validation_error(error: Mapping[str, Any]) -> ApiError:
    """The answer to a body that does not fit: the first thing that pydantic finds wrong, with its field and value."""
    kind, context = error["type"], error.get("ctx", {})
    if kind == "json_invalid":
        return bad_request(f"the body is not JSON: {context.get('error')}", code="invalid_json")
    # without what pydantic adds to say which of several types it tried: "str", "list[dict[str,any]]"
    place = [
        part for part in error["loc"] if isinstance(part, int) or not (part in ("body", "query", "str") or "[" in part)
    ]
    place += [context["field"]] if "field" in context else []
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).removeprefix(".")
    if not path:
        return bad_request(f"the body: {error['msg']}; send a JSON object with content-type: application/json")
    value = error.get("input")
    if kind == "unsupported" and isinstance(value, dict):
        value = value.get(context["field"])
    given = "" if kind == "missing" or ("field" in context and kind != "unsupported") else f"={repr_in_short(value)}"
    return bad_request(f"{path}{given}: {error['msg']}", path, CODES.get(kind, "invalid_value"))


def log_bug(request_id: str, error: BaseException, show_prompts: bool) -> None:
    """Log where an unexpected error was raised. Its message may quote prompts, so it is shown only with `show_prompts`."""
    error = error.__cause__ or error  # Starlette wraps what is raised when an answer has begun
    message = f": {error}" if show_prompts else ""
    logger.error("request %s failed: %s%s\n%s", request_id, type(error).__name__, message, where(error))


def where(error: BaseException) -> str:
    """Where it was raised, without its message."""
    return "".join(traceback.format_tb(error.__traceback__))

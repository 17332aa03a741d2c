"""Errors in Anthropic's shape."""

from typing import Any

from nanoinfer.server.errors import ApiError

PATH = "/v1/messages"
TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_content(error: ApiError, request_id: str) -> dict[str, Any]:
    """The body. `param` and `code` say more than Anthropic's own errors do."""
    kind = TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    told: dict[str, Any] = {"type": kind, "message": error.message, "param": error.param, "code": error.code}
    if error.param == "thread":  # Anthropic's client then sends the whole conversation each time
        told["details"] = {"error_code": "thread_unsupported_request"}
    return {"type": "error", "error": told, "request_id": request_id}

"""What pydantic finds wrong with a body, in one sentence and OpenAI's shape."""

import re
from collections.abc import Mapping, Sequence
from reprlib import Repr
from typing import Any

from nanoinfer.server.errors import ApiError, bad_request

CODES = {"unsupported": "unsupported_field", "unknown": "unknown_field"}
_short = Repr()
_short.maxstring = _short.maxother = 60


def validation_error(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """The answer to a body that does not fit: the first thing that is wrong, with its field and value."""
    error = errors[0]
    kind, place = error["type"], [part for part in error["loc"] if part != "body"]
    if kind == "json_invalid":
        why = error.get("ctx", {}).get("error", "it cannot be read")
        return bad_request(f"the body is not JSON: {why}", code="invalid_json")
    if kind in ("unsupported", "unknown", "not_utf8", "too_deep"):
        path = _path([*place, error["ctx"]["field"]])
        return bad_request(f"{path}: {error['msg']}", path, CODES.get(kind, "invalid_value"))
    if not place:
        if kind == "missing":
            return bad_request("the body is empty: must be a JSON object")
        if kind == "too_many":
            return bad_request(f"the body {error['msg']}", code="invalid_value")
        return bad_request("the body must be a JSON object, sent with content-type: application/json")
    if kind == "missing":
        return bad_request(f"{_path(place)}: is missing", _path(place), "missing_field")
    place, value = _without_types(place), error.get("input")
    given = (
        f"{len(value)} items"
        if isinstance(value, list | dict) and kind in ("too_many", "too_long")
        else _short.repr(value)
    )
    message = re.sub(r"^(?:Input|String|List) should (be|have)", r"must \1", str(error["msg"])).replace(
        "Value error, ", ""
    )
    message = message.replace(" after validation, not more", "").replace("Dictionary should", "must")
    return bad_request(f"{_path(place)}={given}: {message}", _path(place), "invalid_value")


def _path(place: Sequence[Any]) -> str:
    """messages, 0, content → messages[0].content."""
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _without_types(place: Sequence[Any]) -> list[Any]:
    """Without what pydantic adds to say which of several types it tried: "str", "list[dict[str,any]]"."""
    return [part for part in place if isinstance(part, int) or not (part in ("str", "int", "float") or "[" in part)]

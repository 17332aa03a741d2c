"""JSON as it goes over the wire: UTF-8, and nothing in it that a reader could take for the end of a line."""

import json
from json.encoder import encode_basestring as _quoted
from typing import Any

# Line ends for `str.splitlines`, with which some clients read streams, though not for server-sent events.
_LINE_ENDS = str.maketrans({"\x7f": "\\u007f", "\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"})


def quoted(text: str) -> str:
    """`text` as a JSON string. Called per token, hence not `json.dumps`."""
    if text.isascii():
        return _quoted(text)
    return _quoted(text).translate(_LINE_ENDS)


def dumps(value: Any) -> str:
    """`value` as JSON. ValueError for NaN and infinities, which JSON does not have."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text if text.isascii() else text.translate(_LINE_ENDS)

"""What keeps the cached K/V of equal tokens apart: an `extra_key`, and AdapterKey."""

from collections.abc import Hashable
from dataclasses import dataclass

DEEPEST = 32  # so many tuples may be in one another: comparing them and taking their hash is recursive


@dataclass(frozen=True)
class AdapterKey:
    """The `extra_key` of a request with an adapter, which computes other K/V for the same tokens than the base model.

    `id`: the adapter's, which is never used again; its `name` may be.
    """

    id: int
    extra_key: Hashable
    name: str = ""


def problem_of(extra_key: object) -> str | None:
    """What an `extra_key` should be and is not, in words; None if nothing is wrong with it.

    Keys are of plain types, which always compare the same way. An object with an `__eq__` of its own could change its mind
    while its tokens are in the tree, or raise in the middle of a pass that computes other requests.
    """
    if _is_plain(extra_key, DEEPEST):
        return None
    shown = "(...)" if type(extra_key) is tuple else repr(extra_key)  # of a very deep one, Python has no repr
    return f"extra_key={shown}: must be None, text, bytes, an integer or a tuple of these, at most {DEEPEST} in one another"


def _is_plain(key: object, levels: int) -> bool:
    if type(key) is tuple:
        return levels > 0 and all(_is_plain(each, levels - 1) for each in key)
    return key is None or type(key) in (str, bytes, int, bool)

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
    leaves, level, depth = list[object](), [extra_key], 0
    while level:
        tuples = [each for each in level if type(each) is tuple]
        leaves += [each for each in level if type(each) is not tuple]
        level, depth = [each for key in tuples for each in key], depth + bool(tuples)
        if depth > DEEPEST:
            return f"extra_key: has more than {DEEPEST} tuples in one another, must have at most {DEEPEST}"
    if all(each is None or type(each) in (str, bytes, int, bool) for each in leaves):
        return None
    return f"extra_key={extra_key!r}: must be None, text, bytes, an integer or a tuple of these"

"""Checks of notebook 17: chained hashes, and the heads of a process. nb17_routing.py has the policies."""

import random
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from nanoinfer.cache.block_events import chained_hashes
from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import a_kind, expect, expect_equal

# --- 17.1 -------------------------------------------------------------------------------------------------------------


def _right(tokens: Sequence[int], size: int, namespace: int) -> list[int]:
    return chained_hashes(np.array(tokens, dtype=np.int64), size, namespace)


def _hash(parent: int, tokens: Sequence[int], width: int = 8, order: str = "little") -> int:
    """One hash, also in the ways in which it can go wrong."""
    data = parent.to_bytes(8, order) + b"".join(token.to_bytes(width, order) for token in tokens)  # type: ignore[arg-type]
    return int.from_bytes(blake2b(data, digest_size=8).digest(), order)  # type: ignore[arg-type]


@exercise("17.1", "A chain of hashes", points=2)
def _(given: Given) -> str:
    hashes_of = given["hashes_of"]
    rng = random.Random(171)
    cases = [([7, 8, 9, 10], 4, 0), ([7, 8, 9, 10] * 2, 4, 5), ([1, 2, 3], 4, 0), ([], 4, 0), ([1, 2, 3, 4, 5], 4, 3)]
    for _ in range(60):
        tokens = [rng.randrange(2048) for _ in range(rng.randrange(40))]
        cases.append((tokens, rng.choice((1, 2, 4, 16)), rng.randrange(2**64)))
    for tokens, size, namespace in cases:
        kept = list(tokens)
        got = hashes_of(tokens, size, namespace)
        expect(tokens == kept, "You changed the list of tokens.")
        expect(isinstance(got, list), f"Return a list of integers, not {a_kind(got)}.")
        _about_hashes(got, tokens, size, namespace)
    return "65 prompts, in blocks of 1 to 16 tokens"


def _about_hashes(got: list[Any], tokens: Sequence[int], size: int, namespace: int) -> None:
    said = f"tokens={list(tokens)}, size={size}, namespace={namespace}."
    want = _right(tokens, size, namespace)
    if got == want:
        return
    expect(
        len(got) == len(want),
        f"{said} You return {len(got)} hashes. There are {len(want)} complete blocks; tokens that are left over at the end "
        "have no hash.",
    )
    expect(
        all(isinstance(each, int) and 0 <= each < 2**64 for each in got),
        f"{said} Each hash is an integer of 64 bits: `int.from_bytes(..., 'little')` of 8 bytes.",
    )
    first = tokens[:size]
    expect(
        got[0] != _hash(0, first) or namespace == 0, f"{said} The first block's data begin with the namespace, not 0."
    )
    expect(
        got[0]
        != int.from_bytes(blake2b(b"".join(t.to_bytes(8, "little") for t in first), digest_size=8).digest(), "little"),
        f"{said} Your first hash covers the tokens only. The 8 bytes of the namespace come before them.",
    )
    for order, width, why in (
        ("big", 8, "The bytes are in big-endian order; all of them are `little`."),
        ("little", 4, "Each token has 8 bytes, and not 4."),
    ):
        expect(got[0] != _hash(namespace, first, width, order), f"{said} {why}")
    if got[0] == want[0] and len(want) > 1:
        second = tokens[size : 2 * size]
        expect(
            got[1] != _hash(namespace, second),
            f"{said} Your second hash doesn't depend on the first block. Then equal words after different beginnings "
            "would have equal hashes, and a router would send requests to K/V that doesn't fit. Begin its data with the "
            "hash before.",
        )
        expect(
            got[1] != _hash(namespace, tokens[: 2 * size]),
            f"{said} Your second hash covers all tokens again. That works as well, but each further block costs more. "
            "The hash before stands for all of them.",
        )
    expect_equal(got, want, f"{said} The hashes are wrong.")


# --- 17.5 -------------------------------------------------------------------------------------------------------------


def _heads(part: int, parts: int, query_heads: int, kv_heads: int) -> tuple[list[int], list[int]]:
    each, group = query_heads // parts, query_heads // kv_heads
    mine = list(range(part * each, (part + 1) * each))
    return mine, sorted({head // group for head in mine})


@exercise("17.5", "The heads of a process")
def _(given: Given) -> str:
    heads_of, tried = given["heads_of"], 0
    for query_heads, kv_heads in ((8, 8), (8, 2), (8, 1), (4, 2), (12, 4), (32, 8), (6, 3), (6, 2), (1, 1)):
        for parts in range(1, query_heads + 1):
            if query_heads % parts:
                _refused(heads_of, parts, query_heads, kv_heads)
                continue
            for part in range(parts):
                _about_heads(heads_of(part, parts, query_heads, kv_heads), part, parts, query_heads, kv_heads)
                tried += 1
    return f"{tried} processes, with K/V heads divided and with K/V heads in several processes"


def _refused(heads_of: Callable[..., Any], parts: int, query_heads: int, kv_heads: int) -> None:
    try:
        got = heads_of(0, parts, query_heads, kv_heads)
    except ValueError as error:
        expect(
            str(parts) in str(error) and str(query_heads) in str(error),
            f"{query_heads} heads can't be divided by {parts}. Your ValueError says {str(error)!r}; name both numbers.",
        )
    else:
        expect(
            False,
            f"{query_heads} query heads can't be divided over {parts} processes. Raise a ValueError, not {got!r}.",
        )


def _about_heads(got: Any, part: int, parts: int, query_heads: int, kv_heads: int) -> None:
    said = f"Process {part} of {parts}, with {query_heads} query heads and {kv_heads} K/V heads:"
    expect(isinstance(got, tuple) and len(got) == 2, f"{said} return two lists, not {a_kind(got)}.")
    for each in got:
        are_heads = isinstance(each, list) and all(isinstance(head, int) for head in each)
        expect(are_heads, f"{said} return two lists of whole numbers; one of yours is {each!r}.")
    queries, keys = (list(each) for each in got)
    right, needed = _heads(part, parts, query_heads, kv_heads)
    expect(
        queries != list(range(part, query_heads, parts)) or queries == right,
        f"{said} its query heads are neighbours, {right}, so that they use few K/V heads. You have {queries}.",
    )
    expect_equal(queries, right, f"{said} its query heads are wrong.")
    expect(
        len(set(keys)) == len(keys),
        f"{said} list a K/V head once, however many query heads use it. You have {keys}.",
    )
    missing, extra = sorted(set(needed) - set(keys)), sorted(set(keys) - set(needed))
    expect(
        not missing,
        f"{said} its query heads {right} use the K/V heads {needed}; {missing} are missing. With fewer K/V heads than "
        "processes, several processes have the same one.",
    )
    expect(not extra, f"{said} it needs the K/V heads {needed}; {extra} would only take memory.")
    expect_equal(keys, needed, f"{said} the K/V heads are to be sorted.")

"""Checks of notebook 19: a table whose hashes collide, and files that may be anything."""

import random
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import a_kind, expect, expect_equal

# --- 19.3 -------------------------------------------------------------------------------------------------------------


class _Counted:
    """A hash that many lists share. `calls`: how often it was asked for."""

    def __init__(self, hash_of: Callable[[list[int]], int]):
        self._hash_of, self.calls = hash_of, 0

    def __call__(self, tokens: list[int]) -> int:
        self.calls += 1
        return self._hash_of(list(tokens))


@exercise("19.3", "Hashes find, tokens decide", points=2)
def _(given: Given) -> str:
    Table = given["Table"]
    _collisions(Table)
    _own_lists(Table)
    rng = random.Random(193)
    for hash_of in (len, lambda tokens: 0, lambda tokens: sum(tokens) % 3, lambda tokens: sum(tokens)):
        _like_a_dictionary(Table, _Counted(hash_of), rng)
    return "4 hashes, one of which is the same number for everything"


def _collisions(Table: Any) -> None:
    hash_of = _Counted(len)
    table = Table(hash_of)
    expect_equal(table.get([1, 2]), None, "The table is empty, and get([1, 2]) should return None.")
    table.put([1, 2], b"one-two")
    expect_equal(table.get([1, 2]), b"one-two", "After put([1, 2], b'one-two'), get([1, 2]) is wrong.")
    got = table.get([3, 4])
    expect(
        got is None,
        f"[1, 2] was put, and get([3, 4]) returns {got!r}: the two lists have the same hash. A request would go on with "
        "the K/V of another text. Compare the tokens, too.",
    )
    got = table.get([2, 1])
    expect(got is None, f"[1, 2] was put, and get([2, 1]) returns {got!r}. The order of tokens counts.")
    table.put([3, 4], b"three-four")
    expect(
        table.get([1, 2]) == b"one-two",
        f"[1, 2] was put, then [3, 4], which has the same hash. Now get([1, 2]) returns {table.get([1, 2])!r}. Both are "
        "to be kept.",
    )
    expect_equal(table.get([3, 4]), b"three-four", "After put([3, 4], ...), get([3, 4]) is wrong.")
    expect_equal(table.size(), 2, "Two lists with the same hash were put, and size() is wrong.")
    table.put([1, 2], b"new")
    expect_equal(table.get([1, 2]), b"new", "[1, 2] was put a second time with other K/V, and get([1, 2]) is wrong.")
    expect_equal(table.size(), 2, "[1, 2] was put a second time. It replaces the old entry, but size() is wrong.")


def _own_lists(Table: Any) -> None:
    table, tokens = Table(_Counted(len)), [5, 6]
    table.put(tokens, b"five-six")
    expect(tokens == [5, 6], "put changed the list of tokens.")
    tokens[0] = 9
    expect(
        table.get([5, 6]) == b"five-six" and table.get([9, 6]) is None,
        "A list was put, and its owner changed it afterwards. The table's entry changed, too: keep a copy of the tokens.",
    )


def _like_a_dictionary(Table: Any, hash_of: _Counted, rng: random.Random) -> None:
    table, right = Table(hash_of), dict[tuple[int, ...], bytes]()
    for i in range(200):
        tokens = [rng.randrange(4) for _ in range(rng.randrange(1, 5))]
        before = hash_of.calls
        if rng.random() < 0.5:
            table.put(list(tokens), b"%d" % i)
            right[tuple(tokens)] = b"%d" % i
        else:
            got, want = table.get(list(tokens)), right.get(tuple(tokens))
            expect_equal(got, want, f"After {i} calls, get({tokens}) is wrong.")
        asked = hash_of.calls - before
        expect(
            asked <= 1,
            f"One call of put or get asked for {asked} hashes. Keep entries by their hash, so that one is enough.",
        )
        expect(
            asked == 1,
            "A call of put or get didn't ask for a hash. Here, entries are found by `hash_of`, as in files' names.",
        )
    expect_equal(table.size(), len(right), "After 200 calls, size() is wrong.")


# --- 19.4 -------------------------------------------------------------------------------------------------------------

OURS, THEIRS = b"our model".ljust(16), b"another model".ljust(16)


def _file(fingerprint: bytes, tokens: list[int], kv: bytes, count: int | None = None) -> bytes:
    number = len(tokens) if count is None else count
    start = fingerprint + number.to_bytes(4, "little") + b"".join(token.to_bytes(4, "little") for token in tokens) + kv
    return start + sha256(start).digest()


@exercise("19.4", "A file that isn't trusted", points=2)
def _(given: Given) -> str:
    read_kv, rng, tried = given["read_kv"], random.Random(194), 0

    def asked(data: bytes, tokens: list[int], token_bytes: int, said: str, fingerprint: bytes = OURS) -> Any:
        kept = list(tokens)
        try:
            got = read_kv(data, fingerprint, tokens, token_bytes)
        except NotImplementedError:
            raise
        except Exception as error:
            expect(
                False,
                f"{said} read_kv raised {type(error).__name__}: {error}. Whatever is in a file, it is only a miss.",
            )
        expect(tokens == kept, "You changed the list of tokens.")
        expect(got is None or isinstance(got, bytes), f"{said} Return bytes or None, not {a_kind(got)}.")
        return got

    for count, token_bytes in ((2, 4), (1, 1), (5, 3), (16, 8)):
        tokens, kv = [rng.randrange(1500) for _ in range(count)], rng.randbytes(count * token_bytes)
        whole, of = _file(OURS, tokens, kv), f"A file with {count} tokens, {token_bytes} bytes of K/V each."
        expect_equal(asked(whole, tokens, token_bytes, of), kv, f"{of} It is right, and so are the tokens.")
        for name, data in _wrong(whole, tokens, kv, token_bytes, rng):
            got = asked(data, tokens, token_bytes, f"{of} {name}")
            expect(got is None, f"{of} {name} It must be a miss, and you return {got!r}.")
            tried += 1
        other = [*tokens[:-1], tokens[-1] + 1]
        for wanted, why in ((other, "has another last token"), ([*tokens, 1], "has one token more"),
                            (tokens[:-1], "has one token fewer")):  # fmt: skip
            got = asked(whole, wanted, token_bytes, of)
            expect(got is None, f"{of} The text that is asked for {why}. It must be a miss, and you return {got!r}.")
        got = asked(whole, tokens, token_bytes, of, THEIRS)
        expect(got is None, f"{of} Another model asks for it. It must be a miss, and you return {got!r}.")
        tried += 4
    return f"{tried} files that aren't surely the same"


def _wrong(whole: bytes, tokens: list[int], kv: bytes, token_bytes: int, rng: random.Random) -> list[tuple[str, bytes]]:
    """Files that are wrong, and in which way. The first ones have a checksum that fits."""
    other = [tokens[0] + 1, *tokens[1:]]
    found = [
        ("Its fingerprint is another model's, and the checksum fits.", _file(THEIRS, tokens, kv)),
        ("Its first token is another one, and the checksum fits.", _file(OURS, other, kv)),
        ("It has one byte of K/V too few, and the checksum fits.", _file(OURS, tokens, kv[:-1])),
        ("It has one byte of K/V too many, and the checksum fits.", _file(OURS, tokens, kv + b"x")),
        ("Its number of tokens is wrong, and the checksum fits.", _file(OURS, tokens, kv, len(tokens) + 1)),
        ("Its number of tokens is huge, and the checksum fits.", _file(OURS, tokens, kv, 2**32 - 1)),
        ("Behind its checksum comes another byte.", whole + b"\0"),
        ("It is empty.", b""),
        ("It isn't a file of K/V at all.", rng.randbytes(len(whole))),
    ]
    found += [(f"Only its first {i} bytes are there.", whole[:i]) for i in range(1, len(whole))]
    flipped = ((i, whole[:i] + bytes([whole[i] ^ 1 << i % 8]) + whole[i + 1 :]) for i in range(len(whole)))
    return found + [(f"One bit of byte {i} has changed.", data) for i, data in flipped]

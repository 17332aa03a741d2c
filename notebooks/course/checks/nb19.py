"""Checks of notebook 19: when fetching pays, and files that may be anything."""

import random
from fractions import Fraction
from hashlib import sha256
from math import floor
from typing import Any

from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import expect, expect_equal
from notebooks.course.tables import Mistake, Wrong, compare


@exercise("19.1", "When fetching pays")
def _(given: Given) -> str:
    rng = random.Random(191)
    cases = [(1024, 2.0**20, begin, 2.0**-power) for begin in (0.5, 0.0) for power in (8, 9, 10, 11)]
    cases.append((1024, 2.0**20, 2.0**-12, 2.0**-8))
    for _ in range(60):  # all powers of two, or sums of few: floats have them exactly
        speed, begin = 2.0 ** rng.randrange(18, 24), rng.randrange(64) / 64
        cases.append((2 ** rng.randrange(8, 14), speed, begin, 2.0 ** -rng.randrange(4, 14)))
    mistakes: dict[str, Mistake] = {
        "You count tokens that take as long both ways. Equal isn't faster.": "equal",
        "1 token isn't fetched faster. Did you forget the time before the first byte?": "at_once",
        "Where each token takes longer, or as long, fetching is never faster. Return None.": "never_0",
    }
    hint = "the fewest tokens, at least 1 and a whole number, for which fetching is faster; None if it never is"
    compare(given["fewest_tokens"], _fewest, cases, mistakes, hint=hint)
    return f"{len(cases)} tiers, quick and slow ones"


def _fewest(
    bytes_per_token: int, bytes_per_second: float, begin: float, compute: float, wrong: Wrong = ()
) -> int | None:
    """By fractions, so exactly."""
    gain = Fraction(compute) - Fraction(bytes_per_token) / Fraction(bytes_per_second)
    if gain <= 0:
        return 0 if "never_0" in wrong else None
    enough = Fraction(0 if "at_once" in wrong else begin) / gain
    return max(-floor(-enough), 1) if "equal" in wrong else floor(enough) + 1


OURS, THEIRS = b"our model".ljust(16), b"another model".ljust(16)


def _file(fingerprint: bytes, tokens: list[int], kv: bytes, count: int | None = None) -> bytes:
    number = len(tokens) if count is None else count
    start = fingerprint + number.to_bytes(4, "little") + b"".join(token.to_bytes(4, "little") for token in tokens) + kv
    return start + sha256(start).digest()


@exercise("19.2", "A file that isn't trusted", points=2)
def _(given: Given) -> str:
    read_kv, rng, tried = given["read_kv"], random.Random(194), 0

    def asked(data: bytes, tokens: list[int], token_bytes: int, said: str, fingerprint: bytes = OURS) -> Any:
        kept = list(tokens)
        try:
            got = read_kv(data, fingerprint, tokens, token_bytes)
        except NotImplementedError:
            raise
        except Exception as error:
            miss = "Whatever is in a file, it is only a miss."
            expect(False, f"{said} read_kv raised {type(error).__name__}: {error}. {miss}")
        expect(tokens == kept, "You changed the list of tokens.")
        return got

    for count, token_bytes in ((2, 4), (1, 1), (5, 3), (16, 8)):
        tokens, kv = [rng.randrange(1500) for _ in range(count)], rng.randbytes(count * token_bytes)
        whole, of = _file(OURS, tokens, kv), f"A file with {count} tokens, {token_bytes} bytes of K/V each."
        expect_equal(asked(whole, tokens, token_bytes, of), kv, f"{of} It is right, and so are the tokens.")
        misses = [(said, data, tokens, OURS) for said, data in _wrong(whole, tokens, kv, rng)]
        for wanted, why in (
            ([*tokens[:-1], tokens[-1] + 1], "has another last token"),
            ([*tokens, 1], "has one token more"),
            (tokens[:-1], "has one token fewer"),
        ):
            misses.append((f"The text that is asked for {why}.", whole, wanted, OURS))
        misses.append(("Another model asks for it.", whole, tokens, THEIRS))
        for said, data, wanted, fingerprint in misses:
            got = asked(data, wanted, token_bytes, f"{of} {said}", fingerprint)
            expect(got is None, f"{of} {said} It must be a miss, and you return {got!r}.")
        tried += len(misses)
    return f"{tried} files that aren't surely the same"


def _wrong(whole: bytes, tokens: list[int], kv: bytes, rng: random.Random) -> list[tuple[str, bytes]]:
    """Files that are wrong, and in which way. The first ones have a checksum that fits."""
    found = [
        ("Its fingerprint is another model's, and the checksum fits.", _file(THEIRS, tokens, kv)),
        ("Its first token is another one, and the checksum fits.", _file(OURS, [tokens[0] + 1, *tokens[1:]], kv)),
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

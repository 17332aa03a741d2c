"""`viz.padded_batch`: how much of a rectangle is padding."""

from typing import Any

import pytest

pytest.importorskip("matplotlib")

from matplotlib.colors import to_hex

from nanoinfer import viz
from nanoinfer.sessions.inference import InferenceEngine, InferenceSession
from nanoinfer.viz.palette import ROLES
from tests.helpers.pictures import (
    assert_readable,
    named,
)


def test_lengths_are_padded_to_the_longest() -> None:
    picture = viz.padded_batch([5, 17, 9, 30])
    assert picture.alt == "4 rows padded to 30 tokens: 61 of 120 used, 59 padding (49 %)."
    padding = [patch for patch in named(picture, "row ") if to_hex(patch.get_facecolor()) == ROLES["padding"].face]
    assert len(padding) == 59
    assert_readable(picture)
    assert_readable(viz.padded_batch([1200, 3, 0, 400] * 8, labels=[f"a session with number {i}" for i in range(32)]))


def test_sessions_tell_their_bytes() -> None:
    sessions = []
    engine = InferenceEngine("story")
    for prompt in ("Once upon a time there was", "Tom"):
        session = InferenceSession(engine, 4, temperature=0)
        session.prefill(prompt)
        sessions.append(session)
    lens = [session.kv_len for session in sessions]
    used = sum(lens) * engine.kv_bytes_per_token
    assert used == sum(session.kv_bytes for session in sessions)
    picture = viz.padded_batch(sessions)
    assert picture.alt.startswith(
        f"2 rows padded to {max(lens)} tokens: {sum(lens)} of {2 * max(lens)} used = {used / 1024:.1f} KiB"
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "sessions_or_lens: must have at least one row"),
        ([3, -1], r"sessions_or_lens\[1\]=-1: must not be negative"),
        ([3, "x"], r"sessions_or_lens\[1\]: must be all InferenceSessions or all integers, got 'x'"),
        ("abc", "sessions_or_lens: must be list, got str"),
    ],
)
def test_other_rows_are_refused(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        viz.padded_batch(given)

"""The progress bar of `generate`."""

import re

import pytest

from nanoinfer.requests.progress import Progress
from tests.helpers.engines import Clock, make_engine, serve


def test_a_bar_shows_output_tokens_per_second(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    outputs = serve(make_engine(), "a", "b", max_new_tokens=6)
    with Progress(2, True, clock) as progress:
        clock.now += 2
        progress.ended(outputs)
    assert re.search(r"2/2 .*, 6 tok/s\]", capsys.readouterr().err.split("\r")[-1])  # 12 tokens in 2 seconds


def test_a_bar_that_is_not_shown_draws_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(2, False) as progress:
        progress.ended(serve(make_engine(), "a"))
    assert capsys.readouterr().err == ""

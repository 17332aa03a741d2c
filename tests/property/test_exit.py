"""Processes that end while requests are in flight: each ends with the return code that Python gives for its way to end."""

from pathlib import Path

import pytest

from tests.episodes.exits import run_episode
from tests.helpers.tiny_llm import make_llm_model

REPEATS = 5  # what is in flight differs, and so does the moment


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model's directory."""
    return make_llm_model(tmp_path_factory.mktemp("tiny")).path


@pytest.mark.parametrize(
    ("seed", "options"),
    [
        (100, ["--way", "end of main", "--asynchronous", "none"]),
        (200, ["--way", "SIGTERM handled", "--asynchronous", "none"]),
        (300, ["--way", "end of main", "--asynchronous", "loop closed first"]),
        (400, ["--way", "sys.exit", "--asynchronous", "in a daemon thread"]),
        (500, ["--way", "exception", "--asynchronous", "run"]),
        (600, ["--way", "KeyboardInterrupt", "--asynchronous", "in a thread, closed first"]),
    ],
    ids=lambda value: " ".join(value[1::2]) if isinstance(value, list) else None,
)
def test_a_process_ends_as_it_would_without_requests_in_flight(tiny: Path, seed: int, options: list[str]) -> None:
    """Threads that call an LLM, some of them daemons, and an AsyncEngine; `-X faulthandler` says what went wrong."""
    run_episode(tiny, seed, REPEATS, *options)

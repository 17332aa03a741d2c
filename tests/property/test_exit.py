"""Processes that end while requests are in flight: each ends with the return code that Python gives for its way to end."""

from pathlib import Path

import pytest

from tests.episodes.exits import run_episode
from tests.helpers.tiny_llm import make_llm_model

REPEATS = 5  # what threads are doing differs, and so does the moment


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model's directory."""
    return make_llm_model(tmp_path_factory.mktemp("tiny")).path


@pytest.mark.parametrize(
    "scenes",
    [
        ["end of main/none", "SIGTERM handled/none", "exception/none"],
        ["end of main/loop closed first", "sys.exit/in a daemon thread", "KeyboardInterrupt/run"],
    ],
    ids=["threads that call an LLM", "and an AsyncEngine"],
)
def test_a_process_ends_as_it_would_without_requests_in_flight(tiny: Path, scenes: list[str]) -> None:
    run_episode(tiny, 3 * 100, len(scenes) * REPEATS, "--scenes", *scenes)

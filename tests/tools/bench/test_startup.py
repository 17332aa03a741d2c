"""`bench startup`: processes from their start to the first token, cold and warm."""

import json
from pathlib import Path

import pytest

from nanoinfer.bench import startup
from nanoinfer.bench.engines import EngineSpec
from nanoinfer.bench.session import Settings
from nanoinfer.bench.startup import CACHES, format_startup, measure_startup
from nanoinfer.cli.main import main
from nanoinfer.model.loader import resolve_model_path
from tests.helpers.fake_sessions import FAKE

# A fake engine that tells how many starts have left a file in its cache, and leaves one there.
COUNTING = f"""
import os, pathlib, sys
sys.path.insert(0, {str(FAKE.parent)!r})
from fake_peer import Peer as Fake

class Peer(Fake):
    def __init__(self, *args, **options):
        cache = pathlib.Path(os.environ["NANOINFER_CACHE"])
        cache.mkdir(parents=True, exist_ok=True)
        with open(__file__ + ".seen", "a") as seen:
            seen.write(f"{{len(list(cache.iterdir()))}} ")
        (cache / "compiled").touch()
        super().__init__(*args, **options)
"""


def test_cold_starts_find_an_empty_cache_and_warm_ones_what_was_compiled(tmp_path: Path) -> None:
    file = tmp_path / "counting.py"
    file.write_text(COUNTING)
    engines = [EngineSpec("counting", file), EngineSpec("absent", FAKE, options={"refuse": True})]
    results = measure_startup(resolve_model_path("story"), Settings(engines, 2))
    assert Path(f"{file}.seen").read_text() == "0 0 1 0 1 ", "the first start fills the cache and is not counted"
    assert len(results["runs"]) == 2 * 2 * 2
    for run in results["runs"]:
        assert ("error" in run) == (run["engine"] == "absent")
        assert run["engine"] == "absent" or 0 < run["loaded_s"] <= run["first_token_s"]
    text = format_startup(results)
    assert "FAILED: absent" in text
    assert "| cold   |   absent |    failed |" in text


@pytest.mark.slow
def test_nanoinfer_started_for_real(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the kernels that this process has, not compiled anew: what is cold and what is warm, fakes have shown."""
    monkeypatch.setattr(startup, "CACHES", [name for name in CACHES if name != "NANOINFER_CACHE"])
    file = tmp_path / "starts.json"
    assert main(["bench", "startup", "--rounds", "1", "--threads", "1", "--json", str(file)]) == 0
    runs = json.loads(file.read_text())["runs"]
    assert all(0 < run["loaded_s"] < run["first_token_s"] for run in runs)
    assert "| warm " in capsys.readouterr().out

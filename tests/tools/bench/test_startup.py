"""`bench startup`: processes from their start to the first token, cold and warm."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from nanoinfer.bench import startup
from nanoinfer.bench.engines import EngineSpec, parse_engine
from nanoinfer.bench.startup import CACHES, Start, forget, format_startup, measure_startup
from nanoinfer.cli.main import main
from tests.helpers.fake_sessions import FAKE
from tests.helpers.waiting import Worker, until

# Writes the number of files in its cache, then leaves one there.
PROGRAM = (
    "import os, pathlib; cache = pathlib.Path(os.environ['NANOINFER_CACHE']); cache.mkdir(parents=True, exist_ok=True)",
    "open(model + '/seen', 'a').write(f'{len(list(cache.iterdir()))} ')",
    "(cache / 'compiled').touch()",
)


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> list[list[Path]]:
    """What was to be forgotten, a list of folders a cold start; the system keeps it."""
    calls: list[list[Path]] = []
    monkeypatch.setattr(startup, "forget", calls.append)
    return calls


def test_cold_starts_find_an_empty_cache_and_warm_ones_what_was_compiled(
    tmp_path: Path, forgotten: list[list[Path]]
) -> None:
    engine = EngineSpec("engine", FAKE)
    starts = measure_startup(tmp_path, [engine], 1, rounds=2, programs={FAKE.stem: PROGRAM})
    assert [(start.round, start.condition) for start in starts] == [(0, "cold"), (0, "warm"), (1, "cold"), (1, "warm")]
    assert (tmp_path / "seen").read_text() == "0 0 1 0 1 ", "the first start fills the cache and is not counted"
    assert len(forgotten) == 2, "the files of cold starts"
    assert all({tmp_path, Path(pytest.__file__).parent.parent} <= set(folders) for folders in forgotten)
    for start in starts:
        assert start.error is None
        assert 0 < start.seconds["imported"] <= start.seconds["loaded"] <= start.seconds["first token"]


def test_a_start_that_fails_says_why_and_the_others_are_measured(tmp_path: Path) -> None:
    engines = [EngineSpec("works", FAKE), EngineSpec("fails", Path("other.py"))]
    programs = {FAKE.stem: PROGRAM, "other": ("pass", "raise RuntimeError('no weights')", "pass")}
    text = format_startup(measure_startup(tmp_path, engines, 1, rounds=1, programs=programs))
    assert "- FAILED: fails, cold: exit code 1 | RuntimeError: no weights" in text
    rows = {tuple(cell.strip() for cell in line.split("|")[1:3]): line for line in text.splitlines() if "|" in line}
    assert "failed" not in rows["cold", "works"]
    assert "failed" in rows["cold", "fails"]


def test_a_start_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noted, pids = tmp_path / "noted", list[int]()

    class Timer:
        """Its time is over when the program hangs."""

        def __init__(self, seconds: float, function: Callable[..., None], arguments: tuple[int, int]):
            assert seconds == 7
            self.call = lambda: (until(noted.exists), noted.unlink(), pids.append(arguments[0]), function(*arguments))

        def start(self) -> None:
            self.worker = Worker(self.call)

        def cancel(self) -> None:
            self.worker.result()

    monkeypatch.setattr(startup, "threading", SimpleNamespace(Timer=Timer))
    program = ("import pathlib, signal", f"pathlib.Path({str(noted)!r}).touch()", "while True: signal.pause()")
    starts = measure_startup(
        tmp_path, [EngineSpec("hangs", FAKE)], 1, rounds=1, timeout=7, programs={FAKE.stem: program}
    )
    assert {start.error for start in starts} == {"no token within 7 s"}
    assert len(pids) == 3
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_what_an_engine_prints_is_no_stage(tmp_path: Path) -> None:
    program = ("print('loading')", "print('startup of the engine')", "print('a token')")
    (start, _) = measure_startup(tmp_path, [EngineSpec("e", FAKE)], 1, rounds=1, programs={FAKE.stem: program})
    assert set(start.seconds) == {"imported", "loaded", "first token"}


def test_ratios_are_taken_round_by_round() -> None:
    def start(engine: str, number: int, seconds: float) -> Start:
        return Start(engine, "cold", number, {"imported": 0.1, "loaded": 0.2, "first token": seconds})

    starts = [start("ours", 0, 1.0), start("other", 0, 3.0), start("ours", 1, 2.0), start("other", 1, 2.0)]
    text = format_startup(starts)
    (row,) = [line for line in text.splitlines() if line.startswith("| cold") and "other" in line]
    assert row.split("|")[-2].strip() == "2.0 (1.0..3.0)"


def test_only_engines_with_a_program_can_be_started(tmp_path: Path) -> None:
    for name in ("llamacpp", "nanoinfer:page_size=16"):
        with pytest.raises(ValueError, match=f"{name}: must be one of nanoinfer, transformers, vllm, without options"):
            measure_startup(tmp_path, [parse_engine(name)], 1)
    with pytest.raises(ValueError, match="rounds=0: must be at least 1"):
        measure_startup(tmp_path, [parse_engine("nanoinfer")], 1, rounds=0)


def test_forgetting_files_leaves_them_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "weights").write_bytes(b"123")
    (tmp_path / "gone").symlink_to(tmp_path / "no-such-file")
    forget([tmp_path])
    assert (tmp_path / "a" / "weights").read_bytes() == b"123"


@pytest.mark.slow
def test_nanoinfer_started_for_real(
    checkpoint: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the kernels that this process has, not compiled anew: what is cold and what is warm, fakes have shown."""
    monkeypatch.setattr("nanoinfer.bench.startup.CONDITIONS", ("warm",))
    monkeypatch.setattr("nanoinfer.bench.startup.CACHES", [name for name in CACHES if name != "NANOINFER_CACHE"])
    file = tmp_path / "starts.json"
    assert main(["bench", "startup", "--rounds", "1", "--threads", "1", "--json", str(file)]) == 0
    (start,) = json.loads(file.read_text())
    assert start["error"] is None
    assert start["seconds"]["imported"] < start["seconds"]["first token"]
    assert "| warm " in capsys.readouterr().out

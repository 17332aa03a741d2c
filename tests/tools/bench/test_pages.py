"""`bench serve --pages`: what watching the live page costs. No times."""

import asyncio
import subprocess
import sys

import pytest

from nanoinfer.bench.serve.own_cost import OwnCostSettings
from nanoinfer.bench.serve.pages import AGAIN, NONE, PAGES, Run, format_pages, measure_pages
from nanoinfer.bench.serve.pages_reader import Page
from nanoinfer.cli.main import main
from tests.helpers.engines import make_engine
from tests.helpers.live import SpellingTokenizer
from tests.helpers.servers import patient_app, running
from tests.helpers.waiting import HANG_S


def test_the_cost_is_compared_with_the_runs_before_and_after() -> None:
    rounds = [{NONE: Run(1.0, 2.0), PAGES: Run(1.1 + i / 10, 2.2, 300), AGAIN: Run(1.2, 2.0)} for i in range(3)]
    said = format_pages(rounds, OwnCostSettings(streams=2, new_tokens=6), 30)
    assert "take +9.1% (+0.0%..+18.2%) more time; the aim is at most 3%" in said
    assert "no page against no page: +20.0%" in said
    assert "+10.0% (+10.0%..+10.0%) more of the server's processor time" in said
    (row,) = [line for line in said.splitlines() if "| 30 pages " in line]
    assert row.endswith("  300 |")


def test_frames_are_counted_however_packets_are_cut() -> None:
    async def count() -> int:
        page = Page(asyncio.get_running_loop().create_future())
        stream = b"event: frame\ndata: {}\n\n" * 5
        for at in range(0, len(stream), 7):
            page.data_received(stream[at : at + 7])
        assert page._has_first.done()
        return page.frames

    assert asyncio.run(count()) == 5


@pytest.mark.slow  # a process
def test_pages_watch_a_server() -> None:
    with running(patient_app(make_engine(tokenizer=SpellingTokenizer(), slots=512))) as up:
        command = [sys.executable, "-m", "nanoinfer.bench.serve.pages_reader", str(up.port), "5"]
        reader = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert reader.stdout is not None
        assert reader.stdout.readline() == "ready\n"
        told, _ = reader.communicate(timeout=HANG_S)
        assert int(told) >= 5


@pytest.mark.parametrize(
    "argv", [["--pages", "0"], ["--pages", "65"], ["--pages", "3", "--own-cost"], ["--pages", "3", "--json", "x"]]
)
def test_options_that_do_not_fit_are_told(
    argv: list[str], tmp_path: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(str(tmp_path))
    assert main(["bench", "serve", *argv]) == 2
    assert "--pages" in capsys.readouterr().err


def test_more_pages_than_may_watch_are_refused_before_anything_starts() -> None:
    with pytest.raises(ValueError, match=r"--pages 65: must be in 1\.\.64"):
        measure_pages(OwnCostSettings(), 65)

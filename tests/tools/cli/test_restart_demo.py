"""`python -m nanoinfer demo restart`: what a chat's process leaves is what the next one finds."""

import re
from pathlib import Path

import pytest

from nanoinfer.cli.main import main

ROW = re.compile(r" +(\d)   (first|new, with its files|new, without) +(\d+) +(\d+) +(\d+) +(\d+) +[\d.]+ ms")


@pytest.mark.slow
def test_demo_restart_continues_a_chat_from_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "restart", "--cache-dir", str(tmp_path / "kv")]) == 0
    out = capsys.readouterr().out
    rows = [(turn, process, *map(int, numbers)) for turn, process, *numbers in ROW.findall(out)]
    assert [row[:2] for row in rows] == [
        *((str(turn), "first") for turn in (1, 2, 3)),
        ("4", "new, with its files"),
        ("4", "new, without"),
    ]
    for _, _, total, memory, files, computed in rows:
        assert total == memory + files + computed
    first, second, third, with_files, without = (row[2:] for row in rows)
    assert first[1] == first[2] == 0
    assert first[0] < second[1] < second[0] < third[1], "a turn's prompt and answer are cached for the next"
    assert (with_files[1], with_files[2] % 16, without[1:3]) == (0, 0, (0, 0))
    assert with_files[2] > third[0] - 16, "whole blocks of what the first process had"
    assert with_files[0] == without[0] == without[3]
    assert re.search(r"left \d+\.\d MiB of K/V in \d+ files?\.", out)
    assert "The last answer with and without files: equal" in out


@pytest.mark.slow
def test_demo_restart_says_what_llm_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "restart", "--page-size", "0"]) == 2
    assert "page_size=0: must be" in capsys.readouterr().err

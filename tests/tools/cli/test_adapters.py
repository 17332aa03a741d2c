"""Adapters on the command line, and their demo."""

import io
import re
import sys

import pytest

from notebooks.tools.files import ROOT
from tests.helpers.command_line import run

FOX = "Once upon a time, there was a little fox"
GREEDY = ["--temperature", "0", "--max-new-tokens", "24"]


def test_the_demo_shows_three_styles_their_trees_and_what_they_cost(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["demo", "adapters"], capsys)
    assert code == 0
    rows = re.findall(r"^\d +(base|rhymes|sea) +(\d+) +(\d+)", out, re.MULTILINE)
    assert [row[0] for row in rows] == ["base", "rhymes", "sea"] * 2
    assert [int(row[2]) for row in rows[:3]] == [0, 0, 0]  # nobody shares with another adapter
    assert all(int(row[2]) > 32 for row in rows[3:])  # but with the same one
    assert re.findall(r"^(base|rhymes|sea)$", out, re.MULTILINE) == ["base", "rhymes", "sea"]
    assert "2 base, 2 rhymes, 2 sea" in out
    assert len(re.findall(r"ms +\d\.\d\d x base", out)) == 3


def test_generate_writes_in_the_style_of_each_adapter(capsys: pytest.CaptureFixture[str]) -> None:
    folder = ROOT / "data" / "adapters" / "rhymes"
    both = ["--adapter", f"mine={folder}", "--adapter", "sea=sea"]
    code, out, err = run(["generate", FOX, *GREEDY, *both], capsys)
    assert code == 0
    assert err.count("adapter mine: ") == err.count("adapter sea: ") == 1
    _, alone, _ = run(["generate", FOX, *GREEDY, "--adapter", "rhymes"], capsys)
    _, base, _ = run(["generate", FOX, *GREEDY], capsys)
    assert alone.strip() in out
    assert base.strip() not in out


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            ["--adapter", "sky"],
            "'sky': must be NAME=PATH, a name and the folder of an adapter, or a bundled one: rhymes, sea",
        ),
        (["--adapter", "=sea"], "'=sea': must be NAME=PATH"),
        (["--adapter", "a=sea", "--adapter", "a=rhymes"], "--adapter: a name is given twice, in a, a"),
        (["--adapter", "sea", "--adapter", "sea=rhymes"], "--adapter: a name is given twice, in sea, sea"),
        (["--adapter", "a=/nowhere"], "adapter '/nowhere': no such folder"),
        (["--adapter", "a=nope"], "bundled: rhymes, sea"),
        (["--adapter", "base=sea"], "adapter 'base': this name is the base model's"),
        (["--max-adapters-on-device", "0"], "max_adapters_on_device=0: must be an integer of at least 1"),
    ],
)
def test_wrong_adapters_are_refused_in_one_line(
    options: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(["generate", FOX, *options], capsys)
    assert (code, out) == (2, "")
    assert problem in err
    assert err.count("\n") == 1


def test_info_lists_adapters(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["info", "--adapter", "x=sea"], capsys)
    assert code == 0
    assert re.search(r"adapter x +rank 4, \d+ projections, 0\.3 MiB, .*sea", out)


def test_a_chat_changes_its_adapter(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("/adapter\n/adapter base\n/adapter\nHello\n/adapter sky\n"))
    code, out, err = run(["chat", *GREEDY, "--adapter", "x=sea"], capsys)
    assert "base, x *" in out
    assert "[answers by base from now on]" in out
    assert "base *, x" in out
    assert code == 2
    assert "adapter='sky': no such adapter; loaded: 'x'; None is the base model" in err

"""Tables that commands print fit the terminal they are printed to."""

import re

import pytest

from notebooks.tools.files import ROOT
from tests.helpers.command_line import run


@pytest.mark.parametrize(
    "argv",
    [
        ["demo"],
        pytest.param(["demo", "--max-total-tokens", "400"], marks=pytest.mark.slow),
        pytest.param(["demo", "paged"], marks=pytest.mark.slow),
        ["info"],
    ],
)
def test_tables_fit_a_terminal_of_60_columns(
    argv: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    wide = run(argv, capsys)[1].split("What the model wrote")[0]
    monkeypatch.setenv("COLUMNS", "60")
    code, out, _ = run(argv, capsys)
    tables = out.split("What the model wrote")[0]
    assert code == 0
    assert max(map(len, tables.splitlines())) <= 60
    assert max(map(len, wide.splitlines())) > 60, "not narrow for nothing"
    if argv[0] == "info" or "paged" in argv:  # else times differ
        assert set(re.findall(r"\d+", wide)) <= set(re.findall(r"\d+", tables)), "nothing is left out"


def test_the_demos_table_is_in_one_part_where_it_fits(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = (ROOT / "README.md").read_text().split("## What the demo shows")[1].split("```")[1].splitlines()[1:]
    monkeypatch.setenv("COLUMNS", "120")
    out = run(["demo"], capsys)[1].splitlines()
    start = out.index(printed[0])
    same = [re.sub(r" +\d+\.\d ms", "", line) for line in out[start : start + len(printed)]]
    assert same == [re.sub(r" +\d+\.\d ms", "", line) for line in printed]


def test_a_benchs_tables_fit_a_terminal_of_60_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = ROOT / "data" / "bench" / "results.json"
    monkeypatch.delenv("COLUMNS", raising=False)
    code, wide, _ = run(["bench", "table", str(file)], capsys)
    assert code == 0
    rows = [line for line in wide.splitlines() if line.startswith("|")]
    assert max(map(len, rows)) > 60
    monkeypatch.setenv("COLUMNS", "60")
    narrow = run(["bench", "table", str(file)], capsys)[1]
    prose = {line for line in wide.splitlines() if not line.startswith("|")}
    assert max(len(line) for line in narrow.splitlines() if line not in prose) <= 60
    details = narrow.split("\nworkload")[-1].splitlines()
    assert details[1].split()[0] == "engine", "rows of several engines for one workload say which"
    assert {cell for row in rows for cell in re.findall(r"[\d.]+", row)} <= set(re.findall(r"[\d.]+", narrow))


def test_the_table_of_bench_decode_fits_a_terminal_of_60_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = ["bench", "decode", "--requests", "2", "--new-tokens", "2", "--rounds", "1"]
    monkeypatch.delenv("COLUMNS", raising=False)
    wide = run(argv, capsys)[1]
    assert max(map(len, wide.splitlines())) > 60
    monkeypatch.setenv("COLUMNS", "60")
    code, narrow, _ = run(argv, capsys)
    assert code == 0
    assert max(map(len, narrow.splitlines())) <= 60
    assert set(re.findall(r"[a-z]+", wide)) <= set(re.findall(r"[a-z]+", narrow)), "nothing is left out"


def test_the_tree_of_the_demo_counts_one_token_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(["demo"], capsys)[1]
    assert re.search(r" 1 token in slot \d+ ", out)
    assert " 1 tokens" not in out

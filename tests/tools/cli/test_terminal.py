"""Tables fit the terminal that they are printed to: columns that find no place beside each other follow below."""

import re

import pytest

from nanoinfer.terminal import filled, room, shortened, side_by_side, width
from tests.helpers.command_line import run

NAMES, SIZES, TEXTS = ["name", "a", "b"], ["size", "   1", "  20"], ["text", "a few words", "none"]


def test_columns_are_beside_each_other_where_they_fit() -> None:
    wide = "name  size  text\na        1  a few words\nb       20  none"
    assert side_by_side([NAMES, SIZES, TEXTS]) == wide
    assert side_by_side([NAMES, SIZES, TEXTS], max(map(len, wide.splitlines()))) == wide


def test_columns_that_find_no_place_follow_beside_the_first() -> None:
    narrow = side_by_side([NAMES, SIZES, TEXTS], 22)
    assert narrow == "name  size\na        1\nb       20\n\nname  text\na     a few words\nb     none"


def test_cells_too_wide_for_a_line_are_wrapped() -> None:
    assert side_by_side([NAMES, TEXTS], 12) == "name  text\na     a few\n      words\nb     none"
    assert side_by_side([["a long name"], ["x"]], 12) == "a long  x\nname"


@pytest.mark.parametrize("limit", [1, 2, 5, 9, 13, 40])
def test_no_text_is_lost_in_any_width(limit: int) -> None:
    table = side_by_side([NAMES, SIZES, TEXTS], limit)
    letters = "".join(table.split())
    assert all(letter in letters for cells in (SIZES, TEXTS) for letter in "".join(cells).replace(" ", ""))
    assert max(map(len, table.splitlines())) <= max(limit, 4)


def test_styles_take_no_room() -> None:
    bold = "\033[1mname\033[0m"
    assert width(bold) == 4
    assert side_by_side([[bold, "b"], ["x", "y"]]) == f"{bold}  x\nb     y"
    assert "\033" not in side_by_side([["\033[1ma long name\033[0m"], ["x"]], 12), "no half of a style"


def test_a_table_may_have_one_column() -> None:
    assert side_by_side([["a", "b"]], 60) == "a\nb"


def test_texts_are_filled_and_shortened() -> None:
    assert filled("one two three", 8, "  ") == "one two\n  three"
    assert filled("one two three", None) == "one two three"
    assert shortened("one\ntwo", 20) == "one two"
    assert shortened("0123456789", 4) == "01 ... 89"


def test_files_and_pipes_have_no_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert room() is None
    monkeypatch.setenv("COLUMNS", "60")
    assert room() == 60


@pytest.mark.parametrize(
    "argv",
    [
        ["demo"],
        ["info"],
        pytest.param(["demo", "paged"], marks=pytest.mark.slow),
    ],
    ids=lambda argv: " ".join(argv[:2]),
)
def test_the_tables_of_a_command_fit_a_terminal_of_60_columns(
    argv: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def printed() -> list[str]:
        code, out, _ = run(argv, capsys)
        assert code == 0
        return out.split("What the model wrote")[0].splitlines()

    monkeypatch.delenv("COLUMNS", raising=False)
    wide = printed()
    monkeypatch.setenv("COLUMNS", "60")
    narrow = printed()
    assert max(map(len, wide)) > 60
    assert max(len(line) for line in narrow if line not in wide) <= 60
    if argv[0] == "info":  # else times differ
        assert set(re.findall(r"\d+", "".join(wide))) <= set(re.findall(r"\d+", "".join(narrow))), "nothing is left out"

"""Tables fit the terminal that they are printed to."""

import pytest

from nanoinfer.terminal import filled, room, shortened, styled, table
from tests.helpers.command_line import run


def test_a_table_is_as_wide_as_its_cells_and_wraps_them_in_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    head, rows = ("name", "size", "text"), [("a", 1, "a few words"), (styled("b", "red"), 20, "none")]
    monkeypatch.delenv("COLUMNS", raising=False)
    assert table(head, rows, left=(0, 2)) == "name  size  text\na        1  a few words\nb       20  none"
    monkeypatch.setenv("COLUMNS", "18")
    narrow = table(head, rows, left=(0, 2))
    assert max(map(len, narrow.splitlines())) <= 18
    assert set("afewords20none") <= set(narrow), "nothing is left out"


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


@pytest.mark.parametrize("what", ["demo", "info"])
def test_what_a_command_prints_fits_a_terminal_of_60_columns(
    what: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    code, out, _ = run([what], capsys)
    assert code == 0
    assert max(map(len, out.split("What the model wrote")[0].splitlines())) <= 60

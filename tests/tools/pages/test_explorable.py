"""Explorables: what is refused, what a page holds, and what stands for it where there are no scripts."""

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

from notebooks.course.explore import (
    Bar,
    Bars,
    Cell,
    CellRow,
    Cells,
    Control,
    Frame,
    Lane,
    Lanes,
    Lines,
    Node,
    Number,
    Numbers,
    Series,
    Span,
    Strip,
    Tree,
)
from notebooks.course.explore.__main__ import main
from notebooks.course.explore.catalogue import CATALOGUE
from notebooks.course.explore.explorable import shared
from tests.helpers.explorables import make, panels

# --- what is refused --------------------------------------------------------------------------------------------------


def test_a_missing_combination_is_named() -> None:
    frames = dict(make().frames)
    del frames[2, 1]
    with pytest.raises(ValueError, match=r"none for \(2, 1\), which is slots=16, name='many'"):
        make(frames=frames)


def test_a_combination_that_no_control_has_is_named() -> None:
    with pytest.raises(ValueError, match=r"\(3, 0\) is no combination of the controls slots, name"):
        make(frames={**make().frames, (3, 0): make().start})


def test_two_controls_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="a name is there twice: a, a"):
        make(controls=[Control("a", "a", [1, 2]), Control("a", "b", [1, 2])])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": ""}, "name=''"),
        ({"label": " "}, "label=' '"),
        ({"values": [1]}, "at least 2"),
        ({"values": "ab"}, "at least 2"),
        ({"values": [1, 1]}, "one is there twice"),
        ({"values": [1, float("nan")]}, "values of size"),
        ({"values": [1, object()]}, "values of size"),
        ({"labels": ["one"]}, "1 for 2 values"),
        ({"labels": ["one", ""]}, "labels of size"),
        ({"start": 2}, r"start=2 of size: must be in 0\.\.1"),
        ({"start": True}, "start=True"),
    ],
)
def test_a_bad_control_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Control(**{"name": "size", "label": "size", "values": [1, 2], **arguments})


@pytest.mark.parametrize(
    ("make_it", "message"),
    [
        (lambda: Frame([], "x"), "at least 1 Panel"),
        (lambda: Frame([1], "x"), r"panels\[0\]: must be Panel, got int"),  # type: ignore[list-item]
        (lambda: Frame(panels(4, "few"), ""), "sentence=''"),
        (lambda: Bar("a", -1, "x"), "value=-1: must be at least 0"),
        (lambda: Bar("a", float("inf"), "x"), "value=inf"),
        (lambda: Bar("a", 1, "x", look="blue"), "look='blue': must be one of free"),
        (lambda: Bars("a", [Bar("a", 2, "x")], most=1), "most=1: must be at least 2"),
        (lambda: Cell("nothing"), "look='nothing'"),
        (lambda: Cell("r0", mark="odd"), "mark='odd'"),
        (lambda: Cells("a", [CellRow("r", [Cell()])], columns=["0", "1"]), "2 for rows of up to 1"),
        (lambda: Span(2, 2, "decode"), "end=2: must be at least 3"),
        (lambda: Span(0, 1, "resting"), "phase='resting'"),
        (lambda: Lanes("a", 2, [Lane("r", [Span(0, 3, "decode")])]), "r: a span ends at 3; there are steps=2"),
        (lambda: Lanes("a", 2, [Lane("r", [])], at=2), r"at=2: must be in 0\.\.1"),
        (lambda: Lanes("a", 2, [Lane("r", [])], Strip("s", 1, [[]])), "strip: 1 steps"),
        (lambda: Strip("s", 4, [[("r0", 3), ("r1", 2)]]), "5 held of size=4"),
        (lambda: Series("a", []), "points: must have at least one"),
        (lambda: Lines("a", "x", "y", [Series("a", [(0, 1)])], (1, 2), (1, 2), log_x=True), "every x must be above 0"),
        (lambda: Lines("a", "x", "y", [Series("a", [(1, 1)])], (2, 1), (1, 2)), "x_range"),
        (lambda: Tree("a", Node("", children=[Node("a", was="k")])), "was='k': the tree before has no such key"),
        (lambda: Tree("a", Node("", children=[Node("a", key="k"), Node("b", key="k")])), "a key is there twice"),
        (lambda: Number("", "x"), "name=''"),
    ],
)
def test_a_panel_that_cannot_be_drawn_is_refused(make_it: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_it()


def test_a_page_is_an_html_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"page\.png.*must end in \.html"):
        make().save(tmp_path / "page.png")


# --- what a page holds ------------------------------------------------------------------------------------------------


def test_what_repeats_is_in_the_page_once() -> None:
    text = make().html()
    assert text.count("a long sentence that takes space\\u0022") + text.count('a long sentence that takes space"') == 1


def test_parts_put_back_are_what_they_were() -> None:
    value = [{"a": [list(range(30)), {"b": list(range(30))}], "c": "$"}, [list(range(30)), {"b": list(range(30))}], 7]

    def unpack(part: Any) -> Any:
        if isinstance(part, dict):
            return unpack(parts[part["$"]]) if "$" in part else {k: unpack(v) for k, v in part.items()}
        return [unpack(each) for each in part] if isinstance(part, list) else part

    packed, parts = shared(value)
    assert unpack(packed) == value
    assert len(json.dumps([packed, parts])) < 0.5 * len(json.dumps(value))


def test_only_the_drawings_that_are_needed_are_in_the_page() -> None:
    frames = {(i,): Frame([Numbers("n", [Number("a", str(i))])], "x") for i in range(2)}
    text = make(controls=[Control("a", "a", [0, 1])], frames=frames).html()
    assert "draw.numbers =" in text
    assert "draw.tree =" not in text


def test_the_page_names_no_other_resource() -> None:
    text = make().html().replace("http://www.w3.org/2000/svg", "")
    assert re.findall(r"(?:https?:)?//[a-z]", text) == []
    assert re.findall(r"\b(?:src|href|import)\s*[=(]", text) == []
    assert "fetch(" not in text
    assert "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'" in text


def test_every_panel_says_itself_in_words() -> None:
    said = [panel.words() for panel in panels(4, "few")]
    assert said[0] == "Bars. used: 2 slots; cut: cut (left out)."
    assert said[1] == "Cells. row 0: 1 request 0 0, 1 request 0 1, 2 unused."
    assert said[2] == "Lanes. request 0: waiting in step 1, decode in steps 2 to 4."
    assert said[3].startswith(
        "Tree. Before: level 1 “abcd” in slots 0..3, locked by 1. After: level 1 “ab” in slots 0..1"
    )
    assert said[4] == "Lines. y over x. curve: from 1 at 1 to 16 at 16; here: 2 at 4."


def test_in_a_notebook_the_frame_comes_first_and_then_a_picture_for_where_there_are_no_scripts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ipython = pytest.importorskip("IPython.display")
    shown: list[Any] = []
    monkeypatch.setattr(ipython, "display", lambda data, **_: shown.append(data))
    explorable = make()
    explorable._ipython_display_()
    page, picture = shown
    assert page["text/plain"] == "Which? (a page with sliders)"
    assert html.unescape(page["text/html"].split('srcdoc="')[1].split('"')[0]) == explorable.html()
    assert 'sandbox="allow-scripts"' in page["text/html"]
    assert picture["text/plain"] == "Which? slots: 8, how many: few. 8 slots, few."
    assert picture["image/png"].startswith("iVBOR")


def test_the_command_names_what_it_does_not_know(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        (["nothing"], "no such explorable"),
        (["--out", str(tmp_path / "no")], "no such folder"),
    ):
        with pytest.raises(SystemExit):
            main(arguments)
        assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_the_page_that_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CATALOGUE, "padding", lambda llm: make(title=f"Made with {llm.model.name}"))
    main(["padding", "--out", str(tmp_path)])
    assert [path.name for path in tmp_path.iterdir()] == ["padding.html"]
    assert "Made with" in (tmp_path / "padding.html").read_text(encoding="utf-8")

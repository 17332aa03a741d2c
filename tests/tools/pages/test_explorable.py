"""Explorables: what a page holds, and what stands for it where there are no scripts."""

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

from notebooks.course.explore.__main__ import CATALOGUE, main
from notebooks.course.explore.explorable import shared
from tests.helpers.explorables import make


def test_a_missing_combination_is_named() -> None:
    frames = dict(make().frames)
    del frames[2, 1]
    with pytest.raises(KeyError, match=r"2, 1"):
        make(frames=frames)


def test_a_page_is_an_html_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"page\.png.*must end in \.html"):
        make().save(tmp_path / "page.png")


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


def test_the_page_names_no_other_resource() -> None:
    text = make().html().replace("http://www.w3.org/2000/svg", "")
    assert re.findall(r"(?:https?:)?//[a-z]", text) == []
    assert re.findall(r"\b(?:src|href|import)\s*[=(]", text) == []
    assert "fetch(" not in text
    assert "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'" in text


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


def test_the_command_writes_the_page_that_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CATALOGUE, "sampling", lambda llm: make(title=f"Made with {llm.model.name}"))
    main(["sampling", "--out", str(tmp_path)])
    assert [path.name for path in tmp_path.iterdir()] == ["sampling.html"]
    assert "Made with" in (tmp_path / "sampling.html").read_text(encoding="utf-8")

"""The page of the trace player as a file: it names nothing else, holds hostile text as text, and has a picture beneath."""

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

from nanoinfer.trace import Trace
from nanoinfer.trace.player import Player
from nanoinfer.viz.page import safe_json

HOSTILE = ("</script><img src=x onerror=alert(1)>", "<!--", "]]>", "\u2028", "${alert(1)}", "“&amp;”")


def test_the_page_names_no_other_resource(page_path: Path) -> None:
    text = page_path.read_text(encoding="utf-8")
    assert re.findall(r"(?:https?:)?//[a-z]", re.sub(r'http-equiv="', "", text.split("<script")[0])) == []
    assert re.findall(r"\b(?:src|href|url|import)\s*[=(]", text) == []
    assert "fetch(" not in text
    assert "XMLHttpRequest" not in text
    assert "{{" not in text.replace("${{", "")


def test_json_in_a_script_element_cannot_end_it() -> None:
    value = {"text": "".join(HOSTILE) + "\u2029"}
    text = safe_json(value)
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == value


def test_the_frame_holds_the_whole_page_as_an_attribute(run: Trace) -> None:
    player = run.player()
    frame = player._repr_html_()
    assert html.unescape(frame.split('srcdoc="')[1].split('"')[0]) == player.html()
    assert 'sandbox="allow-scripts"' in frame


def test_in_a_notebook_a_picture_and_its_numbers_stand_beneath(run: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    ipython = pytest.importorskip("IPython.display")
    shown: list[Any] = []
    monkeypatch.setattr(ipython, "display", lambda thing, raw=False, **_: shown.append(thing))
    run.player()._ipython_display_()
    page, picture = shown
    assert "iframe" in page["text/html"]
    picture._ipython_display_()
    assert "image/png" in shown[-2]
    assert shown[-1]["text/plain"].startswith(f"{len(run)} steps, ")


def test_a_page_is_an_html_file(run: Trace, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"run\.png.*must end in \.html"):
        Player(run).save(tmp_path / "run.png")

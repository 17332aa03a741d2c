"""Pages as files: the trace player and the interactive figures, in a notebook and where there are no scripts."""

import html
import json
from pathlib import Path
from typing import Any

import pytest

from nanoinfer.viz.page import safe_json
from nanoinfer.viz.trace import Trace
from nanoinfer.viz.trace.player import Player
from notebooks.course.explore import InteractiveFigure
from notebooks.course.explore.__main__ import CATALOGUE, main
from notebooks.course.explore.interactive_figure import shared
from tests.tools.pages.conftest import make

HOSTILE = ("</script><img src=x onerror=alert(1)>", "<!--", "]]>", "\u2028", "${alert(1)}", "“&amp;”")
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'"


def test_json_in_a_script_element_cannot_end_it() -> None:
    value = {"text": "".join(HOSTILE) + "\u2029"}
    text = safe_json(value)
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == value


@pytest.mark.parametrize("kind", [Player, InteractiveFigure])
def test_in_a_notebook_a_frame_holds_the_page_and_a_picture_with_its_words_stands_beneath(
    kind: type, run: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    ipython = pytest.importorskip("IPython.display")
    shown: list[Any] = []
    monkeypatch.setattr(ipython, "display", lambda thing, **_: shown.append(thing))
    page = run.player() if kind is Player else make()
    page._ipython_display_()
    if kind is Player:
        shown.pop()._ipython_display_()
    frame, picture = shown[:2]
    assert html.unescape(frame["text/html"].split('srcdoc="')[1].split('"')[0]) == page.html()
    assert 'sandbox="allow-scripts"' in frame["text/html"]
    assert POLICY in page.html(), "nothing is fetched"
    assert set(picture) == {"image/png", "text/plain"}
    words = f"{len(run)} steps, " if kind is Player else "Which? slots: 8, how many: few. 8 slots, few."
    assert picture["text/plain"].startswith(words)


def test_parts_put_back_are_what_they_were() -> None:
    value = [{"a": [list(range(30)), {"b": list(range(30))}], "c": "$"}, [list(range(30)), {"b": list(range(30))}], 7]

    def unpack(part: Any) -> Any:
        if isinstance(part, dict):
            return unpack(parts[part["$"]]) if "$" in part else {k: unpack(v) for k, v in part.items()}
        return [unpack(each) for each in part] if isinstance(part, list) else part

    packed, parts = shared(value)
    assert unpack(packed) == value
    assert len(json.dumps([packed, parts])) < 0.5 * len(json.dumps(value))


def test_a_page_is_an_html_file(run: Trace, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"run\.png.*must end in \.html"):
        run.player().save(tmp_path / "run.png")


def test_the_command_writes_the_page_that_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CATALOGUE, "sampling", lambda llm: make(title=f"Made with {llm.model.name}"))
    main(["sampling", "--out", str(tmp_path)])
    assert [path.name for path in tmp_path.iterdir()] == ["sampling.html"]
    assert "Made with" in (tmp_path / "sampling.html").read_text(encoding="utf-8")

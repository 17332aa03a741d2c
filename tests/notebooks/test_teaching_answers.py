"""Folded answers: what a notebook with `with answer():` saves, and that it is compared as any other output."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

pytest.importorskip("nbconvert", reason="nbconvert is not installed")
pytest.importorskip("selenium", reason="selenium is not installed (pip install selenium)")
from nbconvert import HTMLExporter
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from notebooks.build import build
from notebooks.course import answer
from notebooks.tools.files import ROOT, as_text, read, write
from notebooks.tools.tidy import output_problems
from tests.nbval_run import nbval
from tests.sample_series import code, notebook, save

SETUP = "from nanoinfer import viz\nfrom notebooks.course import answer"
TEXT = 'print("Think first.")\nwith answer():\n    print(1 + 1)\n    print("is", "two & a <bit>")'
PICTURE = (
    "with answer(\"Show the lengths\"):\n    print('before')\n"
    "    display(viz.bars({'a': 3, 'b': 5}, unit='tokens', title='Lengths'))\n    print('after')"
)
FAILS = "with answer():\n    print('as far as this')\n    raise ValueError('and no further')"
AFTER = "print('not folded')\nwith answer():\n    pass"
FRAME = (
    "class Frame(str):\n    def _repr_html_(self): return '<iframe></iframe>'\n\nwith answer():\n    display(Frame())"
)
NESTED = "with answer():\n    with answer('Inside'):\n        print('deep')"
WIDGET = (
    "with answer():\n    print('text')\n    display({'application/vnd.jupyter.widget-view+json': {'model_id': '1'}, "
    "'text/html': 'a still', 'text/plain': 'a slider'}, raw=True)"
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A notebook of these cells, run and saved."""
    root = tmp_path_factory.mktemp("answers")
    (root / "nanoinfer").symlink_to(ROOT / "nanoinfer")
    cells = [code(text) for text in (SETUP, TEXT, PICTURE)] + [code(FAILS, "raises-exception")]
    cells += [code(text) for text in (AFTER, FRAME, NESTED, WIDGET)]
    return build(save(root / "notebooks", "sample.ipynb", notebook(*cells)), root)


def outputs(path: Path, number: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read(path)["cells"][number]["outputs"]
    return found


def mime(output: dict[str, Any], kind: str) -> str:
    return "".join(output["data"][kind])


@pytest.mark.slow
def test_text_is_folded_and_what_is_outside_is_not(built: Path) -> None:
    outside, folded = outputs(built, 1)
    assert outside["text"] == ["Think first.\n"]
    assert mime(folded, "text/plain") == "2\nis two & a <bit>"
    html = mime(folded, "text/html")
    assert html.startswith("<details><summary>Show the answer</summary>")
    assert html.endswith("</details>")
    assert "<pre>2\nis two &amp; a &lt;bit&gt;</pre>" in html
    assert " open" not in html


@pytest.mark.slow
def test_a_picture_is_folded_between_what_was_printed_around_it_and_says_its_numbers_once(built: Path) -> None:
    (folded,) = outputs(built, 2)
    assert set(folded["data"]) == {"text/html", "text/plain"}
    html, plain = mime(folded, "text/html"), mime(folded, "text/plain")
    assert "<summary>Show the lengths</summary>" in html
    assert html.count("data:image/png;base64,") == 1
    assert 'width="900"' in html
    assert html.index("before") < html.index("<img") < html.index("after")
    assert plain.startswith("before\n")
    assert plain.endswith("after")
    assert plain.count("a: 3") == 1, "the numbers of the picture, once"


@pytest.mark.slow
def test_an_exception_passes_through_and_what_was_printed_before_is_folded(built: Path) -> None:
    folded, error = outputs(built, 3)
    assert mime(folded, "text/plain") == "as far as this"
    assert error["traceback"] == ["ValueError: and no further"]


@pytest.mark.slow
def test_the_output_goes_on_as_before_and_an_empty_answer_shows_nothing(built: Path) -> None:
    (outside,) = outputs(built, 4)
    assert outside["text"] == ["not folded\n"]


@pytest.mark.slow
def test_the_saved_output_is_compared_like_any_other(built: Path) -> None:
    content = read(built)
    assert output_problems(content, "sample") == []
    (picture,) = content["cells"][2]["outputs"]
    picture["data"]["text/html"] = [
        line.replace("base64,", "base64,ABC") for line in picture["data"]["text/html"]
    ]  # the same picture, drawn by another version
    content["cells"][1]["outputs"][1]["data"]["text/plain"] = ["3"]
    write(built.with_name("changed.ipynb"), content)
    changed = nbval(built.with_name("changed.ipynb"))
    assert changed.returncode == 1
    assert "two & a" in changed.stdout
    assert "1 failed, 7 passed" in changed.stdout, "all others say the same again, and pictures are not compared"


@pytest.mark.slow
def test_in_nbconverts_page_an_answer_is_folded_until_enter_is_pressed(
    built: Path, tmp_path: Path, browser: Chrome
) -> None:
    page = tmp_path / "sample.html"
    notebook = nbformat.reads(as_text(read(built)), as_version=4)
    page.write_text(HTMLExporter(template_name="basic").from_notebook_node(notebook)[0], encoding="utf-8")
    browser.get(page.as_uri())
    picture = browser.find_element(By.CSS_SELECTOR, "details img")
    assert not picture.is_displayed()
    assert browser.find_element(By.XPATH, "//pre[contains(., 'Think first.')]").is_displayed()
    browser.find_element(By.XPATH, "//summary[.='Show the lengths']").send_keys(Keys.ENTER)
    assert picture.is_displayed()
    assert picture.get_property("naturalWidth") > 900
    assert "a: 3 tokens" in picture.get_attribute("alt")


@pytest.mark.slow
def test_outside_a_notebook_the_block_just_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with answer():
        print("plain")
    assert capsys.readouterr().out == "plain\n"
    script = "from notebooks.course import answer\nwith answer(): print('plain')"
    run = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout == "plain\n"


@pytest.mark.slow
def test_a_widget_is_shown_below_the_fold(built: Path) -> None:
    folded, widget = outputs(built, 7)
    assert mime(folded, "text/plain") == "text"
    assert mime(widget, "text/html") == "a still"

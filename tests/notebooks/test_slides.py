"""Slides: what is on them, and that the page shows them without a network."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from notebooks.slides import FOLDER, REVEAL, main, slide_cells
from notebooks.tools.files import source_of
from tests.sample_series import code, markdown

if TYPE_CHECKING:
    from selenium.webdriver import Chrome


def printed(source: str, text: str) -> dict:
    return {**code(source), "outputs": [{"output_type": "stream", "name": "stdout", "text": text}]}


def kinds(*cells: dict) -> list[tuple[str, str]]:
    return [(cell["metadata"]["slideshow"]["slide_type"], source_of(cell)) for cell in slide_cells(list(cells))]


def test_what_a_cell_shows_is_a_slide_and_the_text_around_it_a_note() -> None:
    assert kinds(
        markdown("# 90 · Why?\n\nBecause."),
        code("import x"),
        markdown("## First\n\nBefore."),
        printed("print(1)", "1"),
        markdown("After."),
        code("# in nanoinfer/a.py\ndef f(): ..."),
        markdown("## Summary\n\n- Short."),
        markdown("## Exercises\n\nMore."),
        printed("print(2)", "2"),
    ) == [
        ("slide", "# 90 · Why?\n\nBecause."),
        ("slide", "## First"),
        ("notes", "Before."),
        ("-", "print(1)"),
        ("slide", "## First"),
        ("notes", "After."),
        ("-", "```python\n# in nanoinfer/a.py\ndef f(): ...\n```"),
        ("slide", "## Summary\n\n- Short."),
    ]


def test_an_answer_waits_and_is_unfolded_then() -> None:
    answer = printed("with answer():\n    print(3)", "<details><summary>a</summary><details>b</details></details>")
    question = markdown(
        "## A\n\nText.\n\n**Predict:** how many?\n\n<details><summary>Why?</summary>\n\nSo.\n</details>"
    )
    cells = slide_cells([markdown("## A\n\nText.\n\nSo: **Predict:** how many?"), printed("1", "1"), answer])
    shown = [cell["metadata"]["slideshow"]["slide_type"] for cell in cells]
    assert shown == ["slide", "notes", "-", "fragment"]
    assert source_of(cells[0]) == "## A\n\nSo: **Predict:** how many?"
    assert cells[-1]["outputs"][0]["text"].startswith("<details open><summary>a</summary><details>b")
    assert [kind for kind, _ in kinds(question)] == ["slide", "notes", "slide"]


@pytest.mark.slow
@pytest.mark.skipif(
    not FOLDER.is_dir(), reason=f"reveal.js is not installed (npm install --prefix . --no-save {REVEAL})"
)
def test_the_page_needs_no_network(tmp_path: Path, browser: "Chrome") -> None:
    pytest.importorskip("nbconvert", reason="nbconvert is not installed")
    assert main(["08", "--out", str(tmp_path)]) == 0
    browser.get((tmp_path / "08_radix_cache.html").as_uri())
    assert browser.execute_script("return Reveal.getTotalSlides()") > 10
    assert browser.get_log("browser") == []
    browser.execute_script("Reveal.slide(1)")
    shown = browser.execute_script("return Reveal.getCurrentSlide().innerText")
    assert "A dictionary of beginnings" in shown

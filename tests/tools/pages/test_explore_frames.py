"""The pages with sliders in the notebooks: each fits the frame that its notebook gives it, whatever is chosen."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from notebooks.tools.files import ROOT, read

pytest.importorskip("selenium", reason="selenium is not installed (pip install selenium)")
from selenium.webdriver.common.by import By

from tests.helpers.chromium import device, drawn

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

pytestmark = pytest.mark.slow
WIDTHS = (600, 900)  # of an output in JupyterLab: panels are beside each other from 700 on
NOTEBOOKS = sorted(
    path.stem for path in (ROOT / "notebooks").glob("*.ipynb") if 'class=\\"explorable' in path.read_text("utf-8")
)
TALLEST = """
const sizes = data.controls.map((control) => control.labels.length);
const longer = (all, size) => all.flatMap((some) => [...Array(size).keys()].map((i) => [...some, i]));
const combinations = sizes.reduce(longer, [[]]);
return Math.max(...combinations.map((indices) => {
  explorable.show(indices);
  return document.documentElement.scrollHeight;
}));
"""


def frames(notebook: str) -> list[str]:
    """The HTML of its outputs that are a page in a frame."""
    outputs = [
        out for cell in read(ROOT / "notebooks" / f"{notebook}.ipynb")["cells"] for out in cell.get("outputs", [])
    ]
    texts = ["".join(output.get("data", {}).get("text/html", "")) for output in outputs]
    return [text for text in texts if 'class="explorable"' in text]


def test_every_page_with_sliders_is_looked_at() -> None:
    assert sum(len(frames(notebook)) for notebook in NOTEBOOKS) >= 9


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_nothing_has_to_be_scrolled_in_a_notebooks_frame(notebook: str, browser: "Chrome", tmp_path: Path) -> None:
    for i, text in enumerate(frames(notebook)):
        page = tmp_path / f"{i}.html"
        page.write_text(f'<!doctype html><meta charset="utf-8"><body style="margin: 0">{text}</body>', "utf-8")
        for width in WIDTHS:
            with device(browser, width, 2000):  # no bar of the notebook's own beside it
                browser.get(page.as_uri())
                browser.switch_to.frame(browser.find_element(By.TAG_NAME, "iframe"))
                drawn(browser)
                tall = browser.execute_script(TALLEST)
                seen = browser.execute_script("return innerHeight")
                wide, room = browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
                browser.switch_to.default_content()
            title = re.search(r'title="([^"]*)"', text)
            assert title is not None
            assert (tall, wide) == (seen, room), f"{title[1]} in a frame {width} wide: {tall} pixels tall"

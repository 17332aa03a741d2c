"""Folded answers and a live widget: what they do, and what a notebook saves of them, compared as any other output."""

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("selenium", reason="selenium is not installed (pip install selenium)")
pytest.importorskip("ipywidgets", reason="ipywidgets is not installed")
import nbformat
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from nanoinfer.cache.memory_pool import TokenToKVPool
from notebooks.build import build
from notebooks.course.widgets import TrySlots, try_slots
from notebooks.tools.files import ROOT, as_text, read, write
from notebooks.tools.tidy import output_problems
from tests.nbval_run import nbval
from tests.sample_series import code, notebook, save

SETUP = """import torch
from nanoinfer import viz
from nanoinfer.cache.memory_pool import TokenToKVPool
from notebooks.course import answer
from notebooks.course.widgets import try_slots
pool = TokenToKVPool(16, torch.float32, 1, 1, 1)"""
TEXT = 'print("Think first.")\nwith answer():\n    print(1 + 1)\n    print("is", "two & a <bit>")'
PICTURE = (
    "with answer(\"Show the lengths\"):\n    print('before')\n"
    "    display(viz.bars({'a': 3, 'b': 5}, unit='tokens', title='Lengths'))\n    print('after')"
)
FAILS = "with answer():\n    print('as far as this')\n    raise ValueError('and no further')"
AFTER = "print('not folded')\nwith answer():\n    pass"
WIDGET = (
    "with answer():\n    print('text')\n    display({'application/vnd.jupyter.widget-view+json': {'model_id': '1'}, "
    "'text/html': 'a still', 'text/plain': 'a slider'}, raw=True)"
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A notebook of these cells and the widget, run and saved."""
    root = tmp_path_factory.mktemp("shown")
    for folder in ("nanoinfer", "data"):
        (root / folder).symlink_to(ROOT / folder)
    cells = [code(text) for text in (SETUP, TEXT, PICTURE)] + [code(FAILS, "raises-exception")]
    cells += [code(text) for text in (AFTER, WIDGET, "try_slots(pool)")]
    return build(save(root / "notebooks", "sample.ipynb", notebook(*cells)), root)


def outputs(path: Path, number: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read(path)["cells"][number]["outputs"]
    return found


def mime(output: dict[str, Any], kind: str) -> str:
    return "".join(output["data"][kind])


@pytest.mark.slow
class TestSaved:
    """What is in the file."""

    def test_text_is_folded_and_what_is_outside_is_not(self, built: Path) -> None:
        outside, folded = outputs(built, 1)
        assert outside["text"] == ["Think first.\n"]
        assert mime(folded, "text/plain") == "2\nis two & a <bit>"
        html = mime(folded, "text/html")
        assert html.startswith("<details><summary>Show the answer</summary>")
        assert "<pre>2\nis two &amp; a &lt;bit&gt;</pre>" in html
        (outside,) = outputs(built, 4)
        assert outside["text"] == ["not folded\n"], "and an empty answer shows nothing"

    def test_a_picture_is_folded_between_what_was_printed_around_it_and_says_its_numbers_once(
        self, built: Path
    ) -> None:
        (folded,) = outputs(built, 2)
        html, plain = mime(folded, "text/html"), mime(folded, "text/plain")
        assert html.count("data:image/png;base64,") == 1
        assert html.index("before") < html.index("<img") < html.index("after")
        assert plain.startswith("before\n")
        assert plain.endswith("after")
        assert plain.count("a: 3") == 1, "the numbers of the picture, once"

    def test_of_a_widget_a_still_picture_and_a_sentence_are_saved_below_any_fold(self, built: Path) -> None:
        folded, widget = outputs(built, 5)
        assert mime(folded, "text/plain") == "text"
        assert mime(widget, "text/html") == "a still"
        assert "widget" not in "".join(read(built)["metadata"])
        (output,) = outputs(built, 6)
        assert set(output["data"]) == {"text/html", "text/plain"}
        assert "by clicking on them" in mime(output, "text/html")
        assert "data:image/png;base64," in mime(output, "text/html")
        assert "16 free" in mime(output, "text/plain")

    def test_the_saved_output_is_compared_like_any_other(self, built: Path) -> None:
        content = read(built)
        assert output_problems(content, "sample") == []
        (picture,) = content["cells"][2]["outputs"]
        html = "".join(picture["data"]["text/html"])
        picture["data"]["text/html"] = html.replace("base64,", "base64,ABC")  # the same, drawn by another version
        content["cells"][1]["outputs"][1]["data"]["text/plain"] = ["3"]
        write(built.with_name("changed.ipynb"), content)
        changed = nbval(built.with_name("changed.ipynb"))
        assert changed.returncode == 1
        assert "two & a" in changed.stdout
        assert "1 failed, 6 passed" in changed.stdout, "all others say the same again, and pictures are not compared"

    def test_in_nbconverts_page_an_answer_is_folded_until_enter_is_pressed(
        self, built: Path, tmp_path: Path, browser: Chrome
    ) -> None:
        page = tmp_path / "sample.html"
        content = nbformat.reads(as_text(read(built)), as_version=4)
        exporter = pytest.importorskip("nbconvert").HTMLExporter(template_name="basic")  # it takes a second to import
        page.write_text(exporter.from_notebook_node(content)[0], encoding="utf-8")
        browser.get(page.as_uri())
        picture = browser.find_element(By.CSS_SELECTOR, "details img")
        assert not picture.is_displayed()
        assert browser.find_element(By.XPATH, "//pre[contains(., 'Think first.')]").is_displayed()
        browser.find_element(By.XPATH, "//summary[.='Show the lengths']").send_keys(Keys.ENTER)
        assert picture.is_displayed()
        assert "a: 3 tokens" in picture.get_attribute("alt")


def pool(size: int = 8, page_size: int = 1) -> TokenToKVPool:
    return TokenToKVPool(size, torch.float32, 1, 1, 1, page_size=page_size)


@pytest.fixture
def slots() -> TrySlots:
    return try_slots(pool())


def message(panel: TrySlots) -> str:
    """What the page shows as the message."""
    return str(panel._message.value)


class TestTrySlots:
    """Allocate by a button, free by pressing a number."""

    def test_slots_are_allocated_lowest_first_and_freed_one_by_one(self, slots: TrySlots) -> None:
        slots.amount.value = 3
        slots.alloc_button.click()
        slots.alloc_button.click()
        assert slots.owners == {"request 0": [0, 1, 2], "request 1": [3, 4, 5]}
        slots.slot_buttons[1].click()
        slots.slot_buttons[5].click()
        assert slots.owners == {"request 0": [0, 2], "request 1": [3, 4]}
        assert slots.pool.free_slots().tolist() == [1, 5, 6, 7]
        assert slots.slot_buttons[0].tooltip == "slot 0: request 0"
        assert slots.slot_buttons[1].tooltip == "slot 1: free"
        assert slots.pictures[0].alt.startswith("8 slots: 4 free")

    def test_a_double_free_is_refused_in_the_pools_own_words(self, slots: TrySlots) -> None:
        slots.slot_buttons[7].click()
        with pytest.raises(ValueError, match="slot 7: already free") as refused:
            slots.pool.free([7])
        assert slots.text == f"ValueError: {refused.value}"
        assert 'role="alert"' in message(slots)

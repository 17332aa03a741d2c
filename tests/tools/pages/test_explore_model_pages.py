"""Explorables of what a model does, in headless Chromium: each page shows what was recorded."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from nanoinfer import LLM
from notebooks.course.explore import Bars, Cells, Explorable, Lines, Numbers
from notebooks.course.explore.sampling import sampling

pytest.importorskip("selenium", reason="selenium is not installed (pip install selenium)")
from selenium.webdriver.common.keys import Keys

from tests.helpers.axe import axe_findings, needs_axe
from tests.helpers.chromium import LAPTOP, PHONE, device, drawn, press

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

pytestmark = pytest.mark.slow
LARGEST = 200_000  # bytes of a page
NAMES = ("sampling", "padding", "roofline", "product_roof", "adapter_tiles", "decode_bytes", "row_pointers")


@pytest.fixture(scope="module")
def pages(explorables: dict[str, Explorable], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Their addresses."""
    folder = tmp_path_factory.mktemp("pages")
    for name, explorable in explorables.items():
        explorable.save(folder / f"{name}.html")
        assert (folder / f"{name}.html").stat().st_size < LARGEST
    return {name: (folder / f"{name}.html").as_uri() for name in explorables}


def compare(page: "Chrome", explorable: Explorable, chosen: tuple[int, ...]) -> None:
    """What the page shows is the recorded frame, to the last text, bar and cell."""
    frame = explorable.frames[chosen]
    got: dict[str, Any] = page.execute_script("""
        const parts = (box, selector) => [...box.querySelectorAll(selector)];
        const numbers = (element, ...names) => names.map((name) => Number(element.getAttribute(name)));
        const text = (element) => element.textContent;
        return {
          chosen: explorable.chosen,
          sentence: document.querySelector("#sentence").textContent,
          panels: [...document.querySelectorAll(".panel")].map((panel) => ({
            title: panel.querySelector("h2").textContent,
            bars: parts(panel, ".bar").map((bar) => [text(bar.querySelector(".label")), text(bar.querySelector(".text")),
              bar.classList.contains("off"), parseFloat(bar.querySelector(".value").style.width)]),
            rows: parts(panel, ".line").map((line) => parts(line, ".cell").map((cell) => [cell.dataset.look, text(cell)]))
              .filter((cells) => cells.length > 0),
            numbers: parts(panel, ".numbers tr").map((row) => [text(row.children[0]), text(row.children[1])]),
            dots: parts(panel, ".dots").length,
            marks: parts(panel, ".mark").map((mark) => mark.getBBox())
              .map((box) => [box.x + box.width / 2, box.y + box.height / 2]),
            frame: parts(panel, ".frame").map((box) => numbers(box, "x", "y", "width", "height")),
          })),
        };""")
    assert got["chosen"] == list(chosen)
    assert got["sentence"] == frame.sentence
    assert [panel["title"] for panel in got["panels"]] == [panel.title for panel in frame.panels]
    for shown, panel in zip(got["panels"], frame.panels, strict=True):
        if isinstance(panel, Bars):
            assert [bar[:3] for bar in shown["bars"]] == [[bar.label, bar.text, bar.off] for bar in panel.bars]
            widths = [100 * bar.value / panel.most for bar in panel.bars]
            assert [bar[3] for bar in shown["bars"]] == pytest.approx(widths, abs=0.01)
        elif isinstance(panel, Cells):
            assert shown["rows"] == [[[cell.look, cell.text] for cell in row.cells] for row in panel.rows]
        elif isinstance(panel, Numbers):
            assert shown["numbers"] == [[number.name, number.value] for number in panel.numbers]
        elif isinstance(panel, Lines):
            assert shown["dots"] == sum(len(series.points) for series in panel.series if series.dots)
            ((left, top, width, height),) = shown["frame"]
            (x0, x1), (y0, y1) = np.log(panel.x_range), np.log(panel.y_range)
            for (cx, cy), mark in zip(shown["marks"], panel.marks, strict=True):
                assert cx == pytest.approx(left + width * (np.log(mark.x) - x0) / (x1 - x0), abs=0.01)
                assert cy == pytest.approx(top + height * (y1 - np.log(mark.y)) / (y1 - y0), abs=0.01)


@pytest.mark.parametrize("name", NAMES)
def test_the_keyboard_chooses_and_the_page_shows_what_was_recorded(
    browser: "Chrome", pages: dict[str, str], explorables: dict[str, Explorable], name: str
) -> None:
    explorable = explorables[name]
    browser.get(pages[name])
    chosen = [control.start for control in explorable.controls]
    compare(browser, explorable, tuple(chosen))
    for number, control in enumerate(explorable.controls):
        press(browser, *([Keys.TAB, Keys.TAB] if control.slider else [Keys.TAB]))
        active = browser.switch_to.active_element
        assert active.get_attribute("name") == control.name
        last = len(control.values) - 1
        for key, index in ((Keys.HOME, 0), (Keys.ARROW_RIGHT, 1), (Keys.END, last), (Keys.ARROW_LEFT, last - 1)):
            press(browser, key)
            chosen[number] = index
            compare(browser, explorable, tuple(chosen))
        if control.slider:
            press(browser, Keys.TAB)  # the button behind it
    assert browser.get_log("browser") == []


@pytest.mark.parametrize("name", NAMES)
def test_the_pages_fit_a_narrow_screen(browser: "Chrome", pages: dict[str, str], name: str) -> None:
    with device(browser, 320, 700, touch=True):
        browser.get(pages[name])
        drawn(browser)
        overflow = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert browser.execute_script(overflow) <= 0


@needs_axe
@pytest.mark.parametrize(
    ("name", "dark_screen"),
    list(zip(NAMES, (LAPTOP, PHONE, LAPTOP, PHONE, LAPTOP, PHONE, LAPTOP), strict=True)),
    ids=str,
)
def test_axe_finds_nothing(browser: "Chrome", pages: dict[str, str], name: str, dark_screen: tuple[int, int]) -> None:
    """On both screens, of which one is dark: test_explorable_browser.py has one page on both in both."""
    browser.get(pages[name])
    for screen in (LAPTOP, PHONE):
        with device(browser, *screen, dark=screen == dark_screen, touch=screen == PHONE):
            assert axe_findings(browser) == [], screen


def test_a_hostile_prompt_is_shown_as_text(browser: "Chrome", story: LLM, tmp_path: Path) -> None:
    prompt = "</script><img src=x onerror=alert(1)> ${alert(2)}"
    sampling(story, prompt, [1.0, 2.0], [0, 1], [1.0, 0.5]).save(tmp_path / "hostile.html")
    browser.get((tmp_path / "hostile.html").as_uri())
    assert prompt in browser.execute_script("return document.querySelector('header p').textContent")
    assert browser.execute_script("return document.querySelectorAll('img').length") == 0
    assert browser.get_log("browser") == []


@pytest.mark.parametrize("name", ["roofline", "sampling"])
def test_the_frame_of_the_focus_crosses_no_number_beneath_its_slider(
    browser: "Chrome", pages: dict[str, str], name: str
) -> None:
    with device(browser, *PHONE):
        browser.get(pages[name])
        drawn(browser)
        press(browser, Keys.TAB, Keys.TAB)
        framed = browser.execute_script("""
            const slider = document.activeElement, ticks = slider.parentElement.querySelector(".ticks");
            const framed = (element) => getComputedStyle(element).outlineStyle !== "none";
            const frame = [slider, slider.parentElement].find(framed);
            return [slider.type, frame.getBoundingClientRect().bottom, ticks.getBoundingClientRect().bottom];
        """)
    assert framed[0] == "range"
    assert framed[1] >= framed[2]


def test_no_label_of_a_roof_is_crossed_by_another_roof(browser: "Chrome", pages: dict[str, str]) -> None:
    for width in (PHONE[0], 640, 900):
        with device(browser, width, 1000):
            browser.get(pages["roofline"])
            drawn(browser)
            crossed = browser.execute_script("""
                const ends = [...document.querySelectorAll(".curve")]
                  .map((curve) => curve.getPointAtLength(curve.getTotalLength()).y);
                const crossed = (box) => ends.some((y) => y > box.y + 2 && y < box.y + box.height - 3);
                return [...document.querySelectorAll(".halo:not(.marked)")]
                  .filter((label) => crossed(label.getBBox())).map((label) => label.textContent);
            """)
        assert crossed == [], width


def test_no_name_of_a_mark_is_over_the_numbers_of_the_axis(browser: "Chrome", pages: dict[str, str]) -> None:
    with device(browser, *PHONE):
        browser.get(pages["roofline"])
        drawn(browser)
        lefts = browser.execute_script("""
            explorable.show([0, 0]);
            const left = document.querySelector(".chart .frame").getBBox().x;
            return [...document.querySelectorAll(".marked")].map((label) => label.getBBox().x - left);
        """)
    assert len(lefts) == 2
    assert min(lefts) >= 0

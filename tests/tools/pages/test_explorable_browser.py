"""Every kind of panel of an explorable in headless Chromium, driven by the keyboard."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from notebooks.course.explore import (
    Bar,
    Bars,
    Cell,
    CellRow,
    Cells,
    Control,
    Explorable,
    Frame,
    Lane,
    Lanes,
    Node,
    Number,
    Numbers,
    Span,
    Strip,
    Tree,
)

pytest.importorskip("selenium", reason="selenium is not installed (pip install selenium)")
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.helpers.axe import axe_findings, needs_axe
from tests.helpers.chromium import LAPTOP, PHONE, device, press
from tests.helpers.explorables import NAMES, SLOTS, make

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

pytestmark = pytest.mark.slow
HOSTILE = "</script><img src=x onerror=alert(1)><!-- ]]> \u2028 ${alert(1)} “&amp;”"


@pytest.fixture(scope="module")
def page_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("explore") / "page.html"
    make().save(path)
    return path


@pytest.fixture
def page(browser: "Chrome", page_path: Path) -> "Chrome":
    browser.get(page_path.as_uri())
    return browser


def drawn(page: "Chrome") -> dict[str, Any]:
    """What the page shows, from its elements."""
    return page.execute_script("""
        const all = (selector) => [...document.querySelectorAll(selector)];
        const texts = (selector) => all(selector).map((element) => element.textContent);
        return {
          sentence: document.querySelector("#sentence").textContent,
          labels: all(".drawing").map((box) => box.getAttribute("aria-label")),
          bars: all(".bar").map((bar) => [bar.querySelector(".label").textContent, bar.querySelector(".text").textContent,
            parseFloat(bar.querySelector(".value").style.width), bar.classList.contains("off")]),
          cells: all(".cell").map((cell) => [cell.dataset.look, cell.textContent]),
          held: all(".strip > div").map((step) =>
            [...step.children].reduce((sum, part) => sum + Number(part.dataset.held), 0)),
          nodes: texts(".after .node b"),
          arrows: all(".arrows > path").length,
          numbers: texts(".numbers tr"),
        };""")


def test_the_keyboard_alone_reaches_every_combination_and_each_shows_its_frame(page: "Chrome") -> None:
    press(page, Keys.TAB, Keys.TAB)  # past the button, to the slider
    assert page.switch_to.active_element.get_attribute("type") == "range"
    press(page, Keys.HOME)
    for i, slots in enumerate(SLOTS):
        for j, name in enumerate(NAMES):
            if j:
                press(page, Keys.TAB, Keys.TAB, Keys.ARROW_DOWN)
            assert page.execute_script("return explorable.chosen") == [i, j]
            got, frame = drawn(page), make().frames[i, j]
            used = slots // 2 + (name == "many")
            assert got["sentence"] == f"{slots} slots, {name}." == frame.sentence
            assert got["labels"] == [*(panel.words() for panel in frame.panels[:-1]), None]
            assert got["bars"] == [["used", f"{used} slots", 100 * used / 16, False], ["cut", "cut", 0, True]]
            assert got["cells"] == [["r0", str(n)] for n in range(used)] + [["unused", "–"]] * (slots - used)
            assert got["held"] == [min(used, step) for step in range(4)]
            assert got["nodes"] == ["root", "ab", "cd", "xy"]
            assert got["arrows"] == 2
            assert got["numbers"] == ["alwaysthe same", "longa long sentence that takes space"]
        press(page, Keys.ARROW_UP)
        webdriver.ActionChains(page).key_down(Keys.SHIFT).send_keys(Keys.TAB, Keys.TAB).key_up(Keys.SHIFT).perform()
        press(page, Keys.ARROW_RIGHT)
    assert page.get_log("browser") == []


def test_nothing_is_fetched(page: "Chrome", page_path: Path) -> None:
    page.execute_script("explorable.show([2, 1])")
    messages = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    fetched = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert fetched == [page_path.as_uri()]


def test_hostile_texts_are_shown_as_text(browser: "Chrome", tmp_path: Path) -> None:
    nodes = Node("", children=[Node(HOSTILE, HOSTILE, was="k", note=HOSTILE)])
    of_each = [
        Bars(HOSTILE, [Bar(HOSTILE, 1, HOSTILE)], 1, HOSTILE),
        Cells(HOSTILE, [CellRow(HOSTILE, [Cell("r0", HOSTILE)], HOSTILE)], [("r0", HOSTILE)], [HOSTILE]),
        Lanes(
            HOSTILE, 1, [Lane(HOSTILE, [Span(0, 1, "decode", HOSTILE)])], Strip(HOSTILE, 1, [[]]), 0, [("r0", HOSTILE)]
        ),
        Tree(HOSTILE, nodes, Node("", children=[Node(HOSTILE, key="k")])),
        Numbers(HOSTILE, [Number(HOSTILE, HOSTILE)]),
    ]
    control = Control("c", HOSTILE, ["a", "b"], [HOSTILE, "b"], slider=True)
    second = Control("d", HOSTILE, ["a", "b"], [HOSTILE, "b"])
    frames = {(i, j): Frame(of_each, HOSTILE) for i in range(2) for j in range(2)}
    Explorable(HOSTILE, HOSTILE, [control, second], frames).save(tmp_path / "hostile.html")
    browser.get((tmp_path / "hostile.html").as_uri())
    assert browser.execute_script("return document.querySelectorAll('img').length") == 0
    assert browser.execute_script("return document.querySelectorAll('script').length") == 2
    for selector in (
        "h1",
        "#sentence",
        "h2",
        ".bar .label",
        ".cell",
        ".node.o-tree b",
        ".numbers td",
        "output",
    ):
        found = browser.execute_script("return document.querySelector(arguments[0]).textContent", selector)
        assert found == HOSTILE, selector
    assert browser.get_log("browser") == []


def test_every_control_has_a_label_and_what_scrolls_can_be_reached(page: "Chrome") -> None:
    for control in page.find_elements(By.CSS_SELECTOR, "input, select"):
        (label,) = page.find_elements(By.CSS_SELECTOR, f"label[for='{control.get_attribute('id')}']")
        assert label.text
    assert page.find_element(By.ID, "sentence").get_attribute("aria-live") == "polite"
    with device(page, 320, 800):
        page.refresh()
        page.execute_script("explorable.show([2, 1])")  # the longest row
        scrolls = page.execute_script("""
            return [...document.querySelectorAll(".drawing")].filter((box) => box.scrollWidth > box.clientWidth + 1)
              .map((box) => box.tabIndex)""")
        assert scrolls
        assert set(scrolls) == {0}


@needs_axe
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("screen", [LAPTOP, PHONE], ids=str)
def test_axe_finds_nothing(page: "Chrome", screen: tuple[int, int], dark: bool) -> None:
    with device(page, *screen, dark=dark, touch=screen == PHONE):
        page.refresh()
        assert axe_findings(page) == []


def test_whoever_wants_less_motion_gets_none(page: "Chrome") -> None:
    duration = "return getComputedStyle(document.querySelector('.bar .value')).transitionDuration"
    assert page.execute_script(duration) != "0s"
    reduced = [{"name": "prefers-reduced-motion", "value": "reduce"}]
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": reduced})
    try:
        assert page.execute_script(duration) == "0s"
    finally:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_in_a_notebook_the_frame_runs_and_hides_the_picture_beneath_it(browser: "Chrome", tmp_path: Path) -> None:
    """The elements are JupyterLab's: one .jp-OutputArea-child per output."""
    output = '<div class="jp-OutputArea-child">{}</div>'
    picture = '<img alt="still" src="data:,">'
    text = output.format(make()._repr_html_()) + output.format(picture) + output.format("later")
    (tmp_path / "notebook.html").write_text(f"<!doctype html><body>{text}</body>")
    browser.get((tmp_path / "notebook.html").as_uri())
    seen = browser.execute_script(
        "return [...document.querySelectorAll('.jp-OutputArea-child')].map((child) => getComputedStyle(child).display)"
    )
    assert seen == ["block", "none", "block"]
    browser.switch_to.frame(browser.find_element(By.TAG_NAME, "iframe"))
    browser.find_element(By.CSS_SELECTOR, "[aria-label='slots: one more']").click()
    assert drawn(browser)["sentence"] == "16 slots, few."
    browser.switch_to.default_content()

"""The interactive figures in headless Chromium: moved by keyboard, they show recorded frames and fetch nothing."""

from collections.abc import Callable
from math import floor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from notebooks.course.explore import Bars, Cells, Frame, InteractiveFigure, Lanes, Node, Numbers, Tree
from notebooks.course.explore.__main__ import CATALOGUE
from notebooks.course.explore.panels.base import Panel
from notebooks.tools.files import ROOT

pytest.importorskip("selenium", reason="selenium is not installed (pip install selenium)")
from selenium.webdriver.common.keys import Keys

from tests.helpers.chromium import LAPTOP, PHONE, axe_findings, device, needs_axe, press
from tests.tools.pages.conftest import make

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

pytestmark = pytest.mark.slow
TABLE_OVERFLOW = """return Math.max(0, ...[...document.querySelectorAll("[data-kind=numbers] .drawing")].map(
    (box) => box.scrollWidth - box.clientWidth))"""


READ = """
const all = (at, selector) => [...at.querySelectorAll(selector)];
const text = (element) => element?.textContent.trim() ?? "";
const within = (element, selector) => text(element.querySelector(selector));
const look = (element) => [...element.classList].find((name) => name.startsWith("o-") || name.startsWith("p-"));
const share = (element) => Math.round(10 * parseFloat(element.style.width)) / 10;
const mark = (cell) => ["written", "read", "evicted", "shared"].find((name) => cell.classList.contains(name)) ?? "";
const span = (element) => [...element.dataset.span.split(" ").map(Number), look(element)];
const node = (element) => [within(element, "b"), element.dataset.key ?? "", within(element, ".mark"), look(element)];
const bar = (element) => {
  const value = element.querySelector(".value");
  return [within(element, ".label"), share(value), look(value), within(element, ".text")];
};
const kinds = {
  numbers: (box) => all(box, "tr").map((row) => [text(row.children[0]), text(row.children[1])]),
  bars: (box) => all(box, ".bar").map(bar),
  cells: (box) => all(box, ".line").filter((line) => line.querySelector(".cell")).map((line) => [
    within(line, ".label"), all(line, ".cell").map((cell) => [cell.dataset.look, text(cell), mark(cell)])]),
  lanes: (box) => ({
    lanes: all(box, ".lane").map((lane) => all(lane, "[data-span]").map(span)),
    strip: all(box, ".strip .column").map((one) => all(one, "i").map((part) => [look(part), Number(part.dataset.held)])),
    flags: all(box.parentElement, ".said-flags li").map(text),
    lines: all(box, ".over .flag").length,
  }),
  tree: (box) => ({
    nodes: all(box, ".side").map((side) => all(side, ".node").map(node)),
    arrows: all(box, ".arrows > path").length,
  }),
};
const panels = all(document, ".panel").map((section) => [
  within(section, "h2"), kinds[section.dataset.kind](section.children[1])]);
return { sentence: text(document.getElementById("sentence")), panels };
"""


def read_page(page: "Chrome") -> dict[str, Any]:
    """What is there to see."""
    return page.execute_script(READ)


def expected_page(frame: Frame) -> dict[str, Any]:
    """The same from the recorded frame."""
    return {"sentence": frame.sentence, "panels": [[each.title, _panel(each)] for each in frame.panels]}


def _panel(panel: Panel) -> Any:
    if isinstance(panel, Numbers):
        return [[number.name, number.value] for number in panel.numbers]
    if isinstance(panel, Bars):
        return [
            [bar.label.strip(), floor(1000 * bar.value / panel.most + 0.5) / 10, f"o-{bar.look}", bar.text]
            for bar in panel.bars
        ]
    if isinstance(panel, Cells):
        return [
            [row.label, [[c.look, c.text or ("–" if c.look == "unused" else ""), c.mark] for c in row.cells]]
            for row in panel.rows
        ]
    if isinstance(panel, Lanes):
        return {
            "lanes": [[[span.start, span.end, f"p-{span.phase}"] for span in lane.spans] for lane in panel.lanes],
            "strip": [
                [[f"o-{look}", held] for look, held in step] for step in (panel.strip.steps if panel.strip else [])
            ],
            "flags": [f"! {flag.text}" for flag in panel.flags],
            "lines": len(panel.flags),
        }
    assert isinstance(panel, Tree)
    roots = [root for root in (panel.before, panel.root) if root is not None]
    arrows = sum(node.was != "" for node in panel.root.walk()) if panel.before else 0
    return {"nodes": [[_node(node, root) for node in root.walk()] for root in roots], "arrows": arrows}


def _node(node: Node, root: Node) -> list[str]:
    look = "o-free" if node is root else "o-locked" if node.locks else "o-tree"
    return [(node.text or "root").strip(), node.key, node.mark, look]


@pytest.fixture(scope="module", params=["tree_steps", "batching", "block_slots", "double_free"])
def figure(request: pytest.FixtureRequest, recorded: Callable[[Any], InteractiveFigure]) -> InteractiveFigure:
    """Some of them, which have all kinds of panels and controls together."""
    return recorded(CATALOGUE[request.param])


@pytest.fixture
def page(browser: "Chrome", figure: InteractiveFigure, tmp_path: Path) -> "Chrome":
    path = tmp_path / "page.html"
    figure.save(path)
    browser.get(path.as_uri())
    return browser


def focus(page: "Chrome", name: str) -> None:
    """Tab from the top of the page to the control with this name."""
    page.execute_script("document.activeElement.blur(); window.getSelection().removeAllRanges(); window.scrollTo(0, 0)")
    page.execute_script("document.body.tabIndex = -1; document.body.focus()")
    for _ in range(12):
        press(page, Keys.TAB)
        if page.execute_script("return document.activeElement.name") == name:
            return
    raise AssertionError(f"Tab does not reach {name}")


def test_keys_move_every_control_through_all_its_values(page: "Chrome", figure: InteractiveFigure) -> None:
    indices = [control.start for control in figure.controls]
    for number, control in enumerate(figure.controls):
        focus(page, control.name)
        press(page, Keys.HOME)
        for index in range(len(control.values)):
            if index:
                press(page, Keys.ARROW_RIGHT if control.slider else Keys.ARROW_DOWN)
            indices[number] = index
            assert read_page(page) == expected_page(figure.frames[tuple(indices)]), indices
    assert not page.get_log("browser")


@pytest.mark.parametrize("name", CATALOGUE)
def test_on_a_narrow_screen_nothing_is_wider_than_the_page(name: str, browser: "Chrome") -> None:
    with device(browser, 360, 740, touch=True):
        browser.get((ROOT / "notebooks" / "explorables" / f"{name}.html").as_uri())
        for chosen in ("0", "control.labels.length - 1"):
            browser.execute_script(f"figure.show(data.controls.map((control) => {chosen}))")
            assert browser.execute_script("return document.documentElement.scrollWidth") <= 360
            assert browser.execute_script(TABLE_OVERFLOW) <= 0


@pytest.fixture(scope="module")
def small_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small page with a panel of each kind."""
    path = tmp_path_factory.mktemp("explore") / "page.html"
    make().save(path)
    return path


@needs_axe
@pytest.mark.parametrize(("screen", "dark"), [(LAPTOP, False), (PHONE, True)], ids=str)
def test_axe_finds_nothing(browser: "Chrome", small_path: Path, screen: tuple[int, int], dark: bool) -> None:
    with device(browser, *screen, dark=dark, touch=screen == PHONE):
        browser.get(small_path.as_uri())
        browser.execute_script("figure.show([2, 1])")  # the longest row
        assert axe_findings(browser) == []

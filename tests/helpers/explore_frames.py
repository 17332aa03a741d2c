"""What an explorable's page shows, read from its elements, and what its recorded frame says it should."""

from typing import Any

from selenium import webdriver

from notebooks.course.explore.explorable import Frame
from notebooks.course.explore.panels.bars import Bars
from notebooks.course.explore.panels.base import Panel
from notebooks.course.explore.panels.cells import Cells
from notebooks.course.explore.panels.lanes import Lanes
from notebooks.course.explore.panels.lines import Lines
from notebooks.course.explore.panels.numbers import Numbers
from notebooks.course.explore.panels.tree import Node, Tree

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
  lines: (box) => ({ curves: all(box, ".curve").length, marks: all(box, ".marked").map(text) }),
  tree: (box) => ({
    nodes: all(box, ".side").map((side) => all(side, ".node").map(node)),
    arrows: all(box, ".arrows > path").length,
  }),
};
const panels = all(document, ".panel").map((section) => [
  within(section, "h2"), kinds[section.dataset.kind](section.children[1])]);
return { sentence: text(document.getElementById("sentence")), panels };
"""


def read_page(page: webdriver.Chrome) -> dict[str, Any]:
    """What is there to see."""
    return page.execute_script(READ)


def expected_page(frame: Frame) -> dict[str, Any]:
    """The same from the recorded frame."""
    return {"sentence": frame.sentence, "panels": [[each.title, _panel(each)] for each in frame.panels]}


def _panel(panel: Panel) -> Any:
    if isinstance(panel, Numbers):
        return [[number.name, number.value] for number in panel.numbers]
    if isinstance(panel, Bars):
        return [[bar.label, round(100 * bar.value / panel.most, 1), f"o-{bar.look}", bar.text] for bar in panel.bars]
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
    if isinstance(panel, Lines):
        return {"curves": sum(not each.dots for each in panel.series), "marks": [mark.text for mark in panel.marks]}
    assert isinstance(panel, Tree)
    roots = [root for root in (panel.before, panel.root) if root is not None]
    arrows = sum(node.was != "" for node in panel.root.walk()) if panel.before else 0
    return {"nodes": [[_node(node, root) for node in root.walk()] for root in roots], "arrows": arrows}


def _node(node: Node, root: Node) -> list[str]:
    look = "o-free" if node is root else "o-locked" if node.locks else "o-tree"
    return [(node.text or "root").strip(), node.key, node.mark, look]

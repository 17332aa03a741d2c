"""Explorables: what is refused, what a page holds, and every kind of panel in headless Chromium, driven by the keyboard."""

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nanoinfer.explore import (
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
    Lines,
    Mark,
    Node,
    Number,
    Numbers,
    Series,
    Span,
    Strip,
    Tree,
)
from nanoinfer.explore.__main__ import main
from nanoinfer.explore.catalogue import CATALOGUE
from nanoinfer.explore.explorable import shared

pytest.importorskip("selenium", reason="selenium is not installed (pip install selenium)")
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.helpers.axe import axe_findings, needs_axe
from tests.helpers.chromium import chromium, device, needs_chromium
from tests.tools.test_player_layout import LAPTOP, PHONE

HOSTILE = "</script><img src=x onerror=alert(1)><!-- ]]> \u2028 ${alert(1)} “&amp;”"
SLOTS, NAMES = (4, 8, 16), ("few", "many")


def panels(slots: int, name: str) -> list[Any]:
    """One panel of each kind; the last never changes."""
    used = slots // 2 + (name == "many")
    before = Node("", key="r", children=[Node("abcd", "0..3", 1, key="a")])
    after = [Node("cd", "2..3", 1, was="a"), Node("xy", "8..9", mark="new")]
    return [
        Bars("Bars", [Bar("used", used, f"{used} slots"), Bar("cut", 0, "cut", True, before=2)], most=16),
        Cells(
            "Cells",
            [CellRow("row 0", [Cell("r0", str(i)) for i in range(used)] + [Cell()] * (slots - used))],
            [("r0", "request 0")],
        ),
        Lanes(
            "Lanes",
            4,
            [Lane("request 0", [Span(0, 1, "waiting"), Span(1, 4, "decode")], "r0", 4)],
            Strip("slots", slots, [[("r0", min(used, step))] for step in range(4)]),
            at=2,
            legend=[("decode", "decode"), ("r0", "held by request 0")],
        ),
        Tree("Tree", Node("", children=[Node("ab", "0..1", 1, "split", was="a", children=after)]), before),
        Lines("Lines", "x", "y", [Series("curve", [(1, 1), (16, 16)])], (1, 16), (1, 16), [Mark(slots, used, "here")]),
        Numbers("Numbers", [Number("always", "the same"), Number("long", "a long sentence that takes space")]),
    ]


def make(**changes: Any) -> Explorable:
    controls = [Control("slots", "slots", SLOTS, start=1), Control("name", "how many", NAMES)]
    frames = {
        (i, j): Frame(panels(slots, name), f"{slots} slots, {name}.")
        for i, slots in enumerate(SLOTS)
        for j, name in enumerate(NAMES)
    }
    given: dict[str, Any] = {"title": "Which?", "intro": "Look.", "controls": controls, "frames": frames}
    return Explorable(**given | changes)


# --- what is refused --------------------------------------------------------------------------------------------------


def test_a_missing_combination_is_named() -> None:
    frames = dict(make().frames)
    del frames[2, 1]
    with pytest.raises(ValueError, match=r"none for \(2, 1\), which is slots=16, name='many'"):
        make(frames=frames)


def test_a_combination_that_no_control_has_is_named() -> None:
    with pytest.raises(ValueError, match=r"\(3, 0\) is no combination of the controls slots, name"):
        make(frames={**make().frames, (3, 0): make().start})


def test_two_controls_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="a name is there twice: a, a"):
        make(controls=[Control("a", "a", [1, 2]), Control("a", "b", [1, 2])])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": ""}, "name=''"),
        ({"label": " "}, "label=' '"),
        ({"values": [1]}, "at least 2"),
        ({"values": "ab"}, "at least 2"),
        ({"values": [1, 1]}, "one is there twice"),
        ({"values": [1, float("nan")]}, "values of size"),
        ({"values": [1, object()]}, "values of size"),
        ({"labels": ["one"]}, "1 for 2 values"),
        ({"labels": ["one", ""]}, "labels of size"),
        ({"start": 2}, r"start=2 of size: must be in 0\.\.1"),
        ({"start": True}, "start=True"),
    ],
)
def test_a_bad_control_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Control(**{"name": "size", "label": "size", "values": [1, 2], **arguments})


@pytest.mark.parametrize(
    ("make_it", "message"),
    [
        (lambda: Frame([], "x"), "at least 1 Panel"),
        (lambda: Frame([1], "x"), r"panels\[0\]: must be Panel, got int"),  # type: ignore[list-item]
        (lambda: Frame(panels(4, "few"), ""), "sentence=''"),
        (lambda: Bar("a", -1, "x"), "value=-1: must be at least 0"),
        (lambda: Bar("a", float("inf"), "x"), "value=inf"),
        (lambda: Bar("a", 1, "x", look="blue"), "look='blue': must be one of free"),
        (lambda: Bars("a", [Bar("a", 2, "x")], most=1), "most=1: must be at least 2"),
        (lambda: Cell("nothing"), "look='nothing'"),
        (lambda: Cell("r0", mark="odd"), "mark='odd'"),
        (lambda: Cells("a", [CellRow("r", [Cell()])], columns=["0", "1"]), "2 for rows of up to 1"),
        (lambda: Span(2, 2, "decode"), "end=2: must be at least 3"),
        (lambda: Span(0, 1, "resting"), "phase='resting'"),
        (lambda: Lanes("a", 2, [Lane("r", [Span(0, 3, "decode")])]), "r: a span ends at 3; there are steps=2"),
        (lambda: Lanes("a", 2, [Lane("r", [])], at=2), r"at=2: must be in 0\.\.1"),
        (lambda: Lanes("a", 2, [Lane("r", [])], Strip("s", 1, [[]])), "strip: 1 steps"),
        (lambda: Strip("s", 4, [[("r0", 3), ("r1", 2)]]), "5 held of size=4"),
        (lambda: Series("a", []), "points: must have at least one"),
        (lambda: Lines("a", "x", "y", [Series("a", [(0, 1)])], (1, 2), (1, 2), log_x=True), "every x must be above 0"),
        (lambda: Lines("a", "x", "y", [Series("a", [(1, 1)])], (2, 1), (1, 2)), "x_range"),
        (lambda: Tree("a", Node("", children=[Node("a", was="k")])), "was='k': the tree before has no such key"),
        (lambda: Tree("a", Node("", children=[Node("a", key="k"), Node("b", key="k")])), "a key is there twice"),
        (lambda: Number("", "x"), "name=''"),
    ],
)
def test_a_panel_that_cannot_be_drawn_is_refused(make_it: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_it()


def test_a_page_is_an_html_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"page\.png.*must end in \.html"):
        make().save(tmp_path / "page.png")


# --- what a page holds ------------------------------------------------------------------------------------------------


def test_what_repeats_is_in_the_page_once() -> None:
    text = make().html()
    assert text.count("a long sentence that takes space\\u0022") + text.count('a long sentence that takes space"') == 1


def test_parts_put_back_are_what_they_were() -> None:
    value = [{"a": [list(range(30)), {"b": list(range(30))}], "c": "$"}, [list(range(30)), {"b": list(range(30))}], 7]

    def unpack(part: Any) -> Any:
        if isinstance(part, dict):
            return unpack(parts[part["$"]]) if "$" in part else {k: unpack(v) for k, v in part.items()}
        return [unpack(each) for each in part] if isinstance(part, list) else part

    packed, parts = shared(value)
    assert unpack(packed) == value
    assert len(json.dumps([packed, parts])) < 0.5 * len(json.dumps(value))


def test_only_the_drawings_that_are_needed_are_in_the_page() -> None:
    frames = {(i,): Frame([Numbers("n", [Number("a", str(i))])], "x") for i in range(2)}
    text = make(controls=[Control("a", "a", [0, 1])], frames=frames).html()
    assert "draw.numbers =" in text
    assert "draw.tree =" not in text


def test_the_page_names_no_other_resource() -> None:
    text = make().html().replace("http://www.w3.org/2000/svg", "")
    assert re.findall(r"(?:https?:)?//[a-z]", text) == []
    assert re.findall(r"\b(?:src|href|import)\s*[=(]", text) == []
    assert "fetch(" not in text
    assert "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'" in text


def test_every_panel_says_itself_in_words() -> None:
    said = [panel.words() for panel in panels(4, "few")]
    assert said[0] == "Bars. used: 2 slots; cut: cut (left out)."
    assert said[1] == "Cells. row 0: 1 request 0 0, 1 request 0 1, 2 unused."
    assert said[2] == "Lanes. request 0: waiting in step 1, decode in steps 2 to 4."
    assert said[3].startswith(
        "Tree. Before: level 1 “abcd” in slots 0..3, locked by 1. After: level 1 “ab” in slots 0..1"
    )
    assert said[4] == "Lines. y over x. curve: from 1 at 1 to 16 at 16; here: 2 at 4."


def test_in_a_notebook_the_frame_comes_first_and_then_a_picture_for_where_there_are_no_scripts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ipython = pytest.importorskip("IPython.display")
    shown: list[Any] = []
    monkeypatch.setattr(ipython, "display", lambda data, **_: shown.append(data))
    explorable = make()
    explorable._ipython_display_()
    page, picture = shown
    assert page["text/plain"] == "Which? (a page with sliders)"
    assert html.unescape(page["text/html"].split('srcdoc="')[1].split('"')[0]) == explorable.html()
    assert 'sandbox="allow-scripts"' in page["text/html"]
    assert picture["text/plain"] == "Which? slots: 8, how many: few. 8 slots, few."
    assert picture["image/png"].startswith("iVBOR")


def test_the_command_names_what_it_does_not_know(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        (["nothing"], "no such explorable"),
        (["--out", str(tmp_path / "no")], "no such folder"),
    ):
        with pytest.raises(SystemExit):
            main(arguments)
        assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_the_page_that_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CATALOGUE, "padding", lambda llm: make(title=f"Made with {llm.model.name}"))
    main(["padding", "--out", str(tmp_path)])
    assert [path.name for path in tmp_path.iterdir()] == ["padding.html"]
    assert "Made with" in (tmp_path / "padding.html").read_text(encoding="utf-8")


# --- in the browser ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    with chromium(tmp_path_factory.mktemp("chromium")) as driver:
        yield driver


@pytest.fixture(scope="module")
def page_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("explore") / "page.html"
    make().save(path)
    return path


@pytest.fixture
def page(browser: webdriver.Chrome, page_path: Path) -> webdriver.Chrome:
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get(page_path.as_uri())
    return browser


def press(page: webdriver.Chrome, *keys: str) -> None:
    webdriver.ActionChains(page).send_keys(*keys).perform()


def drawn(page: webdriver.Chrome) -> dict[str, Any]:
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
          marked: texts(".marked"),
          numbers: texts(".numbers tr"),
        };""")


@needs_chromium
def test_the_keyboard_alone_reaches_every_combination_and_each_shows_its_frame(page: webdriver.Chrome) -> None:
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
            assert got["marked"] == ["here"]
            assert got["numbers"] == ["alwaysthe same", "longa long sentence that takes space"]
        press(page, Keys.ARROW_UP)
        webdriver.ActionChains(page).key_down(Keys.SHIFT).send_keys(Keys.TAB, Keys.TAB).key_up(Keys.SHIFT).perform()
        press(page, Keys.ARROW_RIGHT)
    assert page.get_log("browser") == []


@needs_chromium
def test_buttons_step_and_stop_at_the_ends_without_losing_the_focus(page: webdriver.Chrome) -> None:
    more = page.find_element(By.CSS_SELECTOR, "[aria-label='slots: one more']")
    slider = page.find_element(By.ID, "control-0")
    for expected in (2, 2):
        more.send_keys(Keys.ENTER)
        assert page.execute_script("return explorable.chosen[0]") == expected
    assert page.switch_to.active_element == more
    assert more.get_attribute("aria-disabled") == "true"
    assert (slider.get_attribute("value"), slider.get_attribute("aria-valuetext")) == ("2", "16")
    page.find_element(By.CSS_SELECTOR, "[aria-label='slots: one less']").click()
    assert drawn(page)["sentence"] == "8 slots, few."
    assert more.get_attribute("aria-disabled") == "false"


@needs_chromium
def test_nothing_is_fetched(page: webdriver.Chrome, page_path: Path) -> None:
    page.execute_script("explorable.show([2, 1])")
    messages = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    fetched = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert fetched == [page_path.as_uri()]


@needs_chromium
def test_hostile_texts_are_shown_as_text(browser: webdriver.Chrome, tmp_path: Path) -> None:
    nodes = Node("", children=[Node(HOSTILE, HOSTILE, was="k", note=HOSTILE)])
    of_each = [
        Bars(HOSTILE, [Bar(HOSTILE, 1, HOSTILE)], 1, HOSTILE),
        Cells(HOSTILE, [CellRow(HOSTILE, [Cell("r0", HOSTILE)], HOSTILE)], [("r0", HOSTILE)], [HOSTILE]),
        Lanes(
            HOSTILE, 1, [Lane(HOSTILE, [Span(0, 1, "decode", HOSTILE)])], Strip(HOSTILE, 1, [[]]), 0, [("r0", HOSTILE)]
        ),
        Tree(HOSTILE, nodes, Node("", children=[Node(HOSTILE, key="k")])),
        Lines(HOSTILE, HOSTILE, HOSTILE, [Series(HOSTILE, [(1, 1)])], (0, 2), (0, 2), [Mark(1, 1, HOSTILE)]),
        Numbers(HOSTILE, [Number(HOSTILE, HOSTILE)]),
    ]
    control = Control("c", HOSTILE, ["a", "b"], [HOSTILE, "b"], slider=True)
    second = Control("d", HOSTILE, ["a", "b"], [HOSTILE, "b"])
    frames = {(i, j): Frame(of_each, HOSTILE) for i in range(2) for j in range(2)}
    Explorable(HOSTILE, HOSTILE, [control, second], frames).save(tmp_path / "hostile.html")
    browser.get_log("browser")
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
        ".marked",
        ".numbers td",
        "output",
    ):
        found = browser.execute_script("return document.querySelector(arguments[0]).textContent", selector)
        assert found == HOSTILE, selector
    assert browser.get_log("browser") == []


@needs_chromium
@pytest.mark.parametrize("width", [1180, 900, 320])
@pytest.mark.parametrize("touch", [False, True], ids=["mouse", "touch"])
def test_the_page_fits_its_width_and_what_is_pressed_is_large_enough(
    page: webdriver.Chrome, width: int, touch: bool
) -> None:
    with device(page, width, 800, touch=touch):
        page.execute_script("explorable.show([2, 1])")
        overflow = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert page.execute_script(overflow) <= 0
        for element in page.find_elements(By.CSS_SELECTOR, "button, input, select"):
            assert min(element.size.values()) >= 36


@needs_chromium
def test_every_control_has_a_label_and_what_scrolls_can_be_reached(page: webdriver.Chrome) -> None:
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
@needs_chromium
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("screen", [LAPTOP, PHONE], ids=str)
def test_axe_finds_nothing(page: webdriver.Chrome, screen: tuple[int, int], dark: bool) -> None:
    with device(page, *screen, dark=dark, touch=screen == PHONE):
        page.refresh()
        assert axe_findings(page) == []


@needs_chromium
def test_whoever_wants_less_motion_gets_none(page: webdriver.Chrome) -> None:
    duration = "return getComputedStyle(document.querySelector('.bar .value')).transitionDuration"
    assert page.execute_script(duration) != "0s"
    reduced = [{"name": "prefers-reduced-motion", "value": "reduce"}]
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": reduced})
    try:
        assert page.execute_script(duration) == "0s"
    finally:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


@needs_chromium
def test_in_a_notebook_the_frame_runs_and_hides_the_picture_beneath_it(
    browser: webdriver.Chrome, tmp_path: Path
) -> None:
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

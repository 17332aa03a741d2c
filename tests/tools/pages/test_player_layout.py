"""The player on the screens it is read on: what is in view, what a key means after a click, and what axe-core finds."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nanoinfer.viz.trace import Trace, record
from tests.helpers.engines import greedy, make_engine

pytest.importorskip("selenium", reason="selenium is not installed (pip install selenium)")
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.helpers.chromium import LAPTOP, PHONE, axe_findings, device, drawn, needs_axe, press

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

REPO = Path(__file__).parents[3]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def long_run() -> Trace:
    """Forty requests, one every nine steps: more lanes than any screen shows at once."""
    engine = make_engine(rows=6, slots=400, chunked_prefill_size=12)
    with record(engine) as trace:
        sent = 0
        while sent < 40 or engine.has_unfinished():
            if sent < 40 and len(trace) >= 9 * sent:
                engine.add_request([97 + sent % 3, *range(60, 75 + sent % 7)], greedy(16 + sent % 5))
                sent += 1
            engine.step()
    assert len(trace) > 300
    return trace


@pytest.fixture(scope="module")
def example() -> Trace:
    return Trace.load(REPO / "data" / "trace" / "example.json")


@pytest.fixture(scope="module")
def pages(long_run: Trace, example: Trace, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The addresses of the two runs' pages."""
    folder = tmp_path_factory.mktemp("pages")
    addresses = {}
    for name, trace in (("long", long_run), ("example", example)):
        trace.player().save(folder / f"{name}.html")
        addresses[name] = (folder / f"{name}.html").as_uri()
    return addresses


# --- the timeline -----------------------------------------------------------------------------------------------------


def test_the_timeline_shows_the_lanes_of_the_pass(browser: "Chrome", pages: dict[str, str], long_run: Trace) -> None:
    browser.get(pages["long"])
    steps = [1, 60, 150, 290, len(long_run) - 1, 30]
    for screen in (LAPTOP, PHONE):
        with device(browser, *screen):
            found = browser.execute_script(
                """
                return arguments[0].map((step) => {
                player.show(step);
                const box = document.querySelector("#timeline .lanes").getBoundingClientRect();
                const cursor = document.querySelector("#timeline .cursor").getBoundingClientRect();
                const head = document.querySelector("#passes .lane").getBoundingClientRect();
                const inside = (top, bottom, part) => top <= part.top + 1 && part.bottom <= bottom + 1;
                const batch = player.page.state.batch.map((entry) => entry.req.index);
                const seen = batch.filter((index) => {
                  const name = document.querySelector(`#timeline [data-request="${index}"]`).getBoundingClientRect();
                  const shown = inside(Math.max(box.top, head.bottom), box.bottom, name);
                  return shown && inside(cursor.top, cursor.bottom, name);
                });
                return [seen, batch, head.top - box.top, box.bottom - head.bottom];
                });""",
                steps,
            )
        for step, (seen, expected, above, below) in zip(steps, found, strict=True):
            assert expected == [entry.request for entry in long_run.step(step).batch]
            assert seen == expected, (screen, step)
            assert above >= 0, (screen, step, "the row of passes stays above them")
            assert below >= 0, (screen, step)


# --- what is in view --------------------------------------------------------------------------------------------------


def test_a_notebooks_frame_and_what_matters_in_it_fit_a_laptop(
    browser: "Chrome", example: Trace, tmp_path: Path
) -> None:
    """Of 768 lines a browser leaves 657, JupyterLab 536 of these; beside its list of files there are 899 columns."""
    frame = example.player()._repr_html_()
    (tmp_path / "notebook.html").write_text(f"<!doctype html><body>{frame}</body>")
    browser.get((tmp_path / "notebook.html").as_uri())
    element = browser.find_element(By.TAG_NAME, "iframe")
    for height, width in ((768, 1246), (657, 1246), (657, 899), (1080, 1246)):
        with device(browser, 1366, height):
            browser.execute_script(f"document.body.style.width = '{width}px'")
            assert element.size["height"] <= height - 121
            browser.switch_to.frame(element)
            drawn(browser)
            below = browser.execute_script(
                """
                const parts = ["#controls", "#timeline", "#sentence", "#counters", "#batch tbody", "#slots .grid"];
                const bottom = (part) => document.querySelector(part).getBoundingClientRect().bottom;
                return Array.from({ length: arguments[0] }, (_, i) => i + 1).flatMap((step) => {
                  player.show(step);
                  return parts.filter((part) => bottom(part) > innerHeight).map((part) => [step, part, bottom(part)]);
                });""",
                len(example),
            )
            assert below == [], (height, width)
            browser.switch_to.default_content()


# --- keys after clicks ------------------------------------------------------------------------------------------------


@pytest.fixture
def stopped_clock(browser: "Chrome", pages: dict[str, str]) -> "Chrome":
    """The example, playing which never gets to the next step."""
    browser.get(pages["example"])
    browser.execute_script("window.setTimeout = () => 1; player.show(5)")
    return browser


def playing(page: "Chrome") -> bool:
    return page.find_element(By.ID, "play").get_attribute("aria-pressed") == "true"


CLICKED_AND_SHOWN = (
    *(("#first", 0), ("#back", 4), ("#forward", 6), ("#extend", 6)),
    *(("#rows .chip", 5), ("h1", 5)),
)


def test_after_a_click_space_plays_and_pauses(stopped_clock: "Chrome") -> None:
    page = stopped_clock
    for clicked, frame in CLICKED_AND_SHOWN:
        page.execute_script("document.activeElement.blur(); player.show(5)")
        page.find_element(By.CSS_SELECTOR, clicked).click()
        assert page.execute_script("return player.current") == frame, clicked
        for expected in (True, False):
            press(page, " ")
            assert playing(page) is expected, clicked
            assert page.execute_script("return player.current") == frame, clicked
    page.find_element(By.ID, "play").click()
    assert playing(page)
    press(page, " ")
    assert not playing(page)


def test_a_control_reached_by_the_keyboard_keeps_its_keys(stopped_clock: "Chrome") -> None:
    page = stopped_clock
    page.find_element(By.ID, "back").click()
    press(page, Keys.TAB)  # to Play
    press(page, " ")
    assert playing(page)
    press(page, " ")
    assert not playing(page)
    press(page, Keys.TAB)  # to One step on
    press(page, " ")
    assert page.execute_script("return player.current") == 5
    assert not playing(page)
    press(page, Keys.TAB, Keys.TAB, Keys.TAB)  # to the speed
    assert page.execute_script("return document.activeElement.id") == "speed"
    press(page, Keys.ARROW_DOWN)
    assert page.execute_script("return [player.current, document.activeElement.value]") == [5, "2"]


# --- what can be read and hit -----------------------------------------------------------------------------------------


@needs_axe
@pytest.mark.parametrize(
    ("name", "step", "screen", "dark"),
    [
        ("example", 7, PHONE, True),
        ("example", 34, LAPTOP, False),
        ("long", 20, PHONE, False),
        ("long", 7, LAPTOP, True),
    ],
)
def test_axe_finds_nothing(
    browser: "Chrome", pages: dict[str, str], name: str, step: int, screen: tuple[int, int], dark: bool
) -> None:
    """Among these: a prompt of which a part is not computed yet, a retraction, requests that have ended."""
    browser.get(pages[name])
    with device(browser, *screen, dark=dark, touch=screen == PHONE):
        browser.execute_script(f"player.show({step})")
        assert axe_findings(browser) == []

"""The player's keys after clicks, and what axe-core finds."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nanoinfer.viz.trace import Trace

pytest.importorskip("selenium", reason="selenium is not installed (pip install selenium)")
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.helpers.chromium import LAPTOP, PHONE, axe_findings, device, needs_axe, press

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

REPO = Path(__file__).parents[3]

pytestmark = pytest.mark.slow


# --- keys after clicks ------------------------------------------------------------------------------------------------


@pytest.fixture
def example(browser: "Chrome", tmp_path: Path) -> "Chrome":
    Trace.load(REPO / "data" / "trace" / "example.json").player().save(tmp_path / "example.html")
    browser.get((tmp_path / "example.html").as_uri())
    return browser


@pytest.fixture
def stopped_clock(example: "Chrome") -> "Chrome":
    """The example, playing which never gets to the next step."""
    browser = example
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
@pytest.mark.parametrize(("step", "screen", "dark"), [(7, PHONE, True), (34, LAPTOP, False)])
def test_axe_finds_nothing(example: "Chrome", step: int, screen: tuple[int, int], dark: bool) -> None:
    """Among these: a prompt of which a part is not computed yet, a retraction, requests that have ended."""
    with device(example, *screen, dark=dark, touch=screen == PHONE):
        example.execute_script(f"player.show({step})")
        assert axe_findings(example) == []

"""The explorables of the engine in headless Chromium: moved by keyboard, they show recorded frames and fetch nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nanoinfer import LLM
from notebooks.course.explore.batch_limit import batch_limit
from notebooks.course.explore.chunk_sizes import chunk_sizes
from notebooks.course.explore.draft_gain import draft_gain
from notebooks.course.explore.eviction import eviction
from notebooks.course.explore.explorable import Explorable
from notebooks.course.explore.overtaking import overtaking
from notebooks.course.explore.page_sizes import page_sizes
from notebooks.course.explore.pool_sizes import pool_sizes
from notebooks.course.explore.token_life import token_life
from notebooks.course.explore.tree_steps import tree_steps
from notebooks.course.explore.verify_steps import verify_steps
from notebooks.course.explore.working_set import working_set

pytest.importorskip("selenium", reason="selenium is not installed (pip install selenium)")
from selenium.webdriver.common.keys import Keys

from tests.helpers.axe import axe_findings, needs_axe
from tests.helpers.chromium import LAPTOP, PHONE, device, press
from tests.helpers.explore_frames import expected_page, read_page

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

pytestmark = pytest.mark.slow
MAKERS: tuple[Callable[[LLM], Explorable], ...] = (
    page_sizes,
    pool_sizes,
    chunk_sizes,
    overtaking,
    eviction,
    tree_steps,
    token_life,
    verify_steps,
    draft_gain,
    batch_limit,
    working_set,
)

TABLE_OVERFLOW = """return Math.max(0, ...[...document.querySelectorAll("[data-kind=numbers] .drawing")].map(
    (box) => box.scrollWidth - box.clientWidth))"""


@pytest.fixture(scope="module", params=MAKERS, ids=lambda maker: maker.__name__)
def explorable(request: pytest.FixtureRequest, recorded: Callable[[Any], Explorable]) -> Explorable:
    return recorded(request.param)


@pytest.fixture
def page(browser: "Chrome", explorable: Explorable, tmp_path: Path) -> "Chrome":
    path = tmp_path / "page.html"
    explorable.save(path)
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


def test_it_shows_the_frame_at_the_start(page: "Chrome", explorable: Explorable) -> None:
    assert read_page(page) == expected_page(explorable.start)
    assert page.execute_script("return document.querySelector('h1').textContent") == explorable.title
    assert not page.get_log("browser")
    assert "http" not in "".join(str(entry) for entry in page.get_log("performance") if "requestWillBeSent" in str(entry)
                                 and '"url":"http' in str(entry))  # fmt: skip


def test_keys_move_every_control_through_all_its_values(page: "Chrome", explorable: Explorable) -> None:
    indices = [control.start for control in explorable.controls]
    for number, control in enumerate(explorable.controls):
        focus(page, control.name)
        press(page, Keys.HOME)
        for index in range(len(control.values)):
            if index:
                press(page, Keys.ARROW_RIGHT if control.slider else Keys.ARROW_DOWN)
            indices[number] = index
            assert read_page(page) == expected_page(explorable.frames[tuple(indices)]), indices
    assert not page.get_log("browser")


def test_on_a_narrow_screen_nothing_is_wider_than_the_page(page: "Chrome", explorable: Explorable) -> None:
    with device(page, 360, 740, touch=True):
        page.refresh()
        for indices in (min(explorable.frames), max(explorable.frames)):
            page.execute_script("explorable.show(arguments[0])", list(indices))
            assert page.execute_script("return document.documentElement.scrollWidth") <= 360
            assert page.execute_script(TABLE_OVERFLOW) <= 0
            assert read_page(page) == expected_page(explorable.frames[indices])


@needs_axe
def test_axe_finds_nothing(page: "Chrome", explorable: Explorable, request: pytest.FixtureRequest) -> None:
    """On one of two screens, in turn: test_explorable_browser.py has one page's on all of them."""
    is_first = [maker.__name__ for maker in MAKERS].index(request.node.callspec.params["explorable"].__name__) % 2 == 0
    screen, dark, indices = (
        (LAPTOP, True, min(explorable.frames)) if is_first else (PHONE, False, max(explorable.frames))
    )
    with device(page, *screen, dark=dark, touch=screen == PHONE):
        page.execute_script("explorable.show(arguments[0])", list(indices))
        assert axe_findings(page) == [], (screen, dark, indices)


def test_the_still_is_a_picture_of_a_frame(explorable: Explorable) -> None:
    still = explorable.still()
    assert any(frame.sentence in still.alt for frame in explorable.frames.values())
    assert still.png().startswith(b"\x89PNG")

"""The player of a trace with storeys, in headless Chromium: fetched tokens look unlike those found and computed ones."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nanoinfer.trace.player import Player
from tests.helpers.axe import axe_findings, needs_axe
from tests.tools.trace.conftest import fetched_from

pytest.importorskip("selenium", reason="selenium is not installed (pip install selenium)")

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("files", "storey", "words"), [(False, "host", "host memory"), (True, "disk", "files")])
def test_every_part_of_the_page_says_where_tokens_came_from(
    files: bool, storey: str, words: str, browser: "Chrome", tmp_path: Path
) -> None:
    trace, _, _ = fetched_from(files)
    (fetch_step,) = [event.step for event in trace.events if event.fetched]
    Player(trace, start=fetch_step).save(tmp_path / "run.html")
    browser.get((tmp_path / "run.html").as_uri())

    def texts(selector: str) -> list[str]:
        found: list[Any] = browser.execute_script(
            "return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)", selector
        )
        return found

    assert f"fetches K/V of 32 tokens from {words}" in texts("#sentence")[0]
    assert f"from {words}32" in texts("#counters div")
    assert f"32 found, of those 32 from {words}" in texts("#texts .card small")[0]
    assert len(texts(f"#texts .card .cached.from-{storey}")[0]) == 32
    assert f"from {words}" in texts("#texts-title .cached")
    went_back = "player.show(0); player.show(arguments[0]); return player.page.state.requests.get(4).came"
    assert browser.execute_script(went_back, fetch_step)[storey] == 32
    assert [entry for entry in browser.get_log("browser") if entry["level"] != "INFO"] == []


@needs_axe
def test_axe_finds_nothing(browser: "Chrome", tmp_path: Path) -> None:
    Player(fetched_from(files=True)[0], start=5).save(tmp_path / "run.html")
    browser.get((tmp_path / "run.html").as_uri())
    assert axe_findings(browser) == []

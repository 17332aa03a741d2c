"""Strips in the lanes of the player: from where K/V came with which a request was admitted, as fetched_prefixes has it."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nanoinfer.trace import Trace, record
from nanoinfer.trace.events import Fetch
from nanoinfer.trace.fetch_pictures import strip_legend
from nanoinfer.trace.fetches import fetched_prefixes, from_where
from tests.helpers.axe import axe_findings, needs_axe
from tests.helpers.chromium import LAPTOP, PHONE, device
from tests.helpers.engines import greedy, make_engine, serve
from tests.helpers.storeys import storey_of, with_files
from tests.tools.trace.test_fetches import ASKS_AGAIN, LONG, PROMPTS, admitted_again, from_host, small

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

LEAST = 11  # pixels of a part


def from_both() -> Trace:
    """Host memory has room for two of the prompts and for a block more, so the first one comes from both storeys."""
    engine = small(host_cache_tokens=80)
    with_files(engine)
    with record(engine) as trace:
        serve(engine, *PROMPTS, max_new_tokens=1)
        serve(engine, ASKS_AGAIN, max_new_tokens=6)
    (prefix,) = fetched_prefixes(trace)
    assert set(prefix.tokens) == {"host", "disk"}
    return trace


def unequal() -> Trace:
    """One token from host memory, 31 from files."""
    trace = from_both()
    next(event for event in trace.events if event.fetched).fetched[:] = [Fetch(4, 0, 1, 32)]
    return trace


def many() -> Trace:
    """A hundred steps, with requests side by side; one has been paused."""
    engine = make_engine(slots=120, rows=4, host_cache_tokens=160)
    storey_of(engine)
    with_files(engine)
    prompts = [[*range(first, first + 40)] for first in (0, 60, 20, 44, 80, 10)]
    with record(engine) as trace:
        for i in range(18):
            engine.add_request([*prompts[5 * i % 6], 120 + i % 3], greedy(6 + i % 9))
            for _ in range(5):
                engine.step()
            if i == 9:
                engine.pause(8)
            if i == 12:
                engine.resume(8)
        while engine.has_unfinished():
            engine.step()
    assert {prefix.again for prefix in fetched_prefixes(trace)} == {True, False}
    return trace


def begins_with_a_fetch() -> Trace:
    """The first of two hundred steps admits the request."""
    engine = small(host_cache_tokens=128)
    serve(engine, *PROMPTS, max_new_tokens=1)
    with record(engine) as trace:
        serve(engine, ASKS_AGAIN, max_new_tokens=6)
        for i in range(50):
            serve(engine, [90 + i % 20, 1], max_new_tokens=4)
    assert fetched_prefixes(trace)[0].step == 1
    return trace


def words(trace: Trace) -> list[str]:
    """What the strips say, lane by lane."""
    return [
        f"{trace.requests[index].name}: admitted{' again' * again} in step {step} with K/V of {from_where(tokens)}"
        for index, step, tokens, again in sorted(fetched_prefixes(trace))
    ]


# --- the page's text -------------------------------------------------------------------------------------------------


def data_of(page: str) -> dict[str, Any]:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*)</script>', page)
    return json.loads(text)


@pytest.mark.parametrize("make", [from_both, unequal, admitted_again, many])
def test_the_page_has_every_admission_with_fetched_kv(make: Callable[[], Trace]) -> None:
    trace = make()
    assert data_of(trace.player().html())["fetched"] == [prefix._asdict() for prefix in fetched_prefixes(trace)]


def test_without_storeys_the_page_has_neither_strips_nor_a_field_for_them(run: Trace) -> None:
    page = run.player().html()
    assert list(data_of(page)) == ["trace", "said", "start"]
    assert "strip" not in page
    assert "fetched" not in page.partition('id="data"')[2].partition("</script>")[0]


# --- in a browser ----------------------------------------------------------------------------------------------------


def opened(browser: "Chrome", trace: Trace, folder: Path) -> "Chrome":
    trace.player().save(folder / "run.html")
    browser.get((folder / "run.html").as_uri())
    return browser


def strips(page: "Chrome") -> list[dict[str, Any]]:
    """What the strips say, and where they and their parts are, from the left of their track."""
    return page.execute_script("""
        return [...document.querySelectorAll(".strip")].map((strip) => {
          const track = strip.parentElement.getBoundingClientRect();
          const { left, right, bottom } = strip.getBoundingClientRect();
          const parts = [...strip.children].map((part) => [part.className, part.getBoundingClientRect().width]);
          const lane = strip.closest(".lane").firstElementChild.textContent;
          return {
            label: strip.ariaLabel, role: strip.role, title: strip.title, lane, parts,
            left: left - track.left, right: right - track.left, bottom: bottom - track.bottom, track: track.width,
          };
        });""")


@pytest.mark.slow
@pytest.mark.parametrize("make", [from_both, unequal, admitted_again, many])
def test_strips_have_the_numbers_of_fetched_prefixes(
    make: Callable[[], Trace], browser: "Chrome", tmp_path: Path
) -> None:
    trace = make()
    page = opened(browser, trace, tmp_path)
    frames = page.execute_script("return player.replay.frames.map((frame) => frame.mode && frame.step)")
    for screen in (LAPTOP, PHONE):
        with device(page, *screen, touch=screen == PHONE):
            found = strips(page)
        assert [one["label"] for one in found] == [one["title"] for one in found] == words(trace)
        for drawn, (index, step, tokens, _) in zip(found, sorted(fetched_prefixes(trace)), strict=True):
            assert (drawn["lane"], drawn["role"]) == (trace.requests[index].name, "img")
            frame, least = drawn["track"] / len(frames), LEAST * len(tokens)
            assert drawn["right"] == pytest.approx(frame * (frames.index(step) + 1), abs=0.1), screen
            assert drawn["bottom"] == pytest.approx(0, abs=0.1)
            spare = max(frame - least, 0) / sum(tokens.values())
            widths = {f"o-{storey}": LEAST + spare * number for storey, number in tokens.items()}
            assert dict(drawn["parts"]) == pytest.approx(widths, abs=0.1), screen
    assert page.get_log("browser") == []


@pytest.mark.slow
def test_a_strip_that_is_wider_than_its_frame_does_not_cover_the_names(browser: "Chrome", tmp_path: Path) -> None:
    page = opened(browser, begins_with_a_fetch(), tmp_path)
    with device(page, *PHONE, touch=True):
        first = strips(page)[0]
    assert first["track"] / 200 < LEAST / 4
    assert (first["left"], first["right"]) == pytest.approx((0, LEAST), abs=0.1)


def legend(page: "Chrome") -> list[str]:
    found: list[str] = page.execute_script(
        "return [...document.querySelectorAll('#timeline .legend .entry')].map((entry) => entry.textContent)"
    )
    return [entry for entry in found if entry.startswith("admitted")]


def without_a_fetch() -> Trace:
    engine = small()
    with record(engine) as trace:
        serve(engine, LONG, max_new_tokens=1)
    assert trace.storeys == ["host"]
    return trace


@pytest.mark.slow
def test_the_legend_says_what_that_of_the_picture_says(browser: "Chrome", tmp_path: Path) -> None:
    for make in (from_both, unequal, lambda: from_host()[0], many, without_a_fetch):
        trace = make()
        page = opened(browser, trace, tmp_path)
        assert legend(page) == [label for _, label in strip_legend(fetched_prefixes(trace))]
        swatches = page.execute_script(
            "return ['host', 'disk'].filter((name) => document.querySelector(`#timeline .legend .o-${name}`))"
        )
        assert swatches == sorted({name for prefix in fetched_prefixes(trace) for name in prefix.tokens}, reverse=True)


@pytest.mark.slow
def test_pointing_at_a_strip_says_its_numbers_and_a_click_goes_to_its_step(browser: "Chrome", tmp_path: Path) -> None:
    pytest.importorskip("selenium")
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.by import By

    trace = from_both()
    page = opened(browser, trace, tmp_path)
    (prefix,) = fetched_prefixes(trace)
    page.execute_script("player.show(arguments[0])", prefix.step + 1)
    strip = page.find_element(By.CLASS_NAME, "strip")
    ActionChains(page).move_to_element(strip).perform()
    assert page.find_element(By.CSS_SELECTOR, "#slots .detail").text == words(trace)[0]
    lit = page.execute_script("return document.querySelectorAll('.slot.lit').length")
    assert lit == len(trace.state(prefix.step + 1).row_slots(trace.state(prefix.step + 1).requests[prefix.request]))
    ActionChains(page).move_to_element(strip).click().perform()
    assert page.execute_script("return player.current") == prefix.step


@needs_axe
@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_nothing(browser: "Chrome", tmp_path: Path, dark: bool) -> None:
    page = opened(browser, many(), tmp_path)
    for screen in (LAPTOP, PHONE):
        with device(page, *screen, dark=dark, touch=screen == PHONE):
            assert page.execute_script("return document.documentElement.scrollWidth") <= screen[0]
            assert axe_findings(page) == [], screen

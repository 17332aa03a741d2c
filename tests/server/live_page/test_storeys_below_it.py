"""The live page of an engine with host memory and files below its pool: where a prefix is, and where it came from."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.helpers.axe import axe_findings, needs_axe
from tests.helpers.engines import make_engine
from tests.helpers.storeys import storey_of, with_files

pytest.importorskip("selenium", reason="selenium is not installed (pip install selenium)")
from selenium import webdriver

from tests.helpers.chromium import LAPTOP, PHONE, device
from tests.helpers.live_page import Letters, find, opened, shows, texts

pytestmark = pytest.mark.slow
ALL = "".join(map(chr, range(40, 120)))
FIRST, SECOND, THIRD, FOURTH = ALL[:40], ALL[40:], ALL[5:45], ALL[25:65]


@contextmanager
def with_storeys(free: bool = True, files: bool = True) -> Iterator[Letters]:
    """A pool for one of these prompts, host memory for two of them, and files for all."""
    engine = make_engine(slots=56, host_cache_tokens=64)
    storey_of(engine)
    if files:
        with_files(engine)
    with Letters(engine, free).serving(show_prompts=True) as server:
        yield server


def serve(server: Letters, *prompts: str) -> None:
    for prompt in prompts:
        server.send(prompt, 1)
        server.answered()


def fetch_from_files(server: Letters, page: webdriver.Chrome) -> None:
    """Serve four prompts, step by step, and begin with a fifth one, whose beginning comes from files."""
    for done, prompt in enumerate((FIRST, SECOND, THIRD, FOURTH), start=1):
        server.send(prompt, 1)
        server.arrived(1)
        server.step()
        shows(page, f"live.Live.fields.counts.finished === {done}")
    server.send(FIRST + "zz", 5)
    server.arrived(1)
    server.step()


def test_a_prefix_leaves_comes_back_and_the_page_says_from_where(browser: webdriver.Chrome) -> None:
    with with_storeys(files=False) as server:
        page = opened(browser, server.up.url)
        serve(server, FIRST, SECOND)
        shows(page, "live.Live.fields.counts.finished === 2")
        assert "host memory: 32 of 64 tokens (so far 32 stored, 0 fetched)" in find(page, "#storeys").text
        assert "files" not in find(page, "#storeys").text
        serve(server, FIRST + "z")
        shows(page, "live.Live.fields.counts.finished === 3")
        stats = server.core.stats()
        line = f"{stats.host_held_tokens} of 64 tokens (so far {stats.host_stored_tokens} stored, 32 fetched)"
        assert line in find(page, "#storeys").text
        newest = texts(page, "#texts .card small")[0]
        assert "32 found, of those 32 from host memory" in newest
        nodes = texts(page, "#tree [data-node]")
        assert any(node.endswith("also kept: 32 in host memory") for node in nodes), nodes
        page.execute_script(
            "[...document.querySelectorAll('#tree [data-node]')].find((one) => one.textContent.includes('kept')).click()"
        )
        assert "also kept: 32 in host memory" in find(page, "#node-facts").text


def test_rows_and_cards_tell_fetched_tokens_from_found_and_computed_ones(browser: webdriver.Chrome) -> None:
    with with_storeys(free=False) as server:
        page = opened(browser, server.up.url)
        fetch_from_files(server, page)
        shows(page, "document.querySelectorAll('#rows .row').length === 1")
        assert texts(page, "#rows .origins .entry") == ["from files 32", "computed 10"]
        widths: dict[str, Any] = page.execute_script(
            "return Object.fromEntries([...document.querySelectorAll('#rows .origins .bar i')]"
            ".map((part) => [part.className, part.style.flexGrow]))"
        )
        assert widths == {"o-disk": "32", "p-decode": "10"}
        assert "32 found, of those 32 from files" in texts(page, "#texts .card small")[0]
        stats = server.core.stats()
        shown = page.execute_script("return live.Live.fields.storeys")
        assert {name: shown[name] for name in shown if name != "disk_bytes"} == {
            name: stats[name] for name in shown if name != "disk_bytes"
        }
        assert f"files: {stats.disk_held_tokens} tokens in" in find(page, "#storeys").text
        server.go_on()
        server.answered()


@needs_axe
@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_on_a_phone_and_axe_finds_nothing(browser: webdriver.Chrome, dark: bool) -> None:
    with with_storeys(free=False) as server:
        page = opened(browser, server.up.url)
        fetch_from_files(server, page)
        shows(page, "document.querySelectorAll('#rows .origins').length === 1")
        for screen in (LAPTOP, PHONE):
            with device(page, *screen, dark=dark, touch=screen == PHONE):
                shows(page, f"innerWidth === {screen[0]}")
                assert page.execute_script("return document.documentElement.scrollWidth") <= screen[0]
                assert axe_findings(page) == [], screen
        server.go_on()
        server.answered()

"""The live page with a key, on a phone, by keyboard, without motion, and for a checker of accessibility."""

import json
from pathlib import Path

import pytest

from nanoinfer.trace import Trace

pytest.importorskip("selenium", reason="selenium is not installed (pip install selenium)")
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

from tests.helpers.chromium import LAPTOP, PHONE, axe_findings, device, needs_axe, press
from tests.helpers.live_page import ask, find, letters, opened, set_field, shows, texts
from tests.helpers.waiting import until

pytestmark = pytest.mark.slow


def test_the_key_is_asked_for_and_goes_in_a_header(browser: webdriver.Chrome) -> None:
    with letters(api_keys=["a-secret-key"]) as server:
        browser.get(f"{server.up.url}/")
        shows(browser, "document.querySelector('#key').open")
        assert "API key" in find(browser, "#connection").text
        find(browser, "#key-field").send_keys("a-secret-key", Keys.ENTER)
        shows(browser, "live.Live.page !== null && document.querySelector('#model').value !== ''")
        set_field(browser, "max_tokens", 3)
        set_field(browser, "temperature", 0)
        assert ask(browser, "abc") == "def"
        messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
        requests = [m["params"]["request"] for m in messages if m["method"] == "Network.requestWillBeSent"]
        requests = [request for request in requests if not request["url"].startswith(("about:", "data:"))]
        assert all(request["url"].startswith(f"{server.up.url}/") for request in requests), "no other server"
        assert not any("secret" in request["url"] for request in requests)
        paths = {
            request["url"].removeprefix(server.up.url) for request in requests if "Authorization" in request["headers"]
        }
        assert paths == {"/live/events", "/v1/models", "/v1/completions"}
        browser.refresh()
        shows(browser, "live.Live.page !== null")
        assert browser.execute_script("return [localStorage.length, document.cookie]") == [0, ""]


def test_the_page_says_when_the_server_is_gone(browser: webdriver.Chrome) -> None:
    with letters() as server:
        page = opened(browser, server.up.url)
        server.up.end()
        shows(
            page,
            "document.querySelector('#connection').matches('.failed')"
            " && document.querySelector('#connection').textContent.includes('Trying again')",
        )


def test_the_page_goes_on_when_the_server_is_stopped_and_started_again(browser: webdriver.Chrome) -> None:
    with letters(show_prompts=True) as server:
        page = opened(browser, server.up.url)
        port = int(server.up.url.rpartition(":")[2])
        set_field(page, "max_tokens", 3)
        set_field(page, "temperature", 0)
        ask(page, "abc")
        shows(page, "document.querySelectorAll('#lanes .lane').length === 1")
        server.up.end()
        shows(page, "document.querySelector('#connection').className === 'failed'")
    with letters(port=port) as server:
        shows(page, "document.querySelector('#connection').textContent === 'connected' && Mine.size === 0")
        assert texts(page, "#lanes .lane") == [], "nothing of the other server"
        assert texts(page, "#tree [data-node]") == []
        server.send("xyz")
        server.answered()
        shows(page, "document.querySelectorAll('#lanes .lane').length === 1 && live.Live.replay.alive.size === 0")
        assert ask(page, "abc") == "def"


def test_what_the_page_has_seen_is_saved_as_a_file(browser: webdriver.Chrome, tmp_path: Path) -> None:
    with letters(api_keys=["a-key"]) as server:
        browser.get(f"{server.up.url}/")
        shows(browser, "document.querySelector('#key').open")
        find(browser, "#key-field").send_keys("a-key", Keys.ENTER)
        shows(browser, "live.Live.page !== null")
        browser.execute_cdp_cmd("Page.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
        set_field(browser, "max_tokens", 3)
        ask(browser, "abc")
        shows(browser, "live.Live.replay.last === 3 && live.Live.replay.alive.size === 0")
        find(browser, "#save").click()
        shows(browser, "document.querySelector('#saved').textContent.includes('nanoinfer-trace.json')")
        until(lambda: (tmp_path / "nanoinfer-trace.json").is_file())
        trace = Trace.load(tmp_path / "nanoinfer-trace.json")
        assert (trace.num_steps, trace.text(0)) == (3, "□" * 6)


def test_a_phone_needs_no_horizontal_scrolling(browser: webdriver.Chrome) -> None:
    with letters(free=False, show_prompts=True) as server, device(browser, *PHONE, touch=True):
        page = opened(browser, server.up.url)
        wide = "return document.documentElement.scrollWidth"
        assert page.execute_script(wide) == 390
        for prompt in ("abcdef" * 4, "abcxyz", "klm", "nop", "qrs", "m" * 30):
            server.send(prompt, 30)
        server.arrived(6)
        server.step(3)
        shows(page, "document.querySelectorAll('#texts .card').length > 5 && live.Live.page.state.running.length > 0")
        assert page.execute_script(wide) == 390
        server.go_on()
        server.answered()
        page.execute_script("document.querySelectorAll('details').forEach((one) => (one.open = true))")
        set_field(page, "max_tokens", 9)
        ask(page, "m" * 300)
        assert len(texts(page, ".problem[role=alert]")) == 1, "a prompt of 300 tokens does not fit"
        assert page.execute_script(wide) == 390
        page.execute_script("document.querySelector('#question').value = ''")
        ask(page, "M" * 50)
        shows(page, "document.querySelectorAll('#tree [data-node]').length > 3")
        assert page.execute_script(wide) == 390
        low = page.execute_script(
            "return [...document.querySelectorAll('#chat button, #controls button, #chat select, summary')]"
            ".filter((one) => one.offsetParent && one.getBoundingClientRect().height < 24).map((one) => one.outerHTML)"
        )
        assert low == []


def test_the_keyboard_is_enough(browser: webdriver.Chrome) -> None:
    with letters(show_prompts=True) as server:
        page = opened(browser, server.up.url)
        set_field(page, "max_tokens", 3)
        set_field(page, "temperature", 0)
        reached = []
        page.execute_script("document.activeElement.blur()")
        for _ in range(60):
            press(page, Keys.TAB)
            reached.append(page.execute_script("return document.activeElement.id || document.activeElement.tagName"))
            if reached[-1] == "question" and not texts(page, ".message"):
                press(page, "abc")
                webdriver.ActionChains(page).key_down(Keys.SHIFT).send_keys(Keys.ENTER).key_up(Keys.SHIFT).perform()
                press(page, "d", Keys.ENTER)
                shows(page, "Chat.running === null && document.querySelectorAll('.message').length === 2")
                shows(page, "document.querySelectorAll('#tree [data-node]').length === 1")
            if reached[-1] == "DIV":
                break
        assert texts(page, ".message.user .words") == ["abc\nd"]
        controls = [
            "forget",
            "log",
            "question",
            "send",
            "model",
            "temperature",
            "json",
            "back",
            "live",
            "save",
            "slider",
        ]
        order = [name for name in reached if name in controls]
        assert list(dict.fromkeys(order)) == controls, reached
        assert page.execute_script("return document.activeElement.dataset.node") is not None
        page.execute_script("document.querySelector('#slider').focus()")
        press(page, Keys.HOME)
        shows(page, "live.Live.position === 0 && !live.Live.isLive")


def test_nothing_moves_for_those_who_do_not_want_that(browser: webdriver.Chrome) -> None:
    with letters(free=False) as server:
        page = opened(browser, server.up.url)
        set_field(page, "max_tokens", 9)
        find(page, "#question").send_keys("abc", Keys.ENTER)
        server.arrived(1)
        server.step()
        shows(page, "document.querySelector('.message.assistant .words')?.textContent")
        moves = "return getComputedStyle(document.querySelector('.message.assistant .words'), '::after').animationName"
        assert page.execute_script(moves) == "blink"
        reduced = {"name": "prefers-reduced-motion", "value": "reduce"}
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [reduced]})
        assert page.execute_script(moves) == "none"
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def check_with_axe(page: webdriver.Chrome, dark_screen: tuple[int, int], when: str) -> None:
    """On both screens, of which one is dark."""
    for screen in (LAPTOP, PHONE):
        with device(page, *screen, dark=screen == dark_screen, touch=screen == PHONE):
            shows(page, f"innerWidth === {screen[0]}")
            assert axe_findings(page) == [], (when, screen)


@needs_axe
def test_axe_finds_nothing(browser: webdriver.Chrome) -> None:
    with letters(free=False, show_prompts=True) as server:
        page = opened(browser, server.up.url)
        check_with_axe(page, LAPTOP, "at the beginning")
        set_field(page, "max_tokens", 9)
        find(page, "#question").send_keys("abc", Keys.ENTER)
        server.arrived(1)
        for prompt in ("abcdef", "abcxyz", "klm", "nop", "qrs"):
            server.send(prompt, 30)
        server.arrived(6)
        server.step(3)
        shows(page, "document.querySelectorAll('#texts .card').length > 4")
        check_with_axe(page, PHONE, "while requests run and wait")
        server.go_on()
        server.answered()
        shows(page, "Chat.running === null && document.querySelectorAll('#tree [data-node]').length > 4")
        page.execute_script("document.querySelector('#key').open = true; live.show(3)")
        shows(page, "live.Live.position === 3")
        check_with_axe(page, LAPTOP, "some time ago")
        page.execute_script("document.querySelector('#key').open = false; live.goLive()")
        set_field(page, "max_tokens", 999)
        ask(page, "abc")
        check_with_axe(page, PHONE, "after an error")

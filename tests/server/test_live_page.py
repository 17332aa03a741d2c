"""The engine beside the live page's chat, on any screen, by keyboard, and for a checker of accessibility."""

import pytest

from tests.helpers.chromium import axe_findings, needs_axe

pytest.importorskip("selenium", reason="selenium is not installed (pip install selenium)")
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

from tests.helpers.chromium import LAPTOP, PHONE, device, press
from tests.helpers.live_page import HOSTILE, MARKDOWN, ask, find, letters, node_texts, opened, set_field, shows, texts
from tests.helpers.waiting import until

pytestmark = pytest.mark.slow


def test_a_second_clients_request_appears_while_it_is_served(browser: webdriver.Chrome) -> None:
    with letters(free=False, show_prompts=True) as server:
        page = opened(browser, server.up.url)
        server.send("abcdef", 8)
        server.arrived(1)
        server.step(3)
        shows(page, "live.Live.replay.last === 3")
        assert len(texts(page, "#rows .row")) == 1
        assert "running" in texts(page, "#texts .card")[0]
        assert "abcdefghi" in texts(page, "#texts .card .text")[0]
        owned = "return ['.slot.o-locked', '.slot.o-r0'].map((look) => document.querySelectorAll(look).length)"
        assert page.execute_script(owned) == [6, 2], "its prompt is in the tree already"
        assert page.execute_script("return document.querySelectorAll('#lanes .lane .p-extend').length") >= 1
        server.go_on()
        server.answered()
        until(lambda: node_texts(page) == ["abcdefghijklm"])
        server.send("abcxyz", 3)
        server.answered()
        until(lambda: node_texts(page) == ["abc", "defghijklm", "xyz{|"])
        owners = page.execute_script(
            "return [...document.querySelectorAll('.slot')].map((cell) => cell.className.split(' ')[1])"
        )
        stats = server.core.stats()
        assert owners.count("o-tree") == stats.evictable_slots == 18


def test_without_show_prompts_nothing_shows_what_was_written(browser: webdriver.Chrome) -> None:
    with letters() as server:
        server.send("abcdef")
        server.answered()
        page = opened(browser, server.up.url)
        shows(page, "document.querySelectorAll('#tree [data-node]').length === 1")
        assert set(node_texts(page)[0]) == {"□"}
        assert "10 tokens" in texts(page, "#tree [data-node]")[0]
        assert "abcdef" not in page.page_source


def test_text_is_text(browser: webdriver.Chrome) -> None:
    with letters(show_prompts=True) as server:
        page = opened(browser, server.up.url)
        server.send(HOSTILE)
        server.answered()
        shows(page, "document.querySelectorAll('#tree [data-node]').length === 1")
        assert HOSTILE in texts(page, "#texts .card .text")[0]
        assert page.execute_script("return document.querySelectorAll('main img').length") == 0


def test_stepping_back_shows_what_was_and_live_what_is(browser: webdriver.Chrome) -> None:
    with letters(free=False) as server:
        page = opened(browser, server.up.url)
        server.send("abcdef", 6)
        server.arrived(1)
        server.step(3)
        shows(page, "live.Live.replay.last === 3")
        shown = "return document.querySelector('#rows .head small')?.textContent"
        assert page.execute_script(shown) == "seq_len 8"
        find(page, "#back").click()
        shows(page, "document.querySelector('#rows .head small').textContent === 'seq_len 7'")
        assert find(page, "#live").get_attribute("aria-pressed") == "false"
        assert find(page, "#where").text == "paused at step 2"
        server.step()
        shows(page, "live.Live.replay.last === 4")
        assert page.execute_script(shown) == "seq_len 7", "the engine goes on, the page stays"
        find(page, "#slider").send_keys(Keys.ARROW_LEFT)
        shows(page, "live.Live.position === 1")
        find(page, "#live").click()
        shows(page, "document.querySelector('#rows .head small')?.textContent === 'seq_len 9'")
        assert find(page, "#live").get_attribute("aria-pressed") == "true"


def test_what_a_page_keeps_and_draws_is_bounded(browser: webdriver.Chrome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nanoinfer.server.live.recording.MOST_STEPS", 60)
    with letters(show_prompts=True) as server:
        page = opened(browser, server.up.url)
        page.execute_script(
            "window.most = 0; setInterval(() => (most = Math.max(most, live.Live.trace.events.length)), 1)"
        )
        for i in range(40):
            server.send(f"{i}", 9)
        server.answered()
        shows(page, "live.Live.replay.alive.size === 0")
        assert page.execute_script("return Math.max(most, live.Live.trace.events.length)") < 300
        assert len(texts(page, "#lanes .lane")) <= 24
        assert len(texts(page, "#texts .card")) <= 12


def test_a_phone_needs_no_horizontal_scrolling(browser: webdriver.Chrome) -> None:
    with letters(free=False, show_prompts=True) as server, device(browser, *PHONE, touch=True):
        page = opened(browser, server.up.url)
        wide = "return document.documentElement.scrollWidth"
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
        ask(page, "M" * 50)
        page.execute_script("addMessage({role: 'assistant', content: arguments[0]})", MARKDOWN + "# " + "M" * 80)
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
        assert texts(page, ".message.user > .words") == ["abc\nd"]
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
        page.execute_script("addMessage({role: 'assistant', content: arguments[0], reasoning: 'a'})", MARKDOWN)
        ask(page, "abc")
        check_with_axe(page, PHONE, "after an error")

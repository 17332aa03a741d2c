"""The engine beside the live page's chat, which others use at the same time."""

import pytest

pytest.importorskip("selenium", reason="selenium is not installed (pip install selenium)")
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

from tests.helpers.live_page import HOSTILE, find, letters, node_texts, opened, set_field, shows, texts
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


def test_ones_own_requests_are_marked_wherever_they_are_shown(browser: webdriver.Chrome) -> None:
    with letters(free=False) as server:
        page = opened(browser, server.up.url)
        server.send("klmnop", 30)
        server.arrived(1)
        server.step(3)  # it decodes; the page's own request comes later
        set_field(page, "max_tokens", 20)
        set_field(page, "temperature", 0)
        find(page, "#question").send_keys("abcd", Keys.ENTER)
        server.arrived(2)
        server.step(2)
        shows(page, "live.Live.replay.last === 5")
        shows(page, "document.querySelectorAll('#rows .row .chip .mine').length === 1")
        mine = "request 1, yours"
        for place in ("#slots .legend .chip", "#rows .row .chip", "#batch tbody .chip", "#texts .card .chip"):
            names = [name.split("yours")[0] + "yours" * ("yours" in name) for name in texts(page, place)]
            assert sum(name == mine for name in names) == 1, (place, names)
            assert sum("yours" in name for name in names) == 1, (place, names)
        assert mine in texts(page, "#lanes .lane > span")
        owned = page.execute_script(
            "return [...document.querySelectorAll('.slot.mine')].map((cell) => cell.classList.contains('o-r1'))"
        )
        assert owned == [True], "the prompt is in the tree: one new token has K/V"
        titles = page.execute_script("return [...document.querySelectorAll('#tree .swatch')].map((one) => one.title)")
        assert sorted(titles) == ["request 0", mine]
        server.go_on()
        server.answered()
        shows(page, "Chat.running === null")


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


def test_what_has_the_focus_keeps_it_while_everything_is_drawn_again(browser: webdriver.Chrome) -> None:
    with letters(show_prompts=True) as server:
        server.send("abcdef")
        server.answered()
        page = opened(browser, server.up.url)
        shows(page, "document.querySelectorAll('#tree [data-node]').length === 1")
        page.execute_script("(window.node = document.querySelector('#tree [data-node]')).focus()")
        server.send("xyz")
        server.answered()
        shows(page, "document.querySelectorAll('#tree [data-node]').length === 2")
        assert page.execute_script("return document.activeElement === node && node.isConnected")
        webdriver.ActionChains(page).move_to_element(find(page, "#tree [data-node]")).perform()
        assert page.execute_script("return document.querySelectorAll('.slot.lit').length") == 10

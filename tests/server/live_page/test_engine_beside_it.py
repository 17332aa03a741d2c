"""The engine beside the live page's chat, which others use at the same time."""

import json

import pytest

pytest.importorskip("selenium", reason="selenium is not installed (pip install selenium)")
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.helpers.live_page import HOSTILE, find, letters, node_texts, opened, set_field, shows, texts
from tests.helpers.servers import Running
from tests.helpers.waiting import until

pytestmark = pytest.mark.slow


def test_a_second_clients_request_appears_while_it_is_served(browser: webdriver.Chrome) -> None:
    with letters(free=False, show_prompts=True) as server:
        page = opened(browser, server.up.url)
        server.send("abcdef", 8)
        server.arrived(1)
        server.step(3)
        shows(page, "live.Live.fields.counts.output_tokens === 3")
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
        assert texts(page, "#batch tbody tr") == ["No request is running."]
        server.send("klmnop", 30)
        server.arrived(1)
        server.step(3)  # it decodes; the page's own request comes later
        set_field(page, "max_tokens", 20)
        set_field(page, "temperature", 0)
        find(page, "#question").send_keys("abcd", Keys.ENTER)
        server.arrived(2)
        server.step(2)
        shows(page, "live.Live.fields.counts.output_tokens === 6")
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
        page.execute_script("""
            const [first, second] = Object.values(live.Live.fields.requests);
            const requests = { 0: { ...first, phase: "extend" }, 1: { ...second, phase: "idle" } };
            live.history.add({ ...live.Live.fields, requests });
            live.show(live.history.end - 1);""")
        shown = [["request 0", "extend", "6", "0", "4"], [mine, "not in this pass", "4", "0", "2"]]
        shows(
            page,
            "JSON.stringify([...document.querySelectorAll('#batch tbody tr')]"
            f".map((row) => [...row.cells].map((cell) => cell.textContent))) === JSON.stringify({json.dumps(shown)})",
        )
        server.go_on()
        server.answered()
        shows(page, "Chat.running === null")


def test_without_show_prompts_nodes_show_numbers_only(browser: webdriver.Chrome) -> None:
    with letters() as server:
        server.send("abcdef")
        server.answered()
        page = opened(browser, server.up.url)
        shows(page, "document.querySelectorAll('#tree [data-node]').length === 1")
        assert node_texts(page) == []
        assert "10 tokens" in texts(page, "#tree [data-node]")[0]
        find(page, "#tree [data-node]").click()
        assert "--show-prompts" in find(page, "#node-words").text
        assert "abcdef" not in page.page_source


def test_a_node_can_be_read(browser: webdriver.Chrome) -> None:
    with letters(show_prompts=True) as server:
        for prompt in ("abcdef", "abc" + HOSTILE):
            server.send(prompt)
            server.answered()
        page = opened(browser, server.up.url)
        shows(page, "document.querySelectorAll('#tree [data-node]').length === 3")
        page.find_elements(By.CSS_SELECTOR, "#tree [data-node]")[2].click()
        shows(page, "document.querySelector('#node-words').textContent.length > 0")
        assert find(page, "#node-words").text.startswith("abc" + HOSTILE)
        assert find(page, "#node-words .prompt").text == "abc"
        assert f"{len(HOSTILE) + 4} tokens" in find(page, "#node-facts").text
        assert page.execute_script("return document.querySelectorAll('main img, dialog img').length") == 0, (
            "text is text"
        )
        find(page, "#node-close").click()
        assert not find(page, "#node").is_displayed()


def test_scrubbing_back_shows_what_was_and_live_what_is(browser: webdriver.Chrome) -> None:
    with letters(free=False) as server:
        page = opened(browser, server.up.url)
        server.send("abcdef", 6)
        server.arrived(1)
        for passes in range(1, 4):
            server.step()
            shows(page, f"live.Live.fields.counts.output_tokens === {passes}")
        shown = "return Number(document.querySelector('#rows .head small').textContent.split(' ')[1])"  # seq_len
        assert page.execute_script(shown) == 8
        frames = page.execute_script(
            "return live.history.frames.map(({ fields }) => [...Object.values(fields.requests), {}][0].kv ?? 0)"
        )
        find(page, "#back").click()
        shows(page, "document.querySelector('#live').getAttribute('aria-pressed') === 'false'")
        page.execute_script("live.show(arguments[0])", frames.index(7))
        shows(page, "Number(document.querySelector('#rows .head small').textContent.split(' ')[1]) === 7")
        assert "s ago" in find(page, "#where").text
        server.step()
        shows(page, "live.Live.fields.counts.output_tokens === 4")
        assert "newer frame" in find(page, "#newer").text
        assert page.execute_script(shown) == 7, "the engine goes on, the page stays"
        slider = find(page, "#slider")
        slider.send_keys(Keys.ARROW_LEFT)
        shows(page, f"live.Live.position === {frames.index(7) - 1}")
        find(page, "#live").click()
        shows(page, "document.querySelector('#rows .head small')?.textContent === 'seq_len 9'")
        assert find(page, "#live").get_attribute("aria-pressed") == "true"


def test_the_history_is_bounded(browser: webdriver.Chrome, server: Running) -> None:
    page = opened(browser, server.url)
    sizes = page.execute_script("""
        const history = new live.history.constructor(); // not the one that is drawn
        const { fields } = live.Live;
        for (let i = 0; i < 5000; i++) {
          const requests = { [i]: { name: `request ${i}`, look: 0, status: "running", phase: "decode" } };
          history.add({ ...fields, requests, passes: { [i % 2 ? "DECODE" : "EXTEND"]: 1 } });
        }
        const drawn = history.window(history.first, history.end);
        return [history.frames.length, history.lanes.size, history.passes.length, drawn.lanes.length, drawn.left];""")
    frames, lanes, passes, *drawn = sizes
    assert (frames, drawn) == (1800, [24, 1800 - 24])
    assert max(lanes, passes) <= 1802


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

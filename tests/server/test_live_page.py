"""The live page in headless Chromium: the chat, and the engine beside it, which others use at the same time."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from nanoinfer import Engine, RequestOutput
from nanoinfer.server import make_app
from tests.helpers.axe import axe_findings, needs_axe
from tests.helpers.engines import make_engine
from tests.helpers.live import SpellingTokenizer
from tests.helpers.servers import Running, running, wait_until

pytest.importorskip("selenium", reason="selenium is not installed (pip install selenium)")
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.helpers.chromium import chromium, device, needs_chromium

LAPTOP, PHONE = (1366, 768), (390, 844)
HOSTILE = "</script><img src=x>${1}<!--"
pytestmark = needs_chromium


class Letters:
    """A server whose model counts letters. Its engine makes passes freely, or only those that the test lets through."""

    def __init__(self, engine: Engine, free: bool):
        self.core, self._free, self._passes = engine, free, threading.Semaphore(0)
        self._threads: list[threading.Thread] = []
        self._step, engine.step = engine.step, self._step_if_let  # type: ignore[method-assign]
        self.passes = 0

    def _step_if_let(self) -> list[RequestOutput]:
        """A step, or none: then the engine's thread goes on to what else it has to do."""
        if not self._free and not self._passes.acquire(timeout=0.002):
            self.core.last_batch = None
            return []
        self.passes += 1
        return self._step()

    @contextmanager
    def serving(self, **settings: Any) -> Iterator["Letters"]:
        with running(make_app(self.core, **settings)) as self.up:
            try:
                yield self
            finally:
                self.go_on()

    def send(self, prompt: str, max_tokens: int = 5) -> None:
        """Another client's request, which need not be answered before this returns."""
        body = {"model": self.up.service.base_name, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
        self._threads.append(threading.Thread(target=self.up.post, args=("/v1/completions", body), daemon=True))
        self._threads[-1].start()

    def answered(self) -> None:
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()

    def arrived(self, requests: int) -> None:
        """Wait until so many requests are in the engine."""
        wait_until(lambda: (stats := self.core.stats()).waiting + stats.running == requests)

    def step(self, passes: int = 1) -> None:
        """Let so many passes through, of requests that have arrived."""
        goal = self.passes + passes
        self._passes.release(passes)
        wait_until(lambda: self.passes == goal)

    def go_on(self) -> None:
        """Let all passes through from now on."""
        self._free = True


def letters(free: bool = True, **settings: Any) -> Any:
    return Letters(make_engine(tokenizer=SpellingTokenizer(), slots=512), free).serving(**settings)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    with chromium(tmp_path_factory.mktemp("chromium")) as driver:
        yield driver


@pytest.fixture(autouse=True)
def _no_complaints(browser: webdriver.Chrome) -> Iterator[None]:
    """No script fails, and nothing that a page does is against its own policy."""
    browser.get("about:blank")
    browser.get_log("browser")
    browser.get_log("performance")
    yield
    told = [entry["message"] for entry in browser.get_log("browser") if entry["level"] != "INFO"]
    assert [message for message in told if "/live/" not in message and "/v1/" not in message] == []


def opened(browser: webdriver.Chrome, url: str) -> webdriver.Chrome:
    """The page, when it has drawn its first frame."""
    browser.get(f"{url}/")
    until(browser, "live.history.frames.length > 0 && document.querySelector('.slot') !== null")
    return browser


def until(page: webdriver.Chrome, condition: str) -> None:
    wait_until(lambda: page.execute_script(f"return ({condition})"))


def find(page: webdriver.Chrome, selector: str) -> Any:
    return page.find_element(By.CSS_SELECTOR, selector)


def texts(page: webdriver.Chrome, selector: str) -> list[str]:
    return page.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)", selector
    )


def press(page: webdriver.Chrome, *keys: str) -> None:
    webdriver.ActionChains(page).send_keys(*keys).perform()


def set_field(page: webdriver.Chrome, name: str, value: Any) -> None:
    page.execute_script(
        "document.querySelector('#settings').open = true; document.getElementById(arguments[0]).value = arguments[1]",
        name,
        value,
    )


def ask(page: webdriver.Chrome, question: str) -> str:
    """Send a message by keyboard and wait for the whole answer."""
    answers = len(texts(page, ".message.assistant"))
    find(page, "#question").send_keys(question, Keys.ENTER)
    until(page, f"document.querySelectorAll('.message.assistant').length > {answers}")
    until(page, "Chat.running === null")
    return texts(page, ".message.assistant .words")[-1]


def api(server: Running, *conversation: str, model: str | None = None, **fields: Any) -> dict[str, Any]:
    """What the protocol answers to the same conversation."""
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(conversation)]
    body = {"model": model or server.service.base_name, "messages": messages, "temperature": 0, **fields}
    answer = server.post("/v1/chat/completions", body)
    assert answer.status_code == 200, answer.text
    return answer.json()


# --- the chat ---------------------------------------------------------------------------------------------------------


def test_an_answer_streams_and_the_next_question_goes_with_the_conversation(
    browser: webdriver.Chrome, server: Running
) -> None:
    page = opened(browser, server.url)
    assert texts(page, "#model option") == ["story", "sea (adapter)"]
    set_field(page, "temperature", 0)
    set_field(page, "max_tokens", 24)
    first = ask(page, "Tell me a story about a fox.")
    expected = api(server, "Tell me a story about a fox.", max_tokens=24)
    assert first == expected["choices"][0]["message"]["content"]
    second = ask(page, "And then?")
    expected = api(server, "Tell me a story about a fox.", first, "And then?", max_tokens=24)
    assert second == expected["choices"][0]["message"]["content"]
    before, facts = texts(page, ".message.assistant .facts")
    assert "24 new tokens" in before
    assert "cut: it has reached its number of tokens" in before
    assert f"{expected['usage']['prompt_tokens']} prompt tokens" in facts
    find(page, "#forget").click()
    assert texts(page, ".message") == []
    assert ask(page, "Tell me a story about a fox.") == first, "without the conversation that was forgotten"


def test_an_adapter_answers(browser: webdriver.Chrome, server: Running) -> None:
    page = opened(browser, server.url)
    set_field(page, "temperature", 0)
    set_field(page, "max_tokens", 16)
    set_field(page, "system", "You are a sailor.")
    page.execute_script("document.querySelector('#model').value = 'sea'")
    answer = ask(page, "Tell me a story.")
    messages = [{"role": "system", "content": "You are a sailor."}, {"role": "user", "content": "Tell me a story."}]
    body = {"model": "sea", "messages": messages, "temperature": 0, "max_tokens": 16}
    expected = server.post("/v1/chat/completions", body).json()
    assert answer == expected["choices"][0]["message"]["content"]
    until(
        page, "[...document.querySelectorAll('#texts .card')].some((card) => card.textContent.includes('adapter sea'))"
    )


@pytest.mark.parametrize("has_template", [True, False])
def test_settings_are_sent_as_the_protocol_calls_them(
    browser: webdriver.Chrome, server: Running, has_template: bool
) -> None:
    page = opened(browser, server.url)
    settings = {
        "model": "m",
        "temperature": "0.5",
        "top_p": "0.9",
        "max_tokens": "7",
        "seed": "3",
        "system": "S",
        "json": True,
    }
    blank = dict.fromkeys(settings, "") | {"model": "m", "json": False}
    talk = [{"role": "user", "content": "a"}]
    script = "return [arguments[1], arguments[2]].map((given) => chatRequest(arguments[0], given, arguments[3]))"
    full, empty = page.execute_script(script, talk, settings, blank, has_template)
    common = {"model": "m", "stream": True, "stream_options": {"include_usage": True}}
    given = {"temperature": 0.5, "top_p": 0.9, "max_tokens": 7, "seed": 3, "response_format": {"type": "json_object"}}
    if has_template:
        messages = {"messages": [{"role": "system", "content": "S"}, *talk]}
        assert full == {"path": "v1/chat/completions", "body": common | given | messages}
        assert empty == {"path": "v1/chat/completions", "body": common | {"messages": talk}}
    else:
        assert full == {"path": "v1/completions", "body": common | given | {"prompt": "a"}}
        assert empty == {"path": "v1/completions", "body": common | {"prompt": "a", "max_tokens": 128}}
    assert page.execute_script("return document.querySelector('#json').checked") is False


def test_json_mode_gives_json(browser: webdriver.Chrome, server: Running) -> None:
    page = opened(browser, server.url)
    set_field(page, "temperature", 0)
    set_field(page, "max_tokens", 40)
    find(page, "#json").click()
    assert ask(page, "Who are you?").startswith("{")


def test_what_the_server_refuses_is_said_and_the_message_is_not_lost(
    browser: webdriver.Chrome, server: Running
) -> None:
    page = opened(browser, server.url)
    set_field(page, "max_tokens", 99999)
    ask(page, "Tell me a story.")
    (problem,) = texts(page, ".problem[role=alert]")
    assert "max_tokens" in problem
    assert find(page, "#question").get_attribute("value") == "Tell me a story."
    assert page.execute_script("return Chat.conversation") == []


def test_stop_aborts_the_request_and_keeps_what_has_been_written(browser: webdriver.Chrome) -> None:
    with letters(free=False) as server:
        page = opened(browser, server.up.url)
        assert "no chat template" in find(page, "#no-template").text
        set_field(page, "temperature", 0)
        set_field(page, "max_tokens", 50)
        find(page, "#question").send_keys("abc", Keys.ENTER)
        server.arrived(1)
        server.step(3)
        until(page, "document.querySelector('.message.assistant .words')?.textContent === 'def'")
        assert page.execute_script("return document.querySelector('.message.assistant').ariaBusy") == "true"
        find(page, "#stop").click()
        until(page, "Chat.running === null")
        wait_until(lambda: server.core.stats().aborted == 1)
        assert "stopped by you" in texts(page, ".message.assistant .facts")[0]
        assert page.execute_script("return Chat.conversation.map((turn) => turn.content)") == ["abc", "def"]
        assert find(page, "#send").is_displayed()
        until(
            page,
            "document.querySelector('#texts .card.ended')?.textContent.includes('ended: abort')",
        )
        server.go_on()
        server.up.check_idle()


def test_who_listens_hears_an_answer_once(browser: webdriver.Chrome) -> None:
    with letters() as server:
        page = opened(browser, server.up.url)
        page.execute_script("""
            window.heard = [];
            new MutationObserver(() => heard.push(document.querySelector("#announcer").textContent))
              .observe(document.querySelector("#announcer"), { childList: true });""")
        set_field(page, "max_tokens", 9)
        set_field(page, "temperature", 0)
        answer = ask(page, "abc")
        assert answer == "defghijkl"
        name = server.up.service.base_name
        assert page.execute_script("return heard") == ["The model is answering.", f"{name} says: {answer}"]
        assert find(page, "#log").get_attribute("aria-live") is None


# --- the engine beside it ---------------------------------------------------------------------------------------------


def node_texts(page: webdriver.Chrome) -> list[str]:
    return texts(page, "#tree [data-node] b")


def test_a_second_clients_request_appears_while_it_is_served(browser: webdriver.Chrome) -> None:
    with letters(free=False, show_prompts=True) as server:
        page = opened(browser, server.up.url)
        server.send("abcdef", 8)
        server.arrived(1)
        server.step(3)
        until(page, "document.querySelectorAll('#rows .row').length === 1")
        assert "running" in texts(page, "#texts .card")[0]
        assert "abcdefghi" in texts(page, "#texts .card .text")[0]
        owned = "return ['.slot.o-locked', '.slot.o-r0'].map((look) => document.querySelectorAll(look).length)"
        assert page.execute_script(owned) == [6, 2], "its prompt is in the tree already"
        assert page.execute_script("return document.querySelectorAll('#lanes .lane .p-extend').length") >= 1
        server.go_on()
        server.answered()
        wait_until(lambda: node_texts(page) == ["abcdefghijklm"])
        server.send("abcxyz", 3)
        server.answered()
        wait_until(lambda: node_texts(page) == ["abc", "defghijklm", "xyz{|"])
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
        until(page, "live.Live.fields.counts.output_tokens === 6")
        until(page, "document.querySelectorAll('#rows .row .chip .mine').length === 1")
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
        until(
            page,
            "JSON.stringify([...document.querySelectorAll('#batch tbody tr')]"
            f".map((row) => [...row.cells].map((cell) => cell.textContent))) === JSON.stringify({json.dumps(shown)})",
        )
        server.go_on()
        server.answered()
        until(page, "Chat.running === null")


def test_without_show_prompts_nodes_show_numbers_only(browser: webdriver.Chrome) -> None:
    with letters() as server:
        server.send("abcdef")
        server.answered()
        page = opened(browser, server.up.url)
        until(page, "document.querySelectorAll('#tree [data-node]').length === 1")
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
        until(page, "document.querySelectorAll('#tree [data-node]').length === 3")
        page.find_elements(By.CSS_SELECTOR, "#tree [data-node]")[2].click()
        until(page, "document.querySelector('#node-words').textContent.length > 0")
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
            until(page, f"live.Live.fields.counts.output_tokens === {passes}")
        shown = "return Number(document.querySelector('#rows .head small').textContent.split(' ')[1])"  # seq_len
        assert page.execute_script(shown) == 8
        frames = page.execute_script(
            "return live.history.frames.map(({ fields }) => [...Object.values(fields.requests), {}][0].kv ?? 0)"
        )
        find(page, "#back").click()
        until(page, "document.querySelector('#live').getAttribute('aria-pressed') === 'false'")
        page.execute_script("live.show(arguments[0])", frames.index(7))
        until(page, "Number(document.querySelector('#rows .head small').textContent.split(' ')[1]) === 7")
        assert "s ago" in find(page, "#where").text
        server.step()
        until(page, "live.Live.fields.counts.output_tokens === 4 && !document.querySelector('#newer').hidden")
        page.execute_script("window.dispatchEvent(new Event('resize'))")
        assert page.execute_script(shown) == 7, "the engine goes on, the page stays"
        slider = find(page, "#slider")
        slider.send_keys(Keys.ARROW_LEFT)
        until(page, f"live.Live.position === {frames.index(7) - 1}")
        find(page, "#live").click()
        until(page, "document.querySelector('#rows .head small')?.textContent === 'seq_len 9'")
        assert find(page, "#live").get_attribute("aria-pressed") == "true"


def test_the_history_is_bounded(browser: webdriver.Chrome, server: Running) -> None:
    page = opened(browser, server.url)
    sizes = page.execute_script("""
        const { history, Live } = live;
        for (let i = 0; i < 5000; i++) {
          const requests = { [i]: { name: `request ${i}`, look: 0, status: "running", phase: "decode" } };
          history.add({ ...Live.fields, requests, passes: { [i % 2 ? "DECODE" : "EXTEND"]: 1 } });
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
        until(page, "document.querySelectorAll('#tree [data-node]').length === 1")
        page.execute_script("(window.node = document.querySelector('#tree [data-node]')).focus()")
        server.send("xyz")
        server.answered()
        until(page, "document.querySelectorAll('#tree [data-node]').length === 2")
        assert page.execute_script("return document.activeElement === node && node.isConnected")
        webdriver.ActionChains(page).move_to_element(find(page, "#tree [data-node]")).perform()
        assert page.execute_script("return document.querySelectorAll('.slot.lit').length") == 10


# --- the key ----------------------------------------------------------------------------------------------------------


def test_the_key_is_asked_for_and_goes_in_a_header(browser: webdriver.Chrome) -> None:
    with letters(api_keys=["a-secret-key"]) as server:
        browser.get(f"{server.up.url}/")
        until(browser, "document.querySelector('#key').open")
        assert "API key" in find(browser, "#connection").text
        find(browser, "#key-field").send_keys("a-secret-key", Keys.ENTER)
        until(browser, "live.history.frames.length > 0 && document.querySelector('#model').value !== ''")
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
        until(browser, "window.live && live.history.frames.length > 0")
        assert browser.execute_script("return [localStorage.length, document.cookie]") == [0, ""]


def test_the_page_says_when_the_server_is_gone(browser: webdriver.Chrome) -> None:
    with letters() as server:
        page = opened(browser, server.up.url)
        server.up.end()
        until(page, "document.querySelector('#connection').className === 'failed'")
        assert "Trying again" in find(page, "#connection").text


# --- for everybody ----------------------------------------------------------------------------------------------------


def test_a_phone_needs_no_horizontal_scrolling(browser: webdriver.Chrome) -> None:
    with letters(free=False, show_prompts=True) as server, device(browser, *PHONE, touch=True):
        page = opened(browser, server.up.url)
        wide = "return document.documentElement.scrollWidth"
        assert page.execute_script(wide) == 390
        for prompt in ("abcdef" * 4, "abcxyz", "klm", "nop", "qrs", "m" * 30):
            server.send(prompt, 30)
        server.arrived(6)
        server.step(3)
        until(page, "document.querySelectorAll('#texts .card').length > 5 && live.Live.fields.counts.running > 0")
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
        until(page, "document.querySelectorAll('#tree [data-node]').length > 3")
        assert page.execute_script(wide) == 390
        page.execute_script("document.querySelector('#tree [data-node]').click()")
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
                until(page, "Chat.running === null && document.querySelectorAll('.message').length === 2")
                until(page, "document.querySelectorAll('#tree [data-node]').length === 1")
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
            "span",
            "slider",
        ]
        order = [name for name in reached if name in controls]
        assert list(dict.fromkeys(order)) == controls, reached
        assert page.execute_script("return document.activeElement.dataset.node") is not None
        press(page, Keys.ENTER)
        until(page, "document.querySelector('#node').open && document.querySelector('#node-words').textContent")
        assert find(page, "#node-words").text.startswith("abc")
        press(page, Keys.ESCAPE)
        assert not find(page, "#node").is_displayed()
        assert page.execute_script("return document.activeElement.dataset.node") is not None, "back where it was"
        page.execute_script("document.querySelector('#slider').focus()")
        press(page, Keys.HOME)
        until(page, "live.Live.position === live.history.first && !live.Live.isLive")


def test_nothing_moves_for_those_who_do_not_want_that(browser: webdriver.Chrome) -> None:
    with letters(free=False) as server:
        page = opened(browser, server.up.url)
        set_field(page, "max_tokens", 9)
        find(page, "#question").send_keys("abc", Keys.ENTER)
        server.arrived(1)
        server.step()
        until(page, "document.querySelector('.message.assistant .words')?.textContent")
        moves = "return getComputedStyle(document.querySelector('.message.assistant .words'), '::after').animationName"
        assert page.execute_script(moves) == "blink"
        reduced = {"name": "prefers-reduced-motion", "value": "reduce"}
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [reduced]})
        assert page.execute_script(moves) == "none"
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


@needs_axe
@pytest.mark.parametrize(("screen", "dark"), [(LAPTOP, False), (LAPTOP, True), (PHONE, False), (PHONE, True)], ids=str)
def test_axe_finds_nothing(browser: webdriver.Chrome, screen: tuple[int, int], dark: bool) -> None:
    with letters(free=False, show_prompts=True) as server, device(browser, *screen, dark=dark, touch=screen == PHONE):
        page = opened(browser, server.up.url)
        assert axe_findings(page) == [], "at the beginning"
        set_field(page, "max_tokens", 9)
        find(page, "#question").send_keys("abc", Keys.ENTER)
        server.arrived(1)
        for prompt in ("abcdef", "abcxyz", "klm", "nop", "qrs"):
            server.send(prompt, 30)
        server.arrived(6)
        server.step(3)
        until(page, "document.querySelectorAll('#texts .card').length > 4")
        assert axe_findings(page) == [], "while requests run and wait"
        server.go_on()
        server.answered()
        until(page, "Chat.running === null && document.querySelectorAll('#tree [data-node]').length > 4")
        page.execute_script("document.querySelector('#key').open = true; live.show(3)")
        until(page, "live.Live.position === 3")
        assert axe_findings(page) == [], "some time ago"
        page.execute_script("document.querySelector('#key').open = false; live.goLive()")
        set_field(page, "max_tokens", 999)
        ask(page, "abc")
        assert axe_findings(page) == [], "after an error"
        find(page, "#tree [data-node]").click()
        until(page, "document.querySelector('#node-words').textContent")
        assert axe_findings(page) == [], "while a node is read"

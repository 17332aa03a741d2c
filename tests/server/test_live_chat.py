"""The live page's chat in headless Chromium: what is sent, what is answered and shown, and how it keeps its connection."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("selenium", reason="selenium is not installed (pip install selenium)")
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

from nanoinfer.viz.trace import Trace
from tests.helpers.live_page import MARKDOWN, ask, find, letters, node_texts, opened, set_field, shows, texts
from tests.helpers.servers import Running
from tests.helpers.waiting import until

pytestmark = pytest.mark.slow


def api(server: Running, *conversation: str, model: str | None = None, **fields: Any) -> dict[str, Any]:
    """What the protocol answers to the same conversation."""
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(conversation)]
    body = {"model": model or server.service.base_name, "messages": messages, "temperature": 0, **fields}
    answer = server.post("/v1/chat/completions", body)
    assert answer.status_code == 200, answer.text
    return answer.json()


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


@pytest.mark.parametrize("has_template", [True, False])
def test_settings_are_sent_as_the_protocol_calls_them(
    browser: webdriver.Chrome, server: Running, has_template: bool
) -> None:
    page = opened(browser, server.url)
    settings = {"model": "m", "temperature": "0.5", "top_p": "0.9", "max_tokens": "7", "seed": "3", "system": "S"}
    settings |= {"json": True}
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


def test_what_the_server_refuses_is_said_and_the_message_is_not_lost(
    browser: webdriver.Chrome, server: Running
) -> None:
    page = opened(browser, server.url)
    set_field(page, "max_tokens", 99999)
    ask(page, "Tell me a story.")
    (problem,) = texts(page, ".problem[role=alert]")
    assert "max_tokens" in problem
    assert find(page, "#question").get_attribute("value") == "Tell me a story."
    assert page.execute_script("return Chat.now.messages") == []
    page.execute_script("document.querySelector('#question').value = ''")
    find(page, "#question").send_keys("Tell me a long story. " * 50, Keys.ENTER)
    shows(page, "Chat.running === null && document.querySelector('.message.user').textContent.includes('long')")
    shown = page.execute_script("""
        const [log, problem] = ["#log", ".problem"].map((each) => document.querySelector(each).getBoundingClientRect());
        return [log.top <= problem.top && problem.bottom <= log.bottom, document.querySelectorAll(".message").length];""")
    assert shown == [True, 2], "the error is in view, and what failed before is gone"


def test_stop_aborts_the_request_and_keeps_what_has_been_written(browser: webdriver.Chrome) -> None:
    with letters(free=False) as server:
        page = opened(browser, server.up.url)
        assert "no chat template" in find(page, "#no-template").text
        set_field(page, "temperature", 0)
        set_field(page, "max_tokens", 50)
        find(page, "#question").send_keys("abc", Keys.ENTER)
        server.arrived(1)
        server.step(3)
        shows(page, "document.querySelector('.message.assistant > .words')?.textContent === 'def'")
        assert page.execute_script("return document.querySelector('.message.assistant').ariaBusy") == "true"
        find(page, "#stop").click()
        shows(page, "Chat.running === null")
        until(lambda: server.core.stats().aborted == 1)
        assert "stopped by you" in texts(page, ".message.assistant .facts")[0]
        assert page.execute_script("return Chat.now.messages.map((turn) => turn.content)") == ["abc", "def"]
        assert find(page, "#send").is_displayed()
        shows(page, "document.querySelector('#texts .card.ended')?.textContent.includes('ended: abort')")
        server.go_on()
        server.up.check_idle()


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
        keyed = [request["url"] for request in requests if "Authorization" in request["headers"]]
        assert {url.removeprefix(server.up.url) for url in keyed} == {
            *("/live/events", "/v1/models", "/v1/completions", "/tokenize")
        }
        browser.refresh()
        shows(browser, "live.Live.page !== null")
        kept = browser.execute_script("return [JSON.stringify(localStorage), document.cookie]")
        assert "def" in kept[0]
        assert "a-secret-key" not in kept[0] + kept[1]


def test_the_page_goes_on_when_the_server_is_stopped_and_started_again(browser: webdriver.Chrome) -> None:
    with letters(show_prompts=True) as server:
        page = opened(browser, server.up.url)
        port = int(server.up.url.rpartition(":")[2])
        set_field(page, "max_tokens", 3)
        set_field(page, "temperature", 0)
        ask(page, "abc")
        shows(page, "document.querySelectorAll('#lanes .lane').length === 1")
        server.up.end()
        shows(
            page, "document.querySelector('#connection').textContent.startsWith('The server is gone: nothing answers')"
        )
        find(page, "#question").send_keys("xyz", Keys.ENTER)
        shows(page, "document.querySelector('.problem')?.textContent.startsWith('The server is gone')")
        assert find(page, "#question").get_attribute("value") == "xyz"
        find(page, "#question").clear()
    with letters(port=port) as server:
        shows(page, "document.querySelector('#connection').textContent === 'connected' && Mine.size === 0")
        assert texts(page, "#lanes .lane") == [], "nothing of the other server"
        assert texts(page, "#tree [data-node]") == []
        server.send("xyz")
        server.answered()
        shows(page, "document.querySelectorAll('#lanes .lane').length === 1 && live.Live.replay.alive.size === 0")
        assert ask(page, "abc") == "def"
        assert texts(page, ".problem") == []


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


# --- what an answer looks like, and how long it stays ------------------------------------------------------------------


def test_markdown_becomes_elements_and_nothing_of_it_runs(browser: webdriver.Chrome) -> None:
    with letters() as server:
        page = opened(browser, server.up.url)
        message = page.execute_script(
            "addMessage({ role: 'assistant', content: arguments[0] });"
            "return document.querySelector('.message > .words').outerHTML",
            MARKDOWN,
        )
        for part in ("<em>title</em>", "<strong>bold</strong>", "<code>code</code>", '<h4 class="h2">Setext</h4>'):
            assert part in message
        assert texts(page, ".words pre code") == ['x = "<b>"  # not bold\n']
        assert texts(page, ".words ol > li")[0] == "one"
        assert "document.title" in texts(page, ".words td")[1]
        assert page.execute_script("return document.querySelector('.words td + td').style.textAlign") == "right"
        links = "return [...document.querySelectorAll('.words a')].map((one) => one.getAttribute('href'))"
        allowed = ["https://elsewhere.example/a.png", "https://b.example", *["https://later.example"] * 2]
        assert page.execute_script(links) == allowed, "no script, no address of this server"
        assert page.execute_script("return document.querySelectorAll('.words :is(img, script, b, iframe)').length") == 0
        assert page.title == "nanoinfer"


def test_markdown_that_comes_in_pieces_ends_as_if_it_had_come_at_once(browser: webdriver.Chrome) -> None:
    with letters() as server:
        page = opened(browser, server.up.url)
        different = page.execute_script(
            """
            const text = arguments[0] + arguments[1];
            const html = (pieces) => {
              const shown = new Growing(document.createElement("div"), true);
              for (const piece of pieces) shown.show(shown.text + piece);
              return shown.element.innerHTML;
            };
            const whole = html([text]);
            return [1, 2, 3, 7, 50].filter((n) => html(text.match(new RegExp(`[^]{1,${n}}`, "g"))) !== whole);
            """,
            "[later]: https://later.example\n\n" + MARKDOWN,  # addresses come before links, or links stay text
            "- a\r\n\r\n  b\r\n- c\r\n\r\nd\r\n~~~\nopen " + "*[`" * 50,
        )
        assert different == [], "sizes of pieces"


def test_an_answer_is_copied_and_written_again(browser: webdriver.Chrome, server: Running) -> None:
    page = opened(browser, server.url)
    page.execute_cdp_cmd("Browser.grantPermissions", {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]})
    set_field(page, "temperature", 0)
    set_field(page, "max_tokens", 8)
    first = ask(page, "Tell me a story about a fox.")
    second = ask(page, "And then?")
    find(page, ".message:last-child [aria-label='Copy the answer']").click()
    shows(page, "document.querySelector('#announcer').textContent === 'Copied'")
    assert page.execute_async_script("navigator.clipboard.readText().then(arguments[0])") == second
    set_field(page, "max_tokens", 99999)
    find(page, ".message:last-child .again").click()
    shows(page, "Chat.running === null && document.querySelector('.problem')")
    assert [each["content"] for each in page.execute_script("return Chat.now.messages")][3] == second, "nothing is lost"
    page.refresh()
    shows(page, "live.Live.page !== null && document.querySelectorAll('.message').length === 4")
    set_field(page, "temperature", 0)
    set_field(page, "max_tokens", 9)
    find(page, ".message:last-child .again").click()
    shows(page, "Chat.running === null && !document.querySelector('.message[hidden]')")
    again = api(server, "Tell me a story about a fox.", first, "And then?", max_tokens=9)["choices"][0]["message"]
    kept = page.execute_script("return Chat.now.messages.map((turn) => turn.content)")
    assert kept == ["Tell me a story about a fox.", first, "And then?", again["content"]]
    assert len(texts(page, ".message")) == 4
    assert "prompt tokens from the cache" in texts(page, ".message.assistant .facts")[1]


def test_chats_survive_a_reload_until_they_are_deleted(browser: webdriver.Chrome) -> None:
    with letters() as server:
        page = opened(browser, server.up.url)
        for question in ("abc", "uvw"):
            set_field(page, "max_tokens", 3)
            set_field(page, "temperature", 0)
            ask(page, question)
            find(page, "#forget").click()
        assert texts(page, "#chats option") == ["New chat", "uvw", "abc"]
        page.execute_script("""
            document.querySelector("#chats").selectedIndex = 2;
            document.querySelector("#chats").dispatchEvent(new Event("change"));""")
        page.refresh()
        shows(page, "live.Live.page !== null")
        assert texts(page, ".message > .words") == ["abc", "def"]
        find(page, "#delete").click()
        assert texts(page, ".message > .words") == ["abc", "def"], "it asks first"
        find(page, "#delete").click()
        assert (texts(page, ".message"), texts(page, "#chats option")) == ([], ["New chat", "uvw"])
        page.execute_script("""
            const old = (id) => ({ id, system: "", messages: [{ role: "user", content: "old" }] });
            Chats.set([...Chats.all(), ...Array.from({ length: 30 }, (_, i) => old(i + 1))]);
            listChats();""")
        set_field(page, "max_tokens", 3)
        set_field(page, "temperature", 0)
        assert ask(page, "klm") == "nop"
        assert texts(page, "#chats option")[:3] == ["New chat", "klm", "uvw"]
        assert page.execute_script("return Chats.all().length") == 20
        page.execute_script("Chats.MOST_CHARS = 9")
        ask(page, "a long one")
        assert find(page, "#not-kept").is_displayed()
        page.execute_script("localStorage['nanoinfer-chats'] = 'junk'")
        page.refresh()
        shows(page, "live.Live.page !== null")
        assert texts(page, "#chats option") == ["New chat"]


DENIED = """
for (const name of ["localStorage", "sessionStorage"])
  Object.defineProperty(window, name, { get() { throw new DOMException("denied", "SecurityError"); } });"""
THOUGHTS = """
answerTo = async function* () {
  yield { text: "", reasoning: "I think." };
  yield { text: "Yes.", reasoning: "" };
};"""


def test_without_storage_and_with_reasoning_a_chat_goes_on(browser: webdriver.Chrome) -> None:
    with letters(show_prompts=True) as server:
        script = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": DENIED})
        page = opened(browser, server.up.url)
        browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)
        assert "kept in this page only" in find(page, "#no-messages").text
        page.execute_script(THOUGHTS)
        assert ask(page, "abc") == "Yes."
        assert texts(page, ".message.assistant .reasoning .words") == ["I think."]
        assert not find(page, ".assistant .reasoning .words").is_displayed(), "it is folded"
        find(page, ".assistant .reasoning summary").click()
        assert find(page, ".assistant .reasoning .words").is_displayed()
        assert texts(page, "#chats option") == ["New chat"]
        assert not find(page, "#not-kept").is_displayed()


def test_the_tree_shows_ones_own_texts_and_nobody_elses(browser: webdriver.Chrome) -> None:
    with letters(free=False) as server:
        page = opened(browser, server.up.url)
        assert not find(page, "#key").is_displayed(), "there are no keys"
        for prompt in ("abcdef", "abcxyz"):
            server.send(prompt, 3)
            server.arrived(1)
            server.step(3)
            server.answered()
        set_field(page, "temperature", 0)
        set_field(page, "max_tokens", 4)
        find(page, "#question").send_keys("abcq", Keys.ENTER)
        server.arrived(1)
        for text in ("r", "rs", "rst", "rstu"):  # each in a chunk of its own
            server.step()
            shows(page, f"document.querySelector('.message.assistant > .words').textContent === '{text}'")
        until(lambda: node_texts(page) == ["abc", "□□□□□", "□□□□□", "qrst"])
        until(lambda: "abcqrstu" in texts(page, "#texts .card .text"))
        assert "qrst" not in page.execute_script("return JSON.stringify(live.Live.trace)"), "nor what is saved"
        server.go_on()
        server.send("abcqrs0", 3)
        server.answered()
        until(lambda: node_texts(page) == ["abc", "□□□□□", "□□□□□", "qrs", "t", "□□□"])
        find(page, "#back").click()
        until(lambda: node_texts(page)[:4] == ["abc", "□□□□□", "□□□□□", "qrs"])

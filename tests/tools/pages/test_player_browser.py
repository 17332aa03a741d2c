"""The player in headless Chromium: it draws what the trace says, moves, fetches nothing, and shows hostile text as text."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nanoinfer.viz.trace import Trace, TraceState, record
from nanoinfer.viz.trace.player import Player
from notebooks.tools.files import ROOT
from tests.helpers.engines import LetterTokenizer, greedy, make_engine, serve

pytest.importorskip("selenium", reason="selenium is not installed (pip install selenium)")
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.helpers.chromium import LAPTOP, PHONE, axe_findings, device, needs_axe, press
from tests.tools.trace.conftest import fetched_from

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

pytestmark = pytest.mark.slow
HOSTILE = ("</script><img src=x onerror=alert(1)>", "<!--", "]]>", "\u2028", "${alert(1)}", "“&amp;”")


class HostileTokenizer(LetterTokenizer):
    """Some tokens' texts are attacks on the page that shows them."""

    def decode(self, token_ids: Any) -> str:
        return "".join(HOSTILE[token - 65] if 65 <= token < 65 + len(HOSTILE) else chr(token) for token in token_ids)


@pytest.fixture
def page(browser: "Chrome", page_path: Path) -> "Chrome":
    browser.get(page_path.as_uri())
    return browser


def current(page: "Chrome") -> int:
    return page.execute_script("return player.current")


def where(page: "Chrome") -> str:
    return page.find_element(By.ID, "where").text


def drawn(page: "Chrome", number: int | None = None) -> dict[str, Any]:
    """What the page shows, counted from its elements; first it is moved to the frame of this number, if one is given."""
    return page.execute_script(
        """
        if (arguments[0] !== null) player.show(arguments[0]);
        const all = (selector) => [...document.querySelectorAll(selector)];
        const slots = {};
        all(".slot").forEach((cell, slot) => (slots[slot] = cell.className.split(" ")[1]));
        return {
          slots,
          written: all(".slot.written").length,
          nodes: all("[data-node]").length,
          locked: all(".node.o-locked").length,
          rows: all("#rows .row").map((row) => row.querySelector("b").textContent),
          rowSlots: all("#rows .row").map((row) => [...row.querySelectorAll("[data-slots]")].flatMap((run) => {
            const [start, length] = run.dataset.slots.split(" ").map(Number);
            return Array.from({ length }, (_, i) => start + i);
          })),
          batch: all("#batch tbody tr[data-request]").map((row) => Number(row.dataset.request)),
          texts: Object.fromEntries(
            all("#texts .card").map((card) => [card.dataset.request, card.querySelector(".text").textContent]),
          ),
          sentence: document.querySelector("#sentence").textContent,
        };""",
        number,
    )


def looks(state: TraceState) -> dict[str, str]:
    slots = dict.fromkeys(map(str, range(state.size)), "o-free")
    for _, node in state.walk():
        slots |= {str(slot): "o-locked" if node.lock_ref else "o-tree" for slot in node.value}
    for req in state.running:
        slots |= {str(slot): f"o-r{req.request.request_id % 8}" for slot in req.slots}
    return slots


def test_every_step_is_drawn_as_the_trace_has_it(page: "Chrome", run: Trace) -> None:
    assert_drawn(page, run)


def test_a_verify_shows_its_drafts_and_which_of_them_were_right(browser: "Chrome", tmp_path: Path) -> None:
    engine = make_engine(rows=3, slots=48, page_size=4, drafter="ngram", adaptive_drafts=False)
    with record(engine) as trace:
        engine.add_request("abcdeab", greedy(9))  # then c: drafts of d, e, a, of which two are right
        engine.add_request("opq", greedy(9))  # never has any
        while engine.has_unfinished():
            engine.step()
    trace.player().save(tmp_path / "drafts.html")
    browser.get((tmp_path / "drafts.html").as_uri())
    assert_drawn(browser, trace)
    (step,) = [event.step for event in trace.events if event.mode == "VERIFY" and event.accepted == 2]
    browser.execute_script(f"player.show({step})")
    first, second = browser.find_elements(By.CSS_SELECTOR, "#batch tbody tr")
    drafts = {look: [d.text for d in first.find_elements(By.CSS_SELECTOR, f".draft.{look}")] for look in LOOKS}
    assert drafts == {"accepted": ["d", "e"], "rejected": ["a"]}
    assert [row.find_element(By.TAG_NAME, "mark").text for row in (first, second)] == ["def", "s"]
    assert second.find_elements(By.CSS_SELECTOR, ".draft") == []
    for place in ("#batch h2 small", "#texts .card[data-request='0']"):
        assert "2 of 3 drafts accepted" in browser.find_element(By.CSS_SELECTOR, place).text
    assert "drafts accepted\n2 of 3" in browser.find_element(By.ID, "counters").text
    lane = browser.find_elements(By.CSS_SELECTOR, "#lanes .track .p-verify")
    assert len(lane) == sum(len(event.batch) for event in trace.events if event.mode == "VERIFY")
    assert browser.get_log("browser") == []


LOOKS = ("accepted", "rejected")


def assert_drawn(page: "Chrome", run: Trace) -> None:
    frames = page.execute_script("return player.replay.frames.map((frame) => [frame.step, frame.mode])")
    assert [step for step, mode in frames if mode] == list(range(1, len(run) + 1))
    order = [*range(len(frames)), 4, 3]  # and backward
    for number in order:
        step, mode = frames[number]
        if mode is None:
            continue
        state, event, got = run.state(step), run.step(step), drawn(page, number)
        assert got["slots"] == looks(state)
        assert got["written"] == sum(entry.end - entry.start for entry in event.batch)
        assert got["nodes"] == len(state.nodes) - 1
        assert got["locked"] == sum(node.lock_ref > 0 for _, node in state.walk())
        rows = sorted((req.row, state.row_slots(req)) for req in state.running)
        assert got["rows"] == [f"row {row}" for row, _ in rows]
        assert got["rowSlots"] == [slots for _, slots in rows]
        assert got["batch"] == [entry.request for entry in event.batch]
        texts = {str(i): "".join(map(chr, req.tokens)) for i, req in state.requests.items()}
        assert got["texts"] == texts
        assert got["sentence"].endswith(run.describe(step).split(f"Step {step} {event.mode}: ")[1])
    assert [entry for entry in page.get_log("browser") if entry["level"] != "INFO"] == []


def test_slider_buttons_and_keys_move_it(page: "Chrome", run: Trace) -> None:
    slider = page.find_element(By.ID, "slider")
    last = int(slider.get_attribute("max") or 0)
    extends = [event.step for event in run.events if event.mode == "EXTEND"]
    assert where(page) == f"step 1 of {len(run)}"
    page.execute_script("arguments[0].value = 5; arguments[0].dispatchEvent(new Event('input'))", slider)
    assert (current(page), where(page)) == (5, f"step 5 of {len(run)}")
    slider.send_keys(Keys.ARROW_RIGHT)  # the slider's own handling must not add to ours
    assert current(page) == 6
    page.find_element(By.TAG_NAME, "h1").click()
    for key, expected in (
        (Keys.ARROW_LEFT, 5),
        (Keys.HOME, 0),
        (Keys.ARROW_LEFT, 0),
        (Keys.ARROW_DOWN, extends[0]),
        (Keys.ARROW_DOWN, extends[1]),
        (Keys.ARROW_UP, extends[0]),
        (Keys.END, last),
        (Keys.ARROW_RIGHT, last),
    ):
        press(page, key)
        assert current(page) == expected
    for button, expected in (
        ("first", 0),
        ("forward", 1),
        ("extend", extends[1]),
        ("back", extends[1] - 1),
        ("last", last),
    ):
        page.find_element(By.ID, button).click()
        assert current(page) == expected
        assert slider.get_attribute("value") == str(expected)
    track = page.find_element(By.CSS_SELECTOR, "#timeline .track")
    webdriver.ActionChains(page).move_to_element_with_offset(track, 0, 0).click().perform()
    assert abs(current(page) - last / 2) <= 1


@pytest.mark.parametrize(("fragment", "opened_at"), [("7.5", 7), ("x", 1), ("99999", "last")])
def test_the_address_says_where_it_opens(
    browser: "Chrome", page_path: Path, fragment: str, opened_at: int | str
) -> None:
    browser.get("about:blank")
    browser.get(f"{page_path.as_uri()}#{fragment}")
    last = browser.execute_script("return player.replay.frames.length - 1")
    assert current(browser) == (last if opened_at == "last" else opened_at)


def test_play_advances_to_the_end_and_stops(page: "Chrome") -> None:
    """The page's timers are the test's, which lets one pass after another."""
    page.execute_script("""
        window.timers = [];
        window.setTimeout = (call, ms) => timers.push([call, ms]);
        window.clearTimeout = () => timers.splice(0);
        player.show(1);
        document.querySelector("#speed").value = "10";""")
    next_timer = "const [call, ms] = timers.shift(); call(); return [player.current, ms]"
    play = page.find_element(By.ID, "play")
    press(page, " ")
    assert play.get_attribute("aria-label") == "Pause"
    assert [page.execute_script(next_timer) for _ in range(2)] == [[2, 100], [3, 100]], "ten steps a second"
    press(page, " ")
    assert play.get_attribute("aria-label") == "Play"
    assert page.execute_script("return timers.length") == 0
    last = page.execute_script("return player.replay.frames.length - 1")
    page.execute_script(f"player.show({last - 1})")
    play.click()
    while page.execute_script("return timers.length"):
        assert page.execute_script(next_timer)[0] == last
    assert current(page) == last
    assert play.get_attribute("aria-label") == "Play"
    assert page.get_log("browser") == []


def test_nothing_is_fetched(page: "Chrome", page_path: Path) -> None:
    messages = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    fetched = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert fetched == [page_path.as_uri()]


def test_hostile_token_texts_are_shown_as_text(browser: "Chrome", tmp_path: Path) -> None:
    engine = make_engine(tokenizer=HostileTokenizer())
    with record(engine) as trace:
        serve(engine, range(65, 65 + len(HOSTILE)), max_new_tokens=2)
        serve(engine, [65, 66, 70], max_new_tokens=2)
    trace.requests[0].name = "<b>request</b>"
    trace.player(title="</title><script>alert(2)</script>").save(tmp_path / "hostile.html")
    browser.get((tmp_path / "hostile.html").as_uri())
    for step in range(1, len(trace) + 1):
        browser.execute_script(f"player.show({step})")
        got = drawn(browser)
        for i, req in trace.state(step).requests.items():
            assert got["texts"][str(i)] == HostileTokenizer().decode(req.tokens)
    assert browser.execute_script("return document.querySelectorAll('img').length") == 0
    assert browser.execute_script("return document.querySelectorAll('script').length") == 2
    assert "alert(2)" in browser.find_element(By.TAG_NAME, "h1").text
    assert browser.get_log("browser") == []


def test_the_page_fits_its_width(page: "Chrome") -> None:
    for width in (1180, 900, 390):
        with device(page, width, 800):
            overflows = page.execute_script("""
                return [3, 8, 12].map((step) => {
                  player.show(step);
                  return document.documentElement.scrollWidth - document.documentElement.clientWidth;
                });""")
            assert max(overflows) <= 0, width


@pytest.mark.parametrize(("files", "tier", "words"), [(False, "host", "host memory"), (True, "disk", "files")])
def test_every_part_of_the_page_says_where_tokens_came_from(
    files: bool, tier: str, words: str, browser: "Chrome", tmp_path: Path
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
    assert len(texts(f"#texts .card .cached.from-{tier}")[0]) == 32
    assert f"from {words}" in texts("#texts-title .cached")
    assert [entry for entry in browser.get_log("browser") if entry["level"] != "INFO"] == []


# --- keys after clicks ------------------------------------------------------------------------------------------------


@pytest.fixture
def example(browser: "Chrome", tmp_path: Path) -> "Chrome":
    Trace.load(ROOT / "data" / "trace" / "example.json").player().save(tmp_path / "example.html")
    browser.get((tmp_path / "example.html").as_uri())
    return browser


@pytest.fixture
def stopped_clock(example: "Chrome") -> "Chrome":
    """The example, playing which never gets to the next step."""
    browser = example
    browser.execute_script("window.setTimeout = () => 1; player.show(5)")
    return browser


def playing(page: "Chrome") -> bool:
    return page.find_element(By.ID, "play").get_attribute("aria-pressed") == "true"


CLICKED_AND_SHOWN = (
    *(("#first", 0), ("#back", 4), ("#forward", 6), ("#extend", 6)),
    *(("#rows .chip", 5), ("h1", 5)),
)


def test_after_a_click_space_plays_and_pauses(stopped_clock: "Chrome") -> None:
    page = stopped_clock
    for clicked, frame in CLICKED_AND_SHOWN:
        page.execute_script("document.activeElement.blur(); player.show(5)")
        page.find_element(By.CSS_SELECTOR, clicked).click()
        assert page.execute_script("return player.current") == frame, clicked
        for expected in (True, False):
            press(page, " ")
            assert playing(page) is expected, clicked
            assert page.execute_script("return player.current") == frame, clicked
    page.find_element(By.ID, "play").click()
    assert playing(page)
    press(page, " ")
    assert not playing(page)


def test_a_control_reached_by_the_keyboard_keeps_its_keys(stopped_clock: "Chrome") -> None:
    page = stopped_clock
    page.find_element(By.ID, "back").click()
    press(page, Keys.TAB)  # to Play
    press(page, " ")
    assert playing(page)
    press(page, " ")
    assert not playing(page)
    press(page, Keys.TAB)  # to One step on
    press(page, " ")
    assert page.execute_script("return player.current") == 5
    assert not playing(page)
    press(page, Keys.TAB, Keys.TAB, Keys.TAB)  # to the speed
    assert page.execute_script("return document.activeElement.id") == "speed"
    press(page, Keys.ARROW_DOWN)
    assert page.execute_script("return [player.current, document.activeElement.value]") == [5, "2"]


# --- what can be read and hit -----------------------------------------------------------------------------------------


@needs_axe
@pytest.mark.parametrize(("step", "screen", "dark"), [(7, PHONE, True), (34, LAPTOP, False)])
def test_axe_finds_nothing(example: "Chrome", step: int, screen: tuple[int, int], dark: bool) -> None:
    """Among these: a prompt of which a part is not computed yet, a retraction, requests that have ended."""
    with device(example, *screen, dark=dark, touch=screen == PHONE):
        example.execute_script(f"player.show({step})")
        assert axe_findings(example) == []

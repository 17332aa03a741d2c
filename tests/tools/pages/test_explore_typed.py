"""The page in which a regular expression is typed says what the course's machine says."""

import random
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from nanoinfer import LLM
from notebooks.course.explore.typed_pattern import EXAMPLES, token_texts, typed_pattern
from notebooks.course.expression_text import expression_text, said
from notebooks.course.regular_expression import Machine
from tests.notebooks.test_teaching_regular_expression import PATTERNS

pytest.importorskip("selenium", reason="selenium is not installed (pip install selenium)")
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.helpers.axe import axe_findings, needs_axe
from tests.helpers.chromium import LAPTOP, PHONE, device

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

pytestmark = pytest.mark.slow
WRONG = ("(a", "a)", "[a", "[]", "[b-a]", "a{2,1}", "a{x}", "a{101}", "*a", "^a", r"\q", "(?=a)", "[\\W]", "a\\")
MORE = (
    "",
    "a|",
    "(a|b)*a(a|b){7}",
    "[^\\n]*",
    ".*é+",
    r"\D\W\S",
    "a??",
    "((a|b)|(b|c))+",
    r"[\d\-x]{0,3}\.",
    "z|a|é|B",
)


@pytest.fixture(scope="module")
def page_path(story: LLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("typed") / "page.html"
    typed_pattern(story).save(path)
    return path


@pytest.fixture
def page(browser: "Chrome", page_path: Path) -> "Chrome":
    browser.get(page_path.as_uri())
    return browser


def numbered(pattern: str) -> Machine:
    """The machine with its states numbered from the start outward, as the page has them."""
    machine, state = Machine(pattern), 0
    while state < min(len(machine.states), 40):
        for char in [*sorted(machine.alphabet), "\uffff"]:
            machine.step(state, char)
        state += 1
    return machine


def followed(machine: Machine, text: str, tokens: list[str]) -> list[dict[str, Any]]:
    """What the page should say, from the course's machine."""
    named, lines, state = machine.alphabet, list[dict[str, Any]](), 0
    for char in ["", *text]:
        state = machine.step(state, char)
        if state == machine.DEAD:
            return [*lines, {"char": char, "state": state}]
        allowed = np.flatnonzero(machine.mask(state, tokens)).tolist()
        may = {each for each in named if machine.step(state, each) != machine.DEAD}
        others = machine.step(state, "\uffff") != machine.DEAD
        lines.append(
            {
                "char": char,
                "state": state,
                "rest": expression_text(machine.states[state]),
                "ends": machine.accepts(state),
                "next": said(named - may, negated=True) if others else said(may),
                "allowed": allowed,
            }
        )
    return lines


@pytest.mark.parametrize("pattern", [*PATTERNS, *MORE, *(each.pattern for each in EXAMPLES)])
def test_it_says_what_the_machine_says(page: "Chrome", story: LLM, pattern: str) -> None:
    rng, machine, tokens = random.Random(pattern), numbered(pattern), token_texts(story)
    signs = [*sorted(machine.alphabet)[:20], *'ab1-.,"y s']
    texts = ["".join(rng.choices(signs, k=rng.randrange(6))) for _ in range(4)]
    texts.append(walk(machine, rng, signs, 12))
    for text in texts:
        got = page.execute_script("return explorable.follow(arguments[0], arguments[1])", pattern, text)
        assert got == followed(numbered(pattern), text, tokens), text


def walk(machine: Machine, rng: random.Random, signs: list[str], most: int) -> str:
    """A text that is allowed, as far as the signs go."""
    text, state = "", 0
    for _ in range(most):
        may = [each for each in signs if machine.step(state, each) != machine.DEAD]
        if not may:
            break
        text += rng.choice(may)
        state = machine.step(state, text[-1])
    return text


@pytest.mark.parametrize("pattern", WRONG)
def test_what_cannot_be_read_is_said_with_its_place(page: "Chrome", pattern: str) -> None:
    with pytest.raises(ValueError, match="position") as error:
        Machine(pattern)
    reason = str(error.value).removeprefix(f"regular expression {pattern!r}, ")
    script = "try { parse(arguments[0]) } catch (error) { return error.message }"
    assert page.execute_script(script, pattern) == reason


@pytest.mark.parametrize("pattern", ["((((a{100}){100}){100}){100}", "(a|b)*a(a|b){60}", "(" * 60 + "a" + ")" * 60])
def test_what_is_too_large_stops_no_page(page: "Chrome", pattern: str) -> None:
    typed(page, "pattern", pattern)
    typed(page, "text", "abababab")
    assert page.execute_script("return document.querySelector('#sentence').textContent")


def typed(page: "Chrome", name: str, text: str) -> None:
    field = page.find_element(By.ID, name)
    field.clear()
    field.send_keys(text)


def test_what_is_typed_is_followed_by_keyboard_alone(page: "Chrome", story: LLM) -> None:
    page.refresh()
    shown = "return document.querySelector(arguments[0]).textContent"
    assert page.execute_script(shown, "#sentence").startswith("After “-12.”: state 3. The text may not end here yet.")
    page.switch_to.active_element.send_keys(Keys.TAB)
    assert page.switch_to.active_element.get_attribute("id") == "pattern"
    typed(page, "pattern", "(yes|no)")
    page.switch_to.active_element.send_keys(Keys.TAB)
    assert page.switch_to.active_element.get_attribute("id") == "text"
    typed(page, "text", "y")
    rows = page.execute_script("return [...document.querySelectorAll('.walk tbody tr')].map((row) => row.textContent)")
    allowed = np.flatnonzero(Machine("es").mask(0, token_texts(story)))
    assert rows[-1] == f"y{2}eseno{len(allowed)}"
    typed(page, "text", "yx")
    assert page.execute_script(shown, "#sentence") == "“x” is not allowed after “y”. No text leads back from there."
    typed(page, "pattern", "(yes")
    assert page.execute_script(shown, "#sentence") == "This expression cannot be read: position 4: a group has no end."
    assert page.find_element(By.ID, "pattern").get_attribute("aria-invalid") == "true"
    assert [entry for entry in page.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_hostile_texts_are_shown_as_text(page: "Chrome") -> None:
    typed(page, "pattern", ".*")
    typed(page, "text", "<img src=x onerror=alert(1)>")
    assert page.execute_script("return document.querySelectorAll('img').length") == 0


def test_the_page_fits_a_narrow_screen(page: "Chrome") -> None:
    with device(page, 320, 700, touch=True):
        page.refresh()
        overflow = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert page.execute_script(overflow) <= 0


@needs_axe
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("screen", [LAPTOP, PHONE], ids=str)
def test_axe_finds_nothing(page: "Chrome", screen: tuple[int, int], dark: bool) -> None:
    with device(page, *screen, dark=dark, touch=screen == PHONE):
        page.refresh()
        assert axe_findings(page) == []


def test_the_still_picture_is_of_the_first_example(story: LLM, tmp_path: Path) -> None:
    alt = typed_pattern(story).still().alt
    assert "The path of -12.: 0, 1, 2, 2, 3, must go on." in alt
    assert " 10 may come next: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9. " in alt


def test_a_model_without_a_tokenizer_is_refused() -> None:
    with pytest.raises(ValueError, match="must have a tokenizer"):
        typed_pattern(cast(LLM, SimpleNamespace(tokenizer=None)))

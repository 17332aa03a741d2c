"""The package's explorables: what they record is what the engine does, and what the page shows is what they recorded."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from nanoinfer import LLM, SamplingParams
from nanoinfer.explore import Bars, Cells, Explorable, Lines, Numbers
from nanoinfer.explore.padding import MIXES, decode_pass, lengths, padding
from nanoinfer.explore.roofline import ACCELERATORS, DECODE, EXTEND, Machine, roofline, seconds, work
from nanoinfer.explore.sampling import distributions, sampling
from nanoinfer.model.loader import LoadedModel
from nanoinfer.random_model import random_model
from nanoinfer.requests.request_builder import RequestBuilder
from nanoinfer.sampling.sampler import Sampler
from nanoinfer.sessions import InferenceEngine

pytest.importorskip("selenium", reason="selenium is not installed (pip install selenium)")
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

from tests.helpers.axe import axe_findings, needs_axe
from tests.helpers.chromium import chromium, device, needs_chromium
from tests.tools.test_player_layout import LAPTOP, PHONE

PROMPT = "Once upon a time, there was a little fox named Lily. One day she found a"
LARGEST = 200_000  # bytes of a page
TINY = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
TINY |= {"num_attention_heads": 4, "num_key_value_heads": 2}


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("story")


@pytest.fixture(scope="module")
def tiny() -> LoadedModel:
    return random_model(kernels="torch", **TINY)


@pytest.fixture(scope="module")
def explorables(llm: LLM, tiny: LoadedModel) -> dict[str, Explorable]:
    """The roofline's machine reads 10 GB/s and does 100 billion operations per second."""
    roof = roofline(tiny, bandwidth=10e9, flops=100e9, repeats=1)
    return {"sampling": sampling(llm, PROMPT), "padding": padding(llm), "roofline": roof}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    with chromium(tmp_path_factory.mktemp("chromium")) as driver:
        yield driver


@pytest.fixture(scope="module")
def pages(explorables: dict[str, Explorable], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Their addresses."""
    folder = tmp_path_factory.mktemp("pages")
    for name, explorable in explorables.items():
        explorable.save(folder / f"{name}.html")
        assert (folder / f"{name}.html").stat().st_size < LARGEST
    return {name: (folder / f"{name}.html").as_uri() for name in explorables}


def press(page: webdriver.Chrome, *keys: str) -> None:
    webdriver.ActionChains(page).send_keys(*keys).perform()


def compare(page: webdriver.Chrome, explorable: Explorable, chosen: tuple[int, ...]) -> None:
    """What the page shows is the recorded frame, to the last text, bar and cell."""
    frame = explorable.frames[chosen]
    got: dict[str, Any] = page.execute_script("""
        const parts = (box, selector) => [...box.querySelectorAll(selector)];
        const numbers = (element, ...names) => names.map((name) => Number(element.getAttribute(name)));
        const text = (element) => element.textContent;
        return {
          chosen: explorable.chosen,
          sentence: document.querySelector("#sentence").textContent,
          panels: [...document.querySelectorAll(".panel")].map((panel) => ({
            title: panel.querySelector("h2").textContent,
            bars: parts(panel, ".bar").map((bar) => [text(bar.querySelector(".label")), text(bar.querySelector(".text")),
              bar.classList.contains("off"), parseFloat(bar.querySelector(".value").style.width)]),
            rows: parts(panel, ".line").map((line) => parts(line, ".cell").map((cell) => cell.dataset.look)),
            numbers: parts(panel, ".numbers tr").map((row) => [text(row.children[0]), text(row.children[1])]),
            dots: parts(panel, ".dots").length,
            marks: parts(panel, ".mark").map((mark) => numbers(mark, "cx", "cy")),
            frame: parts(panel, ".frame").map((box) => numbers(box, "x", "y", "width", "height")),
          })),
        };""")
    assert got["chosen"] == list(chosen)
    assert got["sentence"] == frame.sentence
    assert [panel["title"] for panel in got["panels"]] == [panel.title for panel in frame.panels]
    for shown, panel in zip(got["panels"], frame.panels, strict=True):
        if isinstance(panel, Bars):
            assert [bar[:3] for bar in shown["bars"]] == [[bar.label, bar.text, bar.off] for bar in panel.bars]
            widths = [100 * bar.value / panel.most for bar in panel.bars]
            assert [bar[3] for bar in shown["bars"]] == pytest.approx(widths, abs=0.01)
        elif isinstance(panel, Cells):
            assert shown["rows"] == [[cell.look for cell in row.cells] for row in panel.rows]
        elif isinstance(panel, Numbers):
            assert shown["numbers"] == [[number.name, number.value] for number in panel.numbers]
        elif isinstance(panel, Lines):
            assert shown["dots"] == sum(len(series.points) for series in panel.series if series.dots)
            ((left, top, width, height),) = shown["frame"]
            (x0, x1), (y0, y1) = np.log(panel.x_range), np.log(panel.y_range)
            for (cx, cy), mark in zip(shown["marks"], panel.marks, strict=True):
                assert cx == pytest.approx(left + width * (np.log(mark.x) - x0) / (x1 - x0), abs=0.01)
                assert cy == pytest.approx(top + height * (y1 - np.log(mark.y)) / (y1 - y0), abs=0.01)


# --- in the browser ---------------------------------------------------------------------------------------------------


@needs_chromium
@pytest.mark.parametrize("name", ["sampling", "padding", "roofline"])
def test_the_keyboard_chooses_and_the_page_shows_what_was_recorded(
    browser: webdriver.Chrome, pages: dict[str, str], explorables: dict[str, Explorable], name: str
) -> None:
    explorable = explorables[name]
    browser.get_log("browser")
    browser.get(pages[name])
    chosen = [control.start for control in explorable.controls]
    compare(browser, explorable, tuple(chosen))
    for number, control in enumerate(explorable.controls):
        press(browser, *([Keys.TAB, Keys.TAB] if control.slider else [Keys.TAB]))
        active = browser.switch_to.active_element
        assert active.get_attribute("name") == control.name
        last = len(control.values) - 1
        for key, index in ((Keys.HOME, 0), (Keys.ARROW_RIGHT, 1), (Keys.END, last), (Keys.ARROW_LEFT, last - 1)):
            press(browser, key)
            chosen[number] = index
            compare(browser, explorable, tuple(chosen))
        if control.slider:
            press(browser, Keys.TAB)  # the button behind it
    assert browser.get_log("browser") == []


@needs_chromium
@pytest.mark.parametrize("name", ["sampling", "padding", "roofline"])
def test_the_pages_fit_a_narrow_screen(browser: webdriver.Chrome, pages: dict[str, str], name: str) -> None:
    with device(browser, 320, 700, touch=True):
        browser.get(pages[name])
        overflow = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert browser.execute_script(overflow) <= 0


@needs_axe
@needs_chromium
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("screen", [LAPTOP, PHONE], ids=str)
@pytest.mark.parametrize("name", ["sampling", "padding", "roofline"])
def test_axe_finds_nothing(
    browser: webdriver.Chrome, pages: dict[str, str], name: str, screen: tuple[int, int], dark: bool
) -> None:
    with device(browser, *screen, dark=dark, touch=screen == PHONE):
        browser.get(pages[name])
        assert axe_findings(browser) == []


@needs_chromium
def test_a_hostile_prompt_is_shown_as_text(browser: webdriver.Chrome, llm: LLM, tmp_path: Path) -> None:
    prompt = "</script><img src=x onerror=alert(1)> ${alert(2)}"
    sampling(llm, prompt, [1.0, 2.0], [0, 1], [1.0, 0.5]).save(tmp_path / "hostile.html")
    browser.get_log("browser")
    browser.get((tmp_path / "hostile.html").as_uri())
    assert prompt in browser.execute_script("return document.querySelector('header p').textContent")
    assert browser.execute_script("return document.querySelectorAll('img').length") == 0
    assert browser.get_log("browser") == []


# --- sampling ---------------------------------------------------------------------------------------------------------


def cut(logits: np.ndarray, temperature: float, top_k: int, top_p: float) -> np.ndarray:
    """The distribution, written a second way: the likeliest one by one, until there are enough."""
    weights = np.exp((logits - logits.max()) / temperature)
    order = np.argsort(-weights)[: top_k or None]
    shares = weights[order] / weights[order].sum()
    kept = order[: int(np.searchsorted(np.cumsum(shares), top_p) + 1)] if top_p < 1 else order
    result = np.zeros_like(weights)
    result[kept] = weights[kept] / weights[kept].sum()
    return result


@pytest.mark.parametrize("setting", [(0.3, 0, 1.0), (1.0, 4, 1.0), (1.0, 0, 0.7), (2.5, 8, 0.5), (1.5, 1, 0.9)])
def test_probabilities_are_those_with_which_the_sampler_draws(llm: LLM, setting: tuple[float, int, float]) -> None:
    temperature, top_k, top_p = setting
    engine = InferenceEngine(llm.model)
    logits, _ = engine.extend(engine.builder.prompt_ids(PROMPT), keep=False)
    _, after = distributions(logits, temperature, top_k, top_p)
    assert after.numpy() == pytest.approx(cut(logits[0].double().numpy(), temperature, top_k, top_p), abs=1e-5)

    draws, builder = 2000, RequestBuilder(llm.model.config.vocab_size, (), None)
    params = SamplingParams(temperature=temperature, top_k=top_k or -1, top_p=top_p)
    reqs = [builder.build(i, builder.prompt_ids([1]), params)[0] for i in range(draws)]
    drawn = Sampler().sample(logits.expand(draws, -1), reqs)
    counts = torch.bincount(drawn, minlength=len(after))
    assert bool((after[counts > 0] > 0).all())
    assert float((counts / draws - after).abs().max()) < 0.06


def test_bars_and_numbers_are_of_the_distribution(explorables: dict[str, Explorable], llm: LLM) -> None:
    explorable = explorables["sampling"]
    engine = InferenceEngine(llm.model)
    logits, _ = engine.extend(engine.builder.prompt_ids(PROMPT), keep=False)
    for chosen, frame in explorable.frames.items():
        values = [control.values[i] for control, i in zip(explorable.controls, chosen, strict=True)]
        _, after = distributions(logits, *values)
        bars, numbers = frame.panels
        assert isinstance(bars, Bars)
        assert isinstance(numbers, Numbers)
        assert sum(bar.value for bar in bars.bars) == pytest.approx(1, abs=1e-3)
        likeliest = after.sort(descending=True).values[:12].tolist()
        assert [bar.value for bar in bars.bars[:12]] == pytest.approx(likeliest, abs=1e-4)
        assert [bar.off for bar in bars.bars[:12]] == [share == 0 for share in likeliest]
        assert numbers.numbers[0].value == f"{int((after > 0).sum()):,} of 2,048"


def test_a_temperature_of_0_is_refused(llm: LLM) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        sampling(llm, PROMPT, temperatures=[0.0, 1.0])


# --- padding ----------------------------------------------------------------------------------------------------------


def test_the_cells_of_each_frame_are_the_bytes_of_the_account(explorables: dict[str, Explorable], llm: LLM) -> None:
    explorable, engine = explorables["padding"], InferenceEngine(llm.model)
    size = engine.kv_bytes_per_token
    token_ids = list(range(100, 200))
    for (i, mix), frame in explorable.frames.items():
        _, cost = decode_pass(engine, token_ids, lengths(mix, explorable.controls[0].values[i], 8))
        cells, bars, _ = frame.panels
        assert isinstance(cells, Cells)
        assert isinstance(bars, Bars)
        looks = [cell.look for row in cells.rows for cell in row.cells]
        assert looks.count("new") == cost.tokens_computed == 8
        assert looks.count("padding") * size == cost.decode_bytes_padding
        assert (len(looks) - looks.count("padding")) * size == cost.decode_bytes_used
        recorded = [bar.value for bar in bars.bars]
        assert recorded == [cost.decode_bytes_used, cost.decode_bytes_padding, cost.bytes_copied]


def test_the_mixes_are_what_they_are_called() -> None:
    assert len(MIXES) == 4
    assert lengths(0, 32, 4) == [32, 4, 4, 4]
    assert lengths(1, 32, 4) == [32, 32, 4, 4]
    assert lengths(2, 31, 4) == [31, 22, 13, 4]
    assert lengths(3, 32, 4) == [32, 32, 32, 32]


def test_a_session_longer_than_the_text_is_refused(llm: LLM) -> None:
    with pytest.raises(ValueError, match=r"longest=\(4, 9\): must be in 4\.\.\d, the tokens of text"):
        padding(llm, longest=(4, 9), text="The fox said")


# --- roofline ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("mode", [DECODE, EXTEND])
def test_the_operations_of_a_pass_are_those_that_torch_counts(tiny: LoadedModel, mode: str, tokens: int) -> None:
    """Of products with weights: attention is computed by other kernels, and counted here by its formula."""
    with FlopCounterMode(display=False) as counter:
        seconds(tiny, mode, tokens, repeats=1)
    products = sum(
        n for name, n in counter.get_flop_counts()["Global"].items() if "mm" in str(name) and "bmm" not in str(name)
    )
    pairs = tokens * 513 if mode == DECODE else tokens * (tokens + 1) // 2
    assert work(tiny, mode, tokens).flops == products / 2 + 4 * pairs * 32 * 2  # two passes were run


def test_the_limit_is_the_longer_of_the_two_times(explorables: dict[str, Explorable], tiny: LoadedModel) -> None:
    explorable = explorables["roofline"]
    machines = (Machine("this CPU", 10e9, 100e9, 4), *ACCELERATORS)
    seen = set()
    for (i, j), frame in explorable.frames.items():
        tokens, machine = explorable.controls[0].values[i], machines[j]
        chart, *tables = frame.panels
        assert isinstance(chart, Lines)
        for mode, table, mark in zip((DECODE, EXTEND), tables, chart.marks, strict=True):
            each = work(tiny, mode, tokens)
            memory, arithmetic = each.numbers * machine.item / machine.bandwidth, each.flops / machine.flops
            limit = "memory" if memory > arithmetic else "arithmetic"
            seen.add((j, limit))
            assert isinstance(table, Numbers)
            assert [number.strong for number in table.numbers[2:4]] == [limit == "memory", limit == "arithmetic"]
            assert limit in frame.sentence
            if j:
                assert mark.y * 1e9 == pytest.approx(each.flops / max(memory, arithmetic), rel=1e-2)
    assert {(0, "memory"), (0, "arithmetic"), (1, "memory")} <= seen


def test_the_points_of_this_machine_are_what_was_timed(explorables: dict[str, Explorable], tiny: LoadedModel) -> None:
    frames = explorables["roofline"].frames
    chart = frames[2, 0].panels[0]
    assert isinstance(chart, Lines)
    measured = {series.label.split()[0]: series.points for series in chart.series if series.dots}
    for mode, mark in zip((DECODE, EXTEND), chart.marks, strict=True):
        assert (mark.x, mark.y) == measured[mode][2]
        shown = next(panel for panel in frames[2, 0].panels if panel.title.startswith(mode))
        assert isinstance(shown, Numbers)
        value, unit = shown.numbers[-1].value.removesuffix(", measured").split()
        elapsed = float(value) * {"s": 1, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}[unit]
        assert work(tiny, mode, 4).flops / elapsed / 1e9 == pytest.approx(mark.y, rel=2e-2)


def test_tokens_beyond_the_context_are_refused(tiny: LoadedModel) -> None:
    with pytest.raises(ValueError, match=r"tokens=\(1, 2000\): must be in 1\.\.1024"):
        roofline(tiny, 1e9, 1e9, tokens=(1, 2000))

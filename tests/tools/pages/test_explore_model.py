"""What the explorables of sampling and roofline show is what the engine does."""

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from nanoinfer import LLM, SamplingParams
from nanoinfer.model.loader import LoadedModel
from nanoinfer.requests.request_builder import RequestBuilder
from nanoinfer.sampling.sampler import Sampler
from nanoinfer.sessions.inference import InferenceEngine
from notebooks.course.explore import Bars, Explorable, Lines, Numbers
from notebooks.course.explore.roofline import ACCELERATORS, DECODE, EXTEND, Machine, roofline, seconds, work
from notebooks.course.explore.sampling import distributions, sampling
from tests.tools.pages.conftest import PROMPT

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
def test_probabilities_are_those_with_which_the_sampler_draws(story: LLM, setting: tuple[float, int, float]) -> None:
    temperature, top_k, top_p = setting
    engine = InferenceEngine(story.model)
    logits, _ = engine.extend(engine.builder.prompt_ids(PROMPT), keep=False)
    _, after = distributions(logits, temperature, top_k, top_p)
    assert after.numpy() == pytest.approx(cut(logits[0].double().numpy(), temperature, top_k, top_p), abs=1e-5)

    draws, builder = 2000, RequestBuilder(story.model.config.vocab_size, (), None)
    params = SamplingParams(temperature=temperature, top_k=top_k or -1, top_p=top_p)
    reqs = [builder.build(i, builder.prompt_ids([1]), params)[0] for i in range(draws)]
    drawn = Sampler().sample(logits.expand(draws, -1), reqs)
    counts = torch.bincount(drawn, minlength=len(after))
    assert bool((after[counts > 0] > 0).all())
    assert float((counts / draws - after).abs().max()) < 0.06


def test_bars_and_numbers_are_of_the_distribution(explorables: dict[str, Explorable], story: LLM) -> None:
    explorable = explorables["sampling"]
    engine = InferenceEngine(story.model)
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


def test_a_temperature_of_0_is_refused(story: LLM) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        sampling(story, PROMPT, temperatures=[0.0, 1.0])


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


def test_two_times_that_are_nearly_equal_are_called_so(tiny: LoadedModel) -> None:
    ridge = work(tiny, DECODE, 4).flops / work(tiny, DECODE, 4).numbers / 4
    for share, said in ((1.1, "waits about as long for memory"), (1.3, "waits for memory")):
        frame = roofline(tiny, bandwidth=1e9, flops=1e9 * ridge * share, tokens=(1, 4), repeats=1).frames[1, 0]
        assert f"and {said}" in frame.sentence or f"both {said.replace('waits', 'wait')}" in frame.sentence


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

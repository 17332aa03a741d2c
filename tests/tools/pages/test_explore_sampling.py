"""What the explorable of sampling shows is what the engine does."""

import numpy as np
import pytest
import torch

from nanoinfer import LLM, SamplingParams
from nanoinfer.requests.request_builder import RequestBuilder
from nanoinfer.sampling.sampler import Sampler
from nanoinfer.sessions.inference import InferenceEngine
from notebooks.course.explore import Bars, Numbers
from notebooks.course.explore.sampling import distributions
from tests.tools.pages.conftest import PROMPT, Recorded, sampled


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


def test_bars_and_numbers_are_of_the_distribution(recorded: Recorded, story: LLM) -> None:
    explorable = recorded(sampled)
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

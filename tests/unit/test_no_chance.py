"""In the quick and the slow tests nothing is left to chance."""

import numpy as np

from nanoinfer import LLM, SamplingParams


def test_whoever_takes_random_seeds_from_the_system_gets_the_same_ones_in_every_run() -> None:
    assert np.random.default_rng().integers(1000, size=3).tolist() == [790, 569, 696]


def test_so_does_a_request_without_a_seed_whatever_ran_before(story: LLM) -> None:
    (req,) = story.engine.builder.build(0, np.array([1]), SamplingParams())
    assert req.seed == 2985523353795339555

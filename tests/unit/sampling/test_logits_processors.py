"""A request's own logits processors: functions from outside that change what its token is chosen by."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from nanoinfer import SamplingParams
from tests.helpers.engines import V, assert_all_free, finish, make_engine, step


def only(*token_ids: int) -> torch.Tensor:
    """Logits by which only these tokens can be chosen."""
    logits = torch.full((V,), -math.inf)
    logits[list(token_ids)] = 0.0
    return logits


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_processor_decides_greedy_and_sampled_choice_alike_and_for_its_request_only(temperature: float) -> None:
    engine = make_engine()
    params = SamplingParams(
        max_new_tokens=3, temperature=temperature, seed=0, logits_processors=[lambda ids, logits: only(100)]
    )
    changed = engine.add_request([5], params)
    other = engine.add_request([5], SamplingParams(max_new_tokens=3, temperature=0))
    last = finish(engine)
    assert last[changed].token_ids == [100, 100, 100]
    assert last[other].token_ids == [6, 7, 8]
    assert_all_free(engine)


def test_it_sees_prompt_and_output_so_far_and_the_logits_that_the_parameters_leave() -> None:
    seen: list[list[int]] = []
    biased: list[float] = []

    def watch(token_ids: np.ndarray, logits: torch.Tensor) -> torch.Tensor:
        seen.append(token_ids.tolist())
        biased.append(float(logits[99]))
        return logits

    engine = make_engine()
    params = SamplingParams(max_new_tokens=3, temperature=0, logit_bias={99: 1.5}, logits_processors=(watch,))
    rid = engine.add_request([5, 6], params)
    assert finish(engine)[rid].token_ids == [7, 8, 9]
    assert seen == [[5, 6], [5, 6, 7], [5, 6, 7, 8]]
    assert biased == [1.5, 1.5, 1.5]


def test_several_are_called_in_turn_each_with_what_the_one_before_returned() -> None:
    engine = make_engine()
    processors = [lambda ids, logits: only(40, 41), lambda ids, logits: logits + torch.arange(V)]
    rid = engine.add_request([5], SamplingParams(max_new_tokens=2, temperature=0, logits_processors=processors))
    assert finish(engine)[rid].token_ids == [41, 41]


def test_what_it_does_to_its_arguments_has_no_effect() -> None:
    """Token ids and logits are copies: the request's tokens stay, and only what is returned counts."""

    def scribble(token_ids: np.ndarray, logits: torch.Tensor) -> torch.Tensor:
        kept = logits.clone()
        token_ids[:] = 0
        logits.zero_()
        return kept

    engine = make_engine()
    params = SamplingParams(max_new_tokens=3, temperature=0, logits_processors=[scribble])
    rid = engine.add_request([5, 6], params)
    output = finish(engine)[rid]
    assert (output.prompt_token_ids, output.token_ids) == ([5, 6], [7, 8, 9])


NO_CHOICE: dict[str, object] = {
    "too short": torch.zeros(V - 1),
    "two dimensions": torch.zeros(1, V),
    "a list": [0.0] * V,
    "nothing": None,
    "none allowed": torch.full((V,), -math.inf),
    "NaN": torch.full((V,), math.nan),
    "infinity": torch.full((V,), math.inf),
    "beyond float32": torch.full((V,), 1e300, dtype=torch.float64),
    "below float32": torch.full((V,), -1e300, dtype=torch.float64),
    "integers": torch.zeros(V, dtype=torch.int64),
    "complex": torch.zeros(V, dtype=torch.complex64),
    "sparse": torch.zeros(V).to_sparse(),
    "meta": torch.zeros(V, device="meta"),
}


@pytest.mark.parametrize("returned", NO_CHOICE)
@pytest.mark.parametrize("choice", [{"temperature": 1.0, "seed": 1}, {"temperature": 0}], ids=str)
def test_what_is_no_choice_fails_its_pass_and_names_the_request(returned: str, choice: dict[str, Any]) -> None:
    engine = make_engine(rows=1)
    processors = [lambda ids, logits: NO_CHOICE[returned]]
    rid = engine.add_request([5], SamplingParams(max_new_tokens=2, logits_processors=processors, **choice))
    waiting = engine.add_request([50], SamplingParams(max_new_tokens=2, temperature=0))
    with pytest.raises(RuntimeError, match=rf"request {rid}: logits_processors: "):
        step(engine)
    last = finish(engine)
    assert last[rid].finish_reason == "abort"
    assert last[waiting].token_ids == [51, 52]
    assert_all_free(engine)


def test_an_error_of_a_processor_names_its_request() -> None:
    engine = make_engine()
    rid = engine.add_request([5], SamplingParams(max_new_tokens=2, logits_processors=[lambda ids, logits: 1 // 0]))
    with pytest.raises(ZeroDivisionError) as raised:
        engine.step()
    assert raised.value.__notes__ == [f"raised by a logits processor of request {rid}"]


def test_a_processor_cannot_make_a_request_stop_before_min_new_tokens() -> None:
    def only(*tokens: int) -> Callable[[Any, torch.Tensor], torch.Tensor]:
        def processor(ids: Any, logits: torch.Tensor) -> torch.Tensor:
            kept = torch.full_like(logits, -math.inf)
            kept[list(tokens)] = torch.arange(len(tokens), 0, -1.0)
            return kept

        return processor

    engine = make_engine(eos=[7])
    fields: dict[str, Any] = {"max_new_tokens": 5, "min_new_tokens": 3, "temperature": 0}
    rid = engine.add_request([5], SamplingParams(logits_processors=[only(7, 9)], **fields))
    assert finish(engine)[rid].token_ids == [9, 9, 9, 7]
    engine.add_request([5], SamplingParams(logits_processors=[only(7)], **fields))
    with pytest.raises(RuntimeError, match="must allow a token that does not stop before min_new_tokens"):
        engine.step()

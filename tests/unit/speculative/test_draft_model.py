"""DraftModel: logits that are no numbers cost drafts and nothing else, and prompts are computed in chunks."""

from pathlib import Path
from typing import Any

import pytest
import torch

from nanoinfer import LLM, RequestOutput, SamplingParams
from nanoinfer.model.forward_batch import ForwardBatch, ForwardMode
from nanoinfer.model.layers.logits_processor import LogitsOutput
from nanoinfer.model.loader import LoadedModel, load_model
from nanoinfer.model.model_runner import ModelRunner
from tests.helpers.engines import assert_all_free, step
from tests.helpers.tiny_llm import make_llm_model, tiny_llm

POISON = 7  # from this token on, the draft model's logits are no numbers
HEALTHY, POISONED = [1, 2, 3], [1, POISON, 3]
PARAMS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "drawn": {"seed": 3},
    "of some tokens": {"seed": 3, "top_k": 5},
    "with penalties": {"seed": 3, "repetition_penalty": 1.1},
    "greedy with a bias": {"temperature": 0, "logit_bias": {4: 0.5}},
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    make_llm_model(path)
    return path


def poisoned(path: Path, value: float, kernels: str, token: int) -> LoadedModel:
    """The model itself, but for the embedding of one token."""
    model = load_model(path, torch.float32, kernels=kernels)
    with torch.no_grad():
        model.model.get_submodule("model.embed_tokens").weight[token] = value  # type: ignore[operator]
    return model


def with_drafts(
    path: Path, value: float = torch.nan, kernels: str = "auto", token: int = POISON, **options: Any
) -> LLM:
    options = {"drafter": "model", "num_draft_tokens": 4, "adaptive_drafts": False, **options}
    model = load_model(path, torch.float32, kernels=kernels)
    return tiny_llm(
        model, poisoned(path, value, kernels, token), max_running_requests=8, max_total_tokens=1024, **options
    )


def draft_runner(llm: LLM) -> ModelRunner:
    runner: ModelRunner = llm.engine.scheduler.drafters[0]._runner  # type: ignore[attr-defined]
    return runner


def serve(llm: LLM, prompts: list[list[int]], **fields: Any) -> list[RequestOutput]:
    """All at once; nothing may be left of them afterwards."""
    for prompt in prompts:
        llm.engine.add_request(prompt, SamplingParams(**{"max_new_tokens": 12, **fields}))
    last: dict[int, RequestOutput] = {}
    while llm.engine.has_unfinished():
        last |= step(llm.engine)
    assert_all_free(llm.engine)
    return [last[request_id] for request_id in sorted(last)]


def contents(outputs: list[RequestOutput]) -> list[Any]:
    return [(output.token_ids, output.finish_reason, output.error) for output in outputs]


# --- NaN and infinity ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kernels", "value"), [("auto", torch.nan), ("torch", torch.inf)])
@pytest.mark.parametrize("name", PARAMS)
def test_a_request_whose_drafts_cannot_be_chosen_has_none_and_goes_on(
    path: Path, name: str, kernels: str, value: float
) -> None:
    params, prompts = PARAMS[name], [HEALTHY, POISONED, [2, 3, 4]]
    plain = tiny_llm(load_model(path, torch.float32, kernels=kernels), max_running_requests=8)
    wanted = serve(plain, prompts, **params)
    found = serve(with_drafts(path, value, kernels), prompts, **params)
    assert contents(found) == contents(wanted)
    assert not any(output.error for output in found)
    assert found[1].drafted_tokens == 0
    assert found[0].accepted_tokens > 0
    assert found[2].accepted_tokens > 0


@pytest.mark.cpu
@pytest.mark.parametrize("name", ["greedy", "drawn"])
@pytest.mark.parametrize("capture", ["auto", False])
def test_drafts_end_where_the_logits_end_to_be_numbers(
    path: Path, name: str, capture: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The draft model predicts everything right until it has read the token that it cannot read: the third draft."""
    params = PARAMS[name]
    plain = tiny_llm(load_model(path, torch.float32), max_running_requests=8)
    prompts = [[first, second] for first in range(8, 20) for second in (1, 2)]
    outputs = zip(prompts, serve(plain, prompts, **params), strict=True)
    fit = ((p, output) for p, output in outputs if output.token_ids[3] not in [*p, *output.token_ids[:3]])
    prompt, wanted = next(fit)
    llm, chosen = with_drafts(path, token=wanted.token_ids[3], capture=capture), []
    captured = draft_runner(llm).captured
    if captured is not None:
        run_multi_step = captured.run_multi_step
        monkeypatch.setattr(
            captured, "run_multi_step", lambda *args: chosen.append(run_multi_step(*args)) or chosen[-1]
        )
    for _ in range(2):  # the first time, nothing is captured yet
        (output,) = serve(llm, [prompt], **params)
        assert contents([output]) == contents([wanted])
        assert output.drafted_tokens == output.accepted_tokens == 3
    if captured is not None and not captured.reason:
        assert any((tokens == -1).any() for tokens in chosen if tokens is not None), "passes did not run ahead"


def test_a_request_whose_drafts_have_ended_writes_nothing_while_others_run_multi_step(path: Path) -> None:
    """In the passes of the others it is padding. If it were not, it would write to slots that it shares with them."""
    shared, fields = [9, 10, 11, 12], {"temperature": 0, "max_new_tokens": 30}
    prompts = [[*shared, last] for last in range(13, 32)]
    plain = tiny_llm(load_model(path, torch.float32), max_running_requests=8)
    texts = [output.token_ids for output in serve(plain, prompts, **fields)]
    pairs = [(i, j) for i in range(len(prompts)) for j in range(len(prompts)) if i != j]
    i, j = next((i, j) for i, j in pairs if texts[i][3] not in [*prompts[i], *texts[i][:3], *prompts[j], *texts[j]])
    llm = with_drafts(path, token=texts[i][3], num_draft_tokens=8)
    for _ in range(2):  # the first time, nothing is captured yet
        llm.generate(shared, SamplingParams(max_new_tokens=1), use_tqdm=False)
        ending, other = serve(llm, [prompts[i], prompts[j]], **fields)
        assert (ending.outputs[0].cached_tokens, other.outputs[0].cached_tokens) == (len(shared), len(shared))
        assert (ending.token_ids, other.token_ids) == (texts[i], texts[j])
        assert ending.drafted_tokens == ending.accepted_tokens == 3
        assert other.drafted_tokens - other.accepted_tokens < 8, "only drafts behind the end are not accepted"


# --- catching up on prompts ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("chunk_size", "page_size"), [(None, 1), (16, 1), (5, 1), (24, 8), (100, 4)])
def test_prompts_are_caught_up_on_in_passes_of_at_most_a_chunk(
    path: Path, chunk_size: int | None, page_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The draft model is the model itself: if its K/V is right, its drafts are."""
    prompts = [[*range(8, 32)] * 3, [*range(10, 30)], [*range(9, 31)] * 2, [1, 2]]
    llm = with_drafts(path, chunked_prefill_size=chunk_size, page_size=page_size)
    runner, sizes = draft_runner(llm), list[tuple[ForwardMode, int]]()
    forward_batch = runner.forward_batch

    def watched(batch: ForwardBatch) -> LogitsOutput:
        sizes.append((batch.forward_mode, len(batch.input_ids)))
        return forward_batch(batch)

    monkeypatch.setattr(runner, "forward_batch", watched)
    plain = tiny_llm(load_model(path, torch.float32), max_running_requests=8, max_total_tokens=1024)
    outputs = serve(llm, prompts, temperature=0)
    assert contents(outputs) == contents(serve(plain, prompts, temperature=0))
    extends = [size for mode, size in sizes if mode is ForwardMode.EXTEND]
    assert sum(size for _, size in sizes) >= sum(map(len, prompts))
    assert max(extends) > 64 if chunk_size is None else max(extends) <= chunk_size
    assert chunk_size is None or max(size for _, size in sizes) <= chunk_size
    for output in outputs:
        if POISON not in output.token_ids[:-1]:
            assert output.drafted_tokens - output.accepted_tokens < 4, "only drafts behind the end are not accepted"
            assert output.accepted_tokens >= 8

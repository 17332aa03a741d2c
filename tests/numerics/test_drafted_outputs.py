"""Drafts with a model: whoever drafts, in any pool, what is returned is the same as without; and as many drafts are right
as transformers or the model itself says."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nanoinfer import LLM, RequestOutput, SamplingParams
from nanoinfer.model.forward_batch import ForwardMode
from nanoinfer.model.loader import LoadedModel
from nanoinfer.registry import DRAFTERS
from tests.helpers.checkpoints import greedy
from tests.helpers.drafts import (
    STEM,
    WITH_TEXT,
    Asked,
    OracleDrafter,
    check_same,
    contents,
    noisy,
    serve,
)
from tests.helpers.engines import assert_all_free, step
from tests.helpers.oracles import VOCAB, make_draft_model
from tests.helpers.tiny_llm import make_llm_model, tiny_llm

TIGHT = {"max_total_tokens": 64, "schedule_conservativeness": 0.001}
ALL = ("ngram", "tree", "model")
CASES: dict[str, dict[str, Any]] = {
    "ngram, one draft": {"drafter": "ngram", "num_draft_tokens": 1},
    "ngram and tree, tight, pages, chunks": {
        **TIGHT,
        "drafter": ["ngram", "tree"],
        "num_draft_tokens": 3,
        "page_size": 4,
        "chunked_prefill_size": 8,
    },
    "tree, pages of 4": {"drafter": "tree", "num_draft_tokens": 7, "page_size": 4},
    "a model, tight, chunks": {**TIGHT, "drafter": "model", "num_draft_tokens": 3, "chunked_prefill_size": 6},
    "a model, pages of 4": {"drafter": "model", "num_draft_tokens": 7, "page_size": 4},
    "all, no cache": {**TIGHT, "drafter": ("tree", "model"), "num_draft_tokens": 7, "disable_radix_cache": True},
    "all, adaptive": {"drafter": ALL, "num_draft_tokens": 7, "adaptive_drafts": True},
    "all, adaptive, tight, pages": {**TIGHT, "drafter": ALL, "page_size": 4, "adaptive_drafts": True},
    "oracle": {"drafter": "oracle", "num_draft_tokens": 7},
    "oracle, tight, not captured": {**TIGHT, "drafter": "oracle", "page_size": 4, "capture": False},
    "oracle, plain torch": {"drafter": "oracle", "num_draft_tokens": 3, "attention_backend": "torch_native"},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return make_llm_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def draft_models(model: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> list[LoadedModel]:
    """One that is always right where sampling is, and one that is hardly ever right."""
    return [model, make_draft_model(tmp_path_factory.mktemp("draft"))]


@pytest.fixture(scope="module")
def alone(model: LoadedModel) -> tuple[list[RequestOutput], OracleDrafter]:
    """Each request by itself, without drafts and without a cache; and a drafter that has learned what they get."""
    llm = tiny_llm(model, max_running_requests=3, disable_radix_cache=True, random_seed=0)
    outputs, drafter = [], OracleDrafter(VOCAB)
    for prompt, fields in WITH_TEXT:
        request_id = llm.engine.add_request(prompt, SamplingParams(**{"max_new_tokens": 16, **fields}))
        reqs = llm.engine.open_requests.groups[request_id].reqs
        while llm.engine.has_unfinished():
            last = step(llm.engine)
        outputs.append(last[request_id])
        drafter.remember(reqs)
    return outputs, drafter


@pytest.mark.parametrize("case", CASES)
def test_what_is_returned_is_the_same_with_any_drafter_in_any_pool(
    model: LoadedModel,
    draft_models: list[LoadedModel],
    alone: tuple[list[RequestOutput], OracleDrafter],
    case: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain, oracle = alone
    rng = np.random.default_rng(0)
    oracle.plan = lambda req, most: (int(rng.integers(0, most + 1)), int(rng.integers(0, most + 2)))
    monkeypatch.setitem(DRAFTERS, "oracle", lambda _: oracle)
    options = {"adaptive_drafts": False, "max_running_requests": 8, "random_seed": 0, **CASES[case]}
    for draft_model in draft_models if "model" in options["drafter"] else [None]:
        llm = tiny_llm(model, draft_model, **options)
        outputs = serve(llm, WITH_TEXT)
        if draft_model is not draft_models[1]:
            outputs += serve(llm, WITH_TEXT)  # the second time, the tree knows everything
        check_same(llm, outputs, [*plain, *plain][: len(outputs)])
        stats = llm.engine.stats()
        if not options["adaptive_drafts"]:
            assert stats.drafted_tokens > 0
            if draft_model is not draft_models[1]:
                assert stats.accepted_tokens > 0
        assert bool(stats.retractions) == ("max_total_tokens" in options)
        assert stats.accepted_tokens == sum(output.accepted_tokens for output in outputs)
        assert stats.drafted_tokens == sum(output.drafted_tokens for output in outputs)
        assert_all_free(llm.engine)
    assert {end[2] for end in contents(plain)} == {"stop", "length"}


# --- the bundled model: text, grammars, its draft model ------------------------------------------------------------


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["cat", "dog"]},
        "old": {"type": "integer"},
    },
    "required": ["name", "kind", "old"],
    "additionalProperties": False,
}
STORIES: Asked = [
    ("Once upon a time", {"temperature": 0, "max_new_tokens": 40}),
    ("A cat and a dog", {"seed": 1, "top_p": 0.9, "logprobs": 1, "max_new_tokens": 40}),
    ("A user:", {"temperature": 0, "json_schema": SCHEMA, "max_new_tokens": 60, "logprobs": 0}),
    ("A user:", {"seed": 2, "json_schema": SCHEMA, "max_new_tokens": 60, "n": 2}),
    ("The fox said", {"seed": 3, "regex": r' "(I am|You are) (a|the) [a-z]{3,5}\."', "stop": ["a"]}),
    ("They saw a", {"temperature": 0, "choice": [" cat", " catch of fish", " dog"]}),
    ("They saw a", {"seed": 5, "temperature": 2.0, "choice": [" cat", " catch of fish"], "max_new_tokens": 2}),
    ("One day", {"seed": 6, "regex": r"( once| twice)+", "max_new_tokens": 12, "repetition_penalty": 1.2}),
]


@pytest.fixture(scope="module")
def stories() -> list[RequestOutput]:
    return serve(LLM("story", max_total_tokens=2048, max_running_requests=8), STORIES)


@pytest.mark.parametrize(
    ("drafter", "kernels"),
    [("grammar", "auto"), (("grammar", "model"), "auto"), ("model", "auto"), (("grammar", "model"), "torch")],
)
def test_grammars_and_stories_are_the_same_with_drafts(
    stories: list[RequestOutput], drafter: Any, kernels: str
) -> None:
    options: dict[str, Any] = {"max_total_tokens": 2048, "max_running_requests": 8, "page_size": 4, "kernels": kernels}
    plain = stories if kernels == "auto" else serve(LLM("story", **options), STORIES)
    llm = LLM("story", drafter=drafter, num_draft_tokens=5, adaptive_drafts=False, **options)
    outputs = serve(llm, STORIES)
    check_same(llm, outputs, plain)
    assert not any(output.error for output in outputs)
    if drafter == "grammar":
        free, forced = outputs[:2], outputs[2:]
        assert not any(output.drafted_tokens for output in free)
        assert sum(output.accepted_tokens for output in forced) > 20
        without_text_ends = [output for i, output in enumerate(outputs) if "stop" not in STORIES[i][1]]
        assert all(output.accepted_tokens == output.drafted_tokens for output in without_text_ends), (
            "no choice was left"
        )
    else:
        assert outputs[0].accepted_tokens > 10
    assert_all_free(llm.engine)


Checkpoint = Callable[..., Path]


def accepted_of(drafts: Sequence[int], coming: Sequence[int]) -> int:
    """How many of `drafts` are right, up to the first that is not."""
    count = 0
    while count < min(len(drafts), len(coming)) and drafts[count] == coming[count]:
        count += 1
    return count


def passes_of(llm: LLM, prompt: list[int], num_tokens: int) -> tuple[list[int], list[tuple[int, int, int]]]:
    """Serve one request alone: its tokens; per pass behind the prompt's: tokens before it, drafted, accepted."""
    request_id = llm.engine.add_request(
        prompt, SamplingParams(max_new_tokens=num_tokens, temperature=0, ignore_eos=True)
    )
    (req,) = llm.engine.open_requests.groups[request_id].reqs
    passes = []
    while llm.engine.has_unfinished():
        before = req.num_output_tokens, req.drafted_tokens, req.accepted_tokens
        step(llm.engine)
        if before[0]:
            assert req.num_output_tokens - before[0] == req.accepted_tokens - before[2] + 1
            assert (llm.engine.last_batch.forward_mode is ForwardMode.VERIFY) == (req.drafted_tokens > before[1])  # type: ignore[union-attr]
            passes.append((before[0], req.drafted_tokens - before[1], req.accepted_tokens - before[2]))
    return req.output_ids, passes


def check_drafts(
    llm: LLM, prompt: list[int], num_tokens: int, drafts_for: Callable[[list[int], int], list[int]]
) -> list[int]:
    """In each pass, the drafts are as many, and as many of them are right, as of `drafts_for` the text so far. Returns the
    tokens."""
    tokens, passes = passes_of(llm, prompt, num_tokens)
    place = 1
    for before, drafted, accepted in passes:
        assert before == place
        drafts = drafts_for(prompt + tokens[:before], min(llm.config.num_draft_tokens, num_tokens - before - 1))
        assert (drafted, accepted) == (len(drafts), accepted_of(drafts, tokens[before:]))
        place += accepted + 1
    assert place == num_tokens
    return tokens


@pytest.mark.parametrize("num_draft_tokens", [1, 3, 7])
def test_a_draft_model_is_right_as_often_as_transformers_says(
    checkpoint: Checkpoint, oracle: Any, tmp_path: Path, num_draft_tokens: int
) -> None:
    path = checkpoint()
    draft = noisy(path, tmp_path / "draft")
    # In so few slots, each request gets some that hold the draft model's K/V of another.
    common: dict[str, Any] = {"max_total_tokens": 48, "num_draft_tokens": num_draft_tokens}
    llm = LLM(path, drafter="model", draft_model=draft, adaptive_drafts=False, **common)
    for prompt in ([5, 9, 200, 31, 7], list(range(100, 123)), [5, 9, 200, 31, 8]):
        tokens = check_drafts(llm, prompt, 20, lambda text, limit: greedy(oracle(draft), text, limit) if limit else [])
        assert tokens == greedy(oracle(path), prompt, 20)
    assert 0 < llm.engine.stats().accepted_tokens < llm.engine.stats().drafted_tokens


def test_a_model_that_is_its_own_draft_is_always_right_greedy_or_drawn(checkpoint: Checkpoint) -> None:
    llm = LLM(checkpoint(), drafter="model", draft_model=checkpoint(), adaptive_drafts=False, max_total_tokens=512)
    params = [
        SamplingParams(max_new_tokens=21, ignore_eos=True, temperature=0),
        SamplingParams(max_new_tokens=21, ignore_eos=True, seed=1, top_p=0.9, n=2),
        SamplingParams(max_new_tokens=21, ignore_eos=True, seed=2, frequency_penalty=0.5, logit_bias={7: 3.0}),
    ]
    for _ in range(2):  # the second time, the large model's K/V of the prompts is in the tree, and the small one's too
        for output in llm.generate([STEM, STEM[:9], STEM[3:]], params, use_tqdm=False):
            for each in output.outputs:
                assert (each.drafted_tokens, each.accepted_tokens) == (15, 15), "1 + 5 passes of 3 drafts and a token"

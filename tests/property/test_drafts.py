"""Drafts with a model: whatever is asked for, whoever drafts, in any pool, what is returned is the same as without."""

import asyncio
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from nanoinfer import LLM, AsyncEngine, RequestOutput, SamplingParams
from nanoinfer.kernels.cpp import CppKernels
from nanoinfer.model.input_metadata import ForwardMode
from nanoinfer.model.loader import LoadedModel, load_model
from nanoinfer.registry import DRAFTERS
from nanoinfer.requests.req import Req
from tests.helpers.adapters import save_adapter
from tests.helpers.checkpoints import FAMILIES, greedy
from tests.helpers.engines import assert_all_free, step
from tests.helpers.foreknowing import Foreknowing
from tests.helpers.pressure import VOCAB, make_draft_model
from tests.helpers.tiny_llm import make_llm_model, tiny_llm, words

Checkpoint = Callable[..., Path]
Asked = list[tuple[Any, dict[str, Any]]]  # prompts, and SamplingParams of each; "adapter" among them goes to the engine

STEM = np.random.default_rng(1).integers(0, VOCAB, 30).tolist()
ASKED: Asked = [
    (STEM[:12], {"temperature": 0}),
    ([*STEM[:12], 3], {"temperature": 0, "logprobs": 2, "prompt_logprobs": True, "max_new_tokens": 30}),
    (STEM[:20], {"seed": 1, "n": 3, "logprobs": 0}),
    (STEM[3:9], {"seed": 2, "top_k": 5, "top_p": 0.9, "repetition_penalty": 1.3}),
    (STEM[:16], {"seed": 3, "frequency_penalty": 0.5, "presence_penalty": 0.3, "min_p": 0.01, "logprobs": 3}),
    ([7], {"temperature": 0, "stop_token_ids": list(range(0, VOCAB, 3)), "min_new_tokens": 9}),
    ([7, 7, 7, 7], {"temperature": 0.2, "seed": 9, "logit_bias": {4: -100.0, 5: 2.0}, "max_new_tokens": 30}),
    ([9, 9], {"seed": 6, "temperature": 3.0, "max_new_tokens": 1}),
]
WITH_TEXT: Asked = [
    *ASKED,
    (STEM[5:25], {"seed": 4, "stop": ["w1", "w2 w", "w9"]}),
    (STEM[:30], {"seed": 5, "stop": ["w30"], "include_stop_str_in_output": True, "min_new_tokens": 2}),
    (STEM[:8], {"temperature": 0, "stop": ["w7 w", "w3 w3", "w11"], "max_new_tokens": 30}),
]


def serve(llm: LLM, asked: Asked) -> list[RequestOutput]:
    """The requests arrive one after another while others run; slots are checked after every step."""
    engine, last = llm.engine, dict[int, RequestOutput]()
    for prompt, fields in asked:
        fields = {"max_new_tokens": 16, **fields}
        adapter = fields.pop("adapter", None)
        engine.add_request(prompt, SamplingParams(**fields), adapter=adapter)
        last |= step(engine)
    while engine.has_unfinished():
        last |= step(engine)
    return [last[request_id] for request_id in sorted(last)]


def told(outputs: Sequence[RequestOutput]) -> list[Any]:
    """Everything about them that does not depend on when they were computed, but for the log-probabilities' values."""
    return [
        (each.token_ids, each.text, each.finish_reason, each.stop_reason, [*map(list, each.logprobs or [])])
        for output in outputs
        for each in output.outputs
    ]


def values(outputs: Sequence[RequestOutput]) -> list[float]:
    entries = [entry for output in outputs for each in output.outputs for entry in each.logprobs or []]
    of_prompts = [value for output in outputs for value in output.prompt_logprobs or [] if value is not None]
    return [value for entry in entries for value in entry.values()] + of_prompts


def check_same(llm: LLM, outputs: Sequence[RequestOutput], plain: Sequence[RequestOutput]) -> None:
    assert told(outputs) == told(plain)
    stats = llm.engine.stats()
    if stats.kernels == stats.attention_backend == "cpp":  # whose sums do not depend on the batch
        assert values(outputs) == values(plain)
    else:
        assert values(outputs) == pytest.approx(values(plain), abs=1e-4)


def noisy(path: Path, target: Path, scale: float = 0.08) -> Path:
    """A copy of a checkpoint whose weights are a little different: a draft model that is right often, but not always."""
    shutil.copytree(path, target)
    generator = torch.Generator().manual_seed(5)
    weights = load_file(path / "model.safetensors")
    for name, weight in weights.items():
        weights[name] = weight + scale * weight.std(correction=0) * torch.randn(weight.shape, generator=generator)
    save_file(weights, target / "model.safetensors", {"format": "pt"})
    return target


# --- pools, pages, drafters ------------------------------------------------------------------------------------------

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
    "foreknowing": {"drafter": "foreknowing", "num_draft_tokens": 7},
    "foreknowing, tight, not captured": {**TIGHT, "drafter": "foreknowing", "page_size": 4, "capture": False},
    "foreknowing, plain torch": {"drafter": "foreknowing", "num_draft_tokens": 3, "attention_backend": "torch_native"},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return make_llm_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def draft_models(model: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> list[LoadedModel]:
    """One that is always right where sampling is, and one that is hardly ever right."""
    return [model, make_draft_model(tmp_path_factory.mktemp("draft"))]


@pytest.fixture(scope="module")
def alone(model: LoadedModel) -> tuple[list[RequestOutput], Foreknowing]:
    """Each request by itself, without drafts and without a cache; and a drafter that has learned what they get."""
    llm = tiny_llm(model, max_running_requests=3, disable_radix_cache=True, random_seed=0)
    outputs, drafter = [], Foreknowing(VOCAB)
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
    alone: tuple[list[RequestOutput], Foreknowing],
    case: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain, foreknowing = alone
    rng = np.random.default_rng(0)
    foreknowing.plan = lambda req, most: (int(rng.integers(0, most + 1)), int(rng.integers(0, most + 2)))
    monkeypatch.setitem(DRAFTERS, "foreknowing", lambda _: foreknowing)
    options = {"adaptive_drafts": False, "max_running_requests": 8, "random_seed": 0, **CASES[case]}
    for draft_model in draft_models if "model" in options["drafter"] else [None]:
        llm = tiny_llm(model, draft_model, **options)
        outputs = serve(llm, WITH_TEXT) + serve(llm, WITH_TEXT)  # the second time, the tree knows everything
        check_same(llm, outputs, [*plain, *plain])
        stats = llm.engine.stats()
        if not options["adaptive_drafts"]:
            assert stats.drafted_tokens > 0
            if draft_model is not draft_models[1]:
                assert stats.accepted_tokens > 0
        assert bool(stats.retractions) == ("max_total_tokens" in options)
        assert stats.accepted_tokens == sum(output.accepted_tokens for output in outputs)
        assert stats.drafted_tokens == sum(output.drafted_tokens for output in outputs)
        assert_all_free(llm.engine)
    assert {end[2] for end in told(plain)} == {"stop", "length"}


def test_streams_say_the_same_in_larger_pieces(model: LoadedModel) -> None:
    asked = SamplingParams(max_new_tokens=17, seed=4, ignore_eos=True, stop=["w1 w1 w1"])
    prompt = words(STEM[:5])
    (wanted,) = tiny_llm(model).generate(prompt, asked)
    llm = tiny_llm(model, model, drafter="model", num_draft_tokens=3, adaptive_drafts=False)  # it is always right
    pieces = list(llm.stream(prompt, asked))
    assert [len(piece.token_ids) for piece in pieces if piece.token_ids] == [1, 4, 4, 4, 4]
    assert "".join(piece.text for piece in pieces) == wanted.text
    assert [token for piece in pieces for token in piece.token_ids] == wanted.token_ids

    async def streamed() -> list[str]:
        async with AsyncEngine(llm) as engine:
            return [piece.text async for piece in engine.stream(prompt, asked)]

    assert "".join(asyncio.run(streamed())) == wanted.text


# --- families and storage --------------------------------------------------------------------------------------------

OF_FAMILIES: Asked = [(prompt, {**fields, "ignore_eos": i % 2 == 0}) for i, (prompt, fields) in enumerate(ASKED)]
KERNELS = ["torch"] + ["cpp"] * (CppKernels.why_not(torch.float32, torch.device("cpu")) is None)


def check_with_and_without(path: Path, draft: Path, options: dict[str, Any]) -> None:
    common = {"max_total_tokens": 512, "max_running_requests": 8, "random_seed": 0, **options}
    plain = LLM(path, **common)
    drafting = LLM(path, drafter=("ngram", "model"), draft_model=draft, adaptive_drafts=False, **common)
    outputs = serve(drafting, OF_FAMILIES)
    wanted = serve(plain, OF_FAMILIES)
    check_same(drafting, outputs, wanted)
    params = [SamplingParams(**{"max_new_tokens": 16, **fields}) for _, fields in OF_FAMILIES]
    together = drafting.generate([prompt for prompt, _ in OF_FAMILIES], params, use_tqdm=False)
    check_same(drafting, together, wanted)  # in the order of the prompts, whichever ends first
    stats = drafting.engine.stats()
    assert 0 < stats.accepted_tokens < stats.drafted_tokens
    assert_all_free(drafting.engine)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_gives_the_same_tokens_with_drafts(family: str, checkpoint: Checkpoint, tmp_path: Path) -> None:
    path = checkpoint(family)
    draft = noisy(path, tmp_path / "draft")
    kernels = KERNELS if family in ("llama", "gemma3") else KERNELS[-1:]
    for each in kernels:
        check_with_and_without(path, draft, {"kernels": each, "page_size": 4, "num_draft_tokens": 3})


@pytest.mark.parametrize(
    "options",
    [
        {"quantization": "int8", "num_draft_tokens": 7, "capture": len(KERNELS) == 2},
        {"kv_cache_dtype": "int8", "page_size": 4},
        {"quantization": "int4", "kv_cache_dtype": "int8", "capture": False},
    ],
    ids=str,
)
def test_weights_and_kv_in_eight_bits_give_the_same_tokens_with_drafts(
    options: dict[str, Any], checkpoint: Checkpoint, tmp_path: Path
) -> None:
    path = checkpoint()
    check_with_and_without(path, noisy(path, tmp_path / "draft"), options)


def test_adapters_give_the_same_tokens_with_drafts_of_the_base_model(checkpoint: Checkpoint, tmp_path: Path) -> None:
    path = checkpoint()
    network = load_model(path, torch.float32, kernels="torch").model
    adapters = {name: save_adapter(tmp_path / name, network, seed) for seed, name in enumerate(("one", "two"))}
    asked = [
        (prompt, {**fields, "adapter": adapter})
        for prompt, fields in OF_FAMILIES[:4]
        for adapter in (None, "one", "two")
    ]
    common: dict[str, Any] = {"max_total_tokens": 1024, "max_running_requests": 8, "adapters": adapters}
    plain = LLM(path, **common)
    drafting = LLM(path, drafter=("tree", "model"), draft_model=path, adaptive_drafts=False, **common)
    first, again, wanted = serve(drafting, asked), serve(drafting, asked), serve(plain, asked)
    check_same(drafting, first, wanted)
    check_same(drafting, again, wanted)
    assert first[0].token_ids != first[1].token_ids != first[2].token_ids, "adapters change tokens"
    assert sum(output.accepted_tokens for output in again) > sum(output.accepted_tokens for output in first)


# --- the bundled model: text, grammars, its draft model --------------------------------------------------------------

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


@pytest.mark.parametrize("kernels", ["auto", "torch"])
@pytest.mark.parametrize("drafter", ["grammar", ("grammar", "model"), "model"])
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


# --- wrong drafts leave nothing behind -------------------------------------------------------------------------------

ROLLBACK: Asked = [
    (STEM[:5], {"temperature": 0, "logprobs": 1}),
    (STEM[:9], {"seed": 1, "n": 2, "logprobs": 0, "max_new_tokens": 12}),
    ([*STEM[:5], 1], {"temperature": 0, "stop": ["w3 w", "w20"], "min_new_tokens": 3}),
    ([8, 8], {"seed": 2, "stop_token_ids": list(range(0, VOCAB, 4)), "presence_penalty": 0.5}),
]


def leaves(llm: LLM) -> set[tuple[int, ...]]:
    """The token sequences in the tree, from the root to each leaf."""
    paths = {llm.engine.radix_cache.root: ()}
    found = set()
    for _, node in llm.engine.radix_cache.nodes():
        paths[node] = (*paths[node.parent], *node.key.tolist())
        if not node.children:
            found.add(paths[node])
    return found


@pytest.fixture(scope="module")
def kept(model: LoadedModel) -> dict[int, tuple[list[RequestOutput], set[tuple[int, ...]]]]:
    """Without drafts, by page size: what is returned, and what is in the tree afterwards."""
    found = {}
    for page_size in (1, 4):
        llm = tiny_llm(model, max_running_requests=8, max_total_tokens=256, page_size=page_size)
        found[page_size] = serve(llm, ROLLBACK), leaves(llm)
    return found


@pytest.fixture(scope="module")
def knowing(model: LoadedModel) -> Foreknowing:
    drafter, llm = Foreknowing(VOCAB), tiny_llm(model, max_running_requests=8)
    reqs: list[Req] = []
    for prompt, fields in ROLLBACK:
        request_id = llm.engine.add_request(prompt, SamplingParams(**{"max_new_tokens": 16, **fields}))
        reqs += llm.engine.open_requests.groups[request_id].reqs
    while llm.engine.has_unfinished():
        step(llm.engine)
    drafter.remember(reqs)
    return drafter


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    plans=st.lists(st.tuples(st.integers(0, 64), st.integers(0, 16)), min_size=1, max_size=40),
    num_draft_tokens=st.sampled_from([1, 2, 5, 16, 64]),
    page_size=st.sampled_from([1, 4]),
    slots=st.sampled_from([48, 256]),
    chunked_prefill_size=st.sampled_from([None, 4]),
    adaptive_drafts=st.booleans(),
)
def test_drafts_of_any_length_that_go_wrong_anywhere_leave_nothing_behind(
    model: LoadedModel,
    kept: dict[int, tuple[list[RequestOutput], set[tuple[int, ...]]]],
    knowing: Foreknowing,
    plans: list[tuple[int, int]],
    num_draft_tokens: int,
    page_size: int,
    slots: int,
    chunked_prefill_size: int | None,
    adaptive_drafts: bool,
) -> None:
    """Plan i of the drafter: how many drafts, and how many of them are right. Slots are checked after each step."""
    asked = 0

    def plan(req: Req, most: int) -> tuple[int, int]:
        nonlocal asked
        asked += 1
        count, right = plans[asked % len(plans)]
        return min(count, most), right

    knowing.plan = plan
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(DRAFTERS, "foreknowing", lambda _: knowing)
        llm = tiny_llm(
            model,
            drafter="foreknowing",
            num_draft_tokens=num_draft_tokens,
            adaptive_drafts=adaptive_drafts,
            page_size=page_size,
            max_running_requests=8,
            max_total_tokens=slots,
            chunked_prefill_size=chunked_prefill_size,
            schedule_conservativeness=0.001,
        )
    outputs = serve(llm, ROLLBACK)
    plain, in_tree = kept[page_size]
    check_same(llm, outputs, plain)
    if slots == 256:  # with fewer, some of it was evicted
        assert leaves(llm) == in_tree
    assert_all_free(llm.engine)


# --- how many drafts are right ---------------------------------------------------------------------------------------


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


def continuations(text: list[int], count: int) -> list[list[int]]:
    """What follows each occurrence, but the last, of the longest suffix of `text` that occurs twice: by search."""
    for length in range(len(text) - 1, 1, -1):
        ends = [end for end in range(length, len(text)) if text[end - length : end] == text[-length:]]
        if ends:
            found = []
            for end in ends:
                longer = list(text)
                for i in range(count):
                    longer.append(longer[end + i])
                found.append(longer[len(text) :])
            return found
    return []


@pytest.mark.parametrize("num_draft_tokens", [1, 3, 7])
def test_ngram_drafts_are_right_as_often_as_in_a_simulation(model: LoadedModel, num_draft_tokens: int) -> None:
    llm = tiny_llm(model, drafter="ngram", num_draft_tokens=num_draft_tokens, adaptive_drafts=False)
    prompts = [STEM[:6] * 3, STEM, [3, 4] * 6 + [9, 3], [7], STEM[:10] + STEM[2:8]]
    drafted_in_all = accepted_in_all = clear = 0
    for prompt in prompts:
        tokens, passes = passes_of(llm, prompt, 40)
        place = 1
        for before, drafted, accepted in passes:
            assert before == place
            limit = min(num_draft_tokens, 40 - before - 1)
            found = continuations(prompt + tokens[:before], limit) if limit else []
            assert drafted == (limit if found else 0)
            possible = {accepted_of(drafts, tokens[before:]) for drafts in found} or {0}
            assert accepted in possible, "the drafts followed no occurrence of the longest suffix"
            clear += bool(found) and len(possible) == 1
            place += accepted + 1
            drafted_in_all, accepted_in_all = drafted_in_all + drafted, accepted_in_all + accepted
        assert place == 40
    stats = llm.engine.stats()
    assert (stats.drafted_tokens, stats.accepted_tokens) == (drafted_in_all, accepted_in_all)
    assert 0 < accepted_in_all < drafted_in_all
    assert clear > 10, "in most passes there was one possible number"


@pytest.mark.parametrize("num_draft_tokens", [1, 3, 7])
def test_a_draft_model_is_right_as_often_as_transformers_says(
    checkpoint: Checkpoint, oracle: Any, tmp_path: Path, num_draft_tokens: int
) -> None:
    path = checkpoint()
    draft = noisy(path, tmp_path / "draft")
    drafts_by = oracle(draft)
    # In so few slots, each request gets some that hold the draft model's K/V of another.
    common: dict[str, Any] = {"max_total_tokens": 48, "num_draft_tokens": num_draft_tokens}
    llm = LLM(path, drafter="model", draft_model=draft, adaptive_drafts=False, **common)
    drafted_in_all = accepted_in_all = 0
    for prompt in ([5, 9, 200, 31, 7], list(range(100, 123)), [5, 9, 200, 31, 8]):
        tokens, passes = passes_of(llm, prompt, 20)
        assert tokens == greedy(oracle(path), prompt, 20)
        place = 1
        for before, drafted, accepted in passes:
            assert before == place
            limit = min(num_draft_tokens, 20 - before - 1)
            drafts = greedy(drafts_by, prompt + tokens[:before], limit) if limit else []
            assert (drafted, accepted) == (limit, accepted_of(drafts, tokens[before:]))
            place += accepted + 1
            drafted_in_all, accepted_in_all = drafted_in_all + drafted, accepted_in_all + accepted
        assert place == 20
    stats = llm.engine.stats()
    assert (stats.drafted_tokens, stats.accepted_tokens) == (drafted_in_all, accepted_in_all)
    assert 0 < accepted_in_all < drafted_in_all


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

"""The benchmark's workloads: what is the same for all engines, what a seed changes, and what a short context does."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from nanoinfer import LLM, SamplingParams
from nanoinfer.bench.machine import Checkpoint
from nanoinfer.bench.peers import worker
from nanoinfer.bench.peers.nanoinfer import Peer
from nanoinfer.bench.texts import MAKERS, SCHEMAS, text_workload
from nanoinfer.bench.workloads import WORKLOADS, Job, warm_up

VOCAB = 32000


def model(context_len: int = 4096, vocab_size: int = VOCAB, parameters: int = 57_000_000) -> Checkpoint:
    return Checkpoint("", "", "float32", parameters, vocab_size, context_len)


def make_job(name: str, seed: int = 0) -> Job:
    return WORKLOADS[name].make_job(model(), seed)


@pytest.mark.parametrize("name", WORKLOADS)
def test_seeds_change_token_ids_and_nothing_else(name: str) -> None:
    one, other, again = (make_job(name, seed) for seed in (0, 1, 0))
    assert one == again
    for a, b in zip(one.requests, other.requests, strict=True):
        assert (len(a.prompt), a.new_tokens, a.arrival) == (len(b.prompt), b.new_tokens, b.arrival)
        assert a.prompt != b.prompt
        assert min(a.prompt) >= 300
        assert max(a.prompt) < VOCAB


def test_shared_prompts_begin_alike_and_part() -> None:
    job = make_job("shared-cached")
    assert len({tuple(request.prompt[:512]) for request in job.requests}) == 1
    assert len({request.prompt[512] for request in job.requests}) > 1
    assert [request.prompt[:512] for request in job.prime] == [job.requests[0].prompt[:512]]
    assert job.shared
    other = make_job("shared")
    assert not other.prime
    assert other.requests[0].prompt[:32] != job.requests[0].prompt[:32], "or one would find the other's in its cache"


@pytest.mark.parametrize("context", [256, 1024])
@pytest.mark.parametrize("name", WORKLOADS)
def test_a_short_context_scales_all_lengths_and_says_so(name: str, context: int) -> None:
    workload = WORKLOADS[name]
    checkpoint = model(context, 320)
    shared, lengths, scaled = workload.shape(context)
    full_shared, full, _ = workload.shape(4096)
    assert all(0 < shared + prompt + new <= context and prompt >= 1 and new >= 1 for prompt, new in lengths)
    assert scaled == (max(full_shared + prompt + new for prompt, new in full) > context)
    assert scaled or (shared, lengths) == (full_shared, full)
    assert (f"reduced to fit a context of {context} tokens" in workload.describe(checkpoint)) == scaled
    job = workload.make_job(checkpoint, 0)
    assert [(len(r.prompt), r.new_tokens) for r in job.requests] == [(shared + prompt, new) for prompt, new in lengths]
    assert all(len(r.prompt) + r.new_tokens <= context for r in warm_up(checkpoint).requests)


@pytest.mark.parametrize("name", MAKERS)
def test_a_seed_decides_all_texts_and_another_seed_gives_others(story: LLM, name: str) -> None:
    workload = text_workload(f"{name}@10")
    assert workload is not None
    one, same, other = (workload.make_job(story, seed) for seed in (1, 1, 2))
    assert one == same
    assert (len(one.requests), one.together) == (20, 10)
    assert not {tuple(each.prompt) for each in one.requests} & {tuple(each.prompt) for each in other.requests}
    assert all(len(each.prompt) + each.new_tokens < story.config.max_context_len for each in one.requests)
    assert one.prime == (one.requests if name == "again" else []), "served once before"


def test_json_has_every_schema_and_half_of_the_requests_are_sampled(story: LLM) -> None:
    workload = text_workload("json@1")
    assert workload is not None
    requests = workload.make_job(story, 0).requests[:6]
    params = [each.sampling or {} for each in requests]
    assert [each["json_schema"] for each in params] == list(SCHEMAS.values()) * 2
    assert [each["temperature"] > 0 for each in params] == [False, True] * 3
    outputs = story.generate(
        [each.prompt for each in requests],
        [SamplingParams(max_new_tokens=each.new_tokens, **(each.sampling or {})) for each in requests],
        use_tqdm=False,
    )
    for each, output in zip(params, outputs, strict=True):
        assert output.finish_reason == "stop", "there are tokens enough for it"
        assert list(json.loads(output.text)) == each["json_schema"]["required"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "drafter"), [("copying@2", "ngram"), ("again@2", "tree"), ("json@2", "grammar")])
def test_a_drafter_is_right_about_its_workload_and_changes_no_token(story: LLM, name: str, drafter: str) -> None:
    workload = text_workload(name)
    assert workload is not None
    job, path = asdict(workload.make_job(story, 0)), str(Path(story.model.path))
    plain = Peer(path, "float32", 1, tokenizer=True)
    speculative = Peer(path, "float32", 1, tokenizer=True, drafter=drafter, adaptive_drafts=False)
    assert worker.run(speculative, job)["tokens"] == worker.run(plain, job)["tokens"]
    assert speculative.engine.stats()["accepted_tokens"] > 100

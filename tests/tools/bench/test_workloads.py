"""The benchmark's workloads: what is the same for all engines, what a seed changes, and what a short context does."""

import json
from pathlib import Path

import pytest

from nanoinfer import LLM, SamplingParams
from nanoinfer.bench.command import TEXT_NAMES, WORKLOAD_NAMES
from nanoinfer.bench.peers import worker
from nanoinfer.bench.peers.nanoinfer import Peer
from nanoinfer.bench.texts import MAKERS, SCHEMAS, text_workload
from nanoinfer.bench.workloads import WORKLOADS, default_gap, describe, make_job, shape, warm_up

VOCAB = 32000


@pytest.mark.parametrize("name", WORKLOADS)
def test_seeds_change_token_ids_and_nothing_else(name: str) -> None:
    one, other, again = (make_job(WORKLOADS[name], seed, 4096, VOCAB, 0.1) for seed in (0, 1, 0))
    assert one == again
    for a, b in zip(one.requests, other.requests, strict=True):
        assert (len(a.prompt), a.new_tokens, a.arrival) == (len(b.prompt), b.new_tokens, b.arrival)
        assert a.prompt != b.prompt
        assert min(a.prompt) >= 300
        assert max(a.prompt) < VOCAB


def test_the_workloads_are_those_of_the_readme() -> None:
    def lengths(name: str) -> list[tuple[int, int]]:
        return [(len(r.prompt), r.new_tokens) for r in make_job(WORKLOADS[name], 0, 4096, VOCAB, 0.1).requests]

    assert len(lengths("offline")) == 16
    assert all(64 <= prompt <= 256 and new == 64 for prompt, new in lengths("offline"))
    assert lengths("shared") == lengths("shared-cached") == [(544, 32)] * 16
    assert lengths("single") == [(32, 128)]
    assert lengths("prefill") == [(2048, 1)]
    assert len(lengths("staggered")) == 32
    assert all(32 <= prompt <= 256 and 16 <= new <= 128 for prompt, new in lengths("staggered"))


def test_shared_prompts_begin_alike_and_part() -> None:
    job = make_job(WORKLOADS["shared-cached"], 0, 4096, VOCAB, 0.1)
    assert len({tuple(request.prompt[:512]) for request in job.requests}) == 1
    assert len({request.prompt[512] for request in job.requests}) > 1
    assert [request.prompt[:512] for request in job.prime] == [job.requests[0].prompt[:512]]
    assert job.shared
    other = make_job(WORKLOADS["shared"], 0, 4096, VOCAB, 0.1)
    assert not other.prime
    assert other.requests[0].prompt[:32] != job.requests[0].prompt[:32], "or one would find the other's in its cache"


def test_staggered_gaps_have_the_given_mean() -> None:
    for gap in (0.04, 0.25):
        arrivals = [request.arrival for request in make_job(WORKLOADS["staggered"], 0, 4096, VOCAB, gap).requests]
        assert arrivals[0] == 0
        assert arrivals == sorted(arrivals)
        assert 0.6 * gap < arrivals[-1] / 31 < 1.6 * gap
    assert (default_gap(386_000_000), default_gap(57_000_000), default_gap(3_000_000)) == (0.25, 0.04, 0.01)


@pytest.mark.parametrize("context", [24, 256, 1024])
@pytest.mark.parametrize("name", WORKLOADS)
def test_a_short_context_scales_all_lengths_and_says_so(name: str, context: int) -> None:
    workload = WORKLOADS[name]
    shared, lengths, scaled = shape(workload, context)
    full_shared, full, _ = shape(workload, 4096)
    assert all(0 < shared + prompt + new <= context and prompt >= 1 and new >= 1 for prompt, new in lengths)
    assert scaled == (max(full_shared + prompt + new for prompt, new in full) > context)
    assert scaled or (shared, lengths) == (full_shared, full)
    assert (f"reduced to fit a context of {context} tokens" in describe(workload, context, 0.1)) == scaled
    job = make_job(workload, 0, context, 320, 0.1)
    assert [(len(r.prompt), r.new_tokens) for r in job.requests] == [(shared + prompt, new) for prompt, new in lengths]
    assert all(len(r.prompt) + r.new_tokens <= context for r in warm_up(context, 320).requests)


def test_help_names_the_workloads() -> None:
    assert (tuple(WORKLOADS), tuple(MAKERS)) == (WORKLOAD_NAMES, TEXT_NAMES)
    assert [text_workload(name) for name in ("poems@1", "json", "json@0", "offline")] == [None] * 4


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
    job, path = workload.make_job(story, 0).as_message(), str(Path(story.model.path))
    plain = Peer(path, "float32", 1, tokenizer=True)
    drafting = Peer(path, "float32", 1, tokenizer=True, drafter=drafter, adaptive_drafts=False)
    assert worker.run(drafting, job)["tokens"] == worker.run(plain, job)["tokens"]
    assert drafting.engine.stats()["accepted_tokens"] > 100

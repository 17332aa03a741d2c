"""`bench drafts`: what its workloads ask for, and which runs are compared with which. No times."""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from nanoinfer import LLM
from nanoinfer.bench.draft_workloads import DRAFT_WORKLOADS, SCHEMAS, copied_share, make_asks
from nanoinfer.bench.drafts import differences, serve_pair, serving
from nanoinfer.bench.drafts_command import DRAFT_WORKLOAD_NAMES
from nanoinfer.requests.outputs import RequestOutput
from nanoinfer.requests.req import FinishReason

# --- the workloads ---------------------------------------------------------------------------------------------------


def test_help_names_the_workloads() -> None:
    assert tuple(DRAFT_WORKLOADS) == DRAFT_WORKLOAD_NAMES


@pytest.mark.parametrize("name", DRAFT_WORKLOADS)
def test_a_seed_decides_all_requests_and_another_seed_gives_other_prompts(story: LLM, name: str) -> None:
    workload = DRAFT_WORKLOADS[name]
    one, same, other = (make_asks(workload, story, 6, seed) for seed in ("0/1", "0/1", "0/2"))
    assert one == same
    assert not {tuple(ask.prompt) for ask in one} & {tuple(ask.prompt) for ask in other}
    room = story.config.max_context_len
    assert all(len(ask.prompt) + ask.params.max_new_tokens < room for ask in one)
    assert {ask.params.max_new_tokens for ask in make_asks(workload, story, 2, "0", new_tokens=5)} == {5}


@pytest.mark.slow
def test_the_model_really_copies_in_copying(story: LLM) -> None:
    asks = make_asks(DRAFT_WORKLOADS["copying"], story, 12, "a test")
    outputs = story.generate([ask.prompt for ask in asks], [ask.params for ask in asks], use_tqdm=False)
    shares = [copied_share(a.prompt, list(o.token_ids)) for a, o in zip(asks, outputs, strict=True)]
    assert sum(shares) / len(shares) > 0.5
    stories = [s for i, s in enumerate(shares) if i % 3 < 2]
    assert sum(stories) / len(stories) > 0.4, "not only lists"
    free = make_asks(DRAFT_WORKLOADS["stories"], story, 4, "a test")
    outputs = story.generate([ask.prompt for ask in free], [ask.params for ask in free], use_tqdm=False)
    assert max(copied_share(a.prompt, list(o.token_ids)) for a, o in zip(free, outputs, strict=True)) < 0.2


def test_only_runs_of_four_tokens_count_as_copied() -> None:
    assert copied_share([1, 2, 3, 4, 5], [9, 1, 2, 3, 4, 5, 9, 9]) == 5 / 8
    assert copied_share([1, 2, 3, 4, 5], [1, 2, 3, 9, 3, 4, 5]) == 0.0
    assert copied_share([1], []) == 0.0


def test_json_has_every_schema_and_half_of_the_requests_are_sampled(story: LLM) -> None:
    asks = make_asks(DRAFT_WORKLOADS["json"], story, 6, "0")
    schemas = [json.loads(str(ask.params.json_schema)) for ask in asks]
    assert [schemas.count(schema) for schema in SCHEMAS.values()] == [2, 2, 2]
    assert [ask.params.temperature > 0 for ask in asks] == [False, True] * 3
    outputs = story.generate([ask.prompt for ask in asks], [ask.params for ask in asks], use_tqdm=False)
    for schema, output in zip(schemas, outputs, strict=True):
        assert output.finish_reason == "stop", "there are tokens enough for it"
        assert list(json.loads(output.text)) == schema["required"]


def test_stories_are_greedy_and_sampled_with_seeds_of_their_own(story: LLM) -> None:
    params = [ask.params for ask in make_asks(DRAFT_WORKLOADS["stories"], story, 8, "0")]
    assert [p.temperature for p in params] == [0.0, 0.7, 0.0, 0.8, 0.0, 0.9, 0.0, 1.0]
    assert len({p.seed for p in params if p.temperature}) == 4


# --- pairs and differences -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_each_engine_serves_each_request_once_and_a_second_visit_finds_the_first_in_the_cache(story: LLM) -> None:
    asks = make_asks(DRAFT_WORKLOADS["stories"], story, 3, "0", new_tokens=4)
    other = LLM("story", drafter="tree", adaptive_drafts=False)
    for second_visit in (False, True):
        one, two = serve_pair(story, other, asks, 2, second_visit)
        assert differences(one.outputs, two.outputs) == []
        for served in (one, two):
            assert [output.prompt_token_ids for output in served.outputs] == [ask.prompt for ask in asks]
            assert served.seconds > 0
        cached = [output.cached_tokens for output in two.outputs]
        known = [len(ask.prompt) - 1 for ask in asks]
        assert cached == known if second_visit else all(a < b for a, b in zip(cached, known, strict=True))
        assert (sum(output.accepted_tokens for output in two.outputs) > 0) == second_visit


def test_when_a_request_has_ended_the_next_one_begins_and_outputs_keep_their_order(story: LLM) -> None:
    asks = make_asks(DRAFT_WORKLOADS["stories"], story, 7, "0", new_tokens=4)
    asks[1] = replace(asks[1], params=replace(asks[1].params, max_new_tokens=40))
    running: list[int] = []
    step = story.engine.step

    def open_now() -> int:
        stats = story.engine.stats()
        return stats.running + stats.waiting

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(story.engine, "step", lambda: [running.append(open_now()), step()][1])
        outputs: list[RequestOutput] = []
        assert all(serving(story, asks, 3, outputs))
    assert [output.prompt_token_ids for output in outputs] == [ask.prompt for ask in asks]
    assert [len(output.token_ids) for output in outputs] == [40 if i == 1 else 4 for i in range(7)]
    assert max(running) == 3


def test_a_difference_names_request_position_and_tokens(story: LLM) -> None:
    asks = make_asks(DRAFT_WORKLOADS["stories"], story, 2, "0", new_tokens=4)
    outputs = serve_pair(story, LLM("story"), asks, 2)[0].outputs
    tokens = list(outputs[1].token_ids)

    def changed(**changes: Any) -> Any:
        return SimpleNamespace(**{"token_ids": tokens, "finish_reason": FinishReason.LENGTH, **changes})

    wrong, short = changed(token_ids=[*tokens[:2], tokens[2] + 1, tokens[3]]), changed(token_ids=tokens[:3])
    ended = changed(finish_reason=FinishReason.STOP)
    assert differences(outputs, outputs) == []
    for other, line in (
        (wrong, f"output token 2 is {tokens[2] + 1}, but {tokens[2]} without drafts"),
        (short, f"output token 3 is none, but {tokens[3]} without drafts"),
        (ended, "ends with stop, but length without drafts"),
    ):
        assert differences(outputs, [outputs[0], other]) == [f"request 1: {line}"]

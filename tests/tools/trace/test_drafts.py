"""Traces of runs with drafters: every token is in them, and which drafts were tried and accepted."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nanoinfer import LLM, SamplingParams, viz
from nanoinfer.model.forward_batch import ForwardMode
from nanoinfer.model.input_metadata import InputMetadata
from nanoinfer.trace import Trace, record
from nanoinfer.trace.final import final_state
from nanoinfer.trace.perfetto import trace_events
from nanoinfer.trace.phases import spans
from notebooks.course.explore.lives import lives_of
from tests.helpers.engines import finish, greedy, make_engine, model_of, serve
from tests.helpers.runners import make_runner
from tests.helpers.traces import assert_same

PROMPTS = ["Tom said hello. Tom said hello. Tom said", "The fox ran. The fox ran. The"]
DRAFTERS: dict[str, dict[str, Any]] = {
    "ngram": {"drafter": "ngram"},
    "model": {"drafter": "model", "draft_model": "story"},
    "tree and ngram": {"drafter": ("tree", "ngram")},
}


@pytest.fixture(scope="module")
def drafted() -> Trace:
    """Request 0 comes to `abcdeab` `c`: the drafts `d`, `e`, `a` follow, and then comes `f`. Request 1 has no drafts."""
    clock = map(float, range(10_000)).__next__
    engine = make_engine(drafter="ngram", adaptive_drafts=False, clock=clock)
    with record(engine) as trace:
        serve(engine, "abcdeab", "opq", max_new_tokens=9)
    return trace


@pytest.mark.parametrize("options", DRAFTERS.values(), ids=DRAFTERS.keys())
@pytest.mark.parametrize("temperature", [0.0, 0.3])
def test_the_tokens_in_the_trace_are_those_of_the_outputs(options: dict[str, Any], temperature: float) -> None:
    fields = {"max_total_tokens": 1024, "max_running_requests": 4, "page_size": 4, "adaptive_drafts": False}
    llm = LLM("story", **fields, **options)
    params = SamplingParams(max_new_tokens=40, temperature=temperature, seed=5, ignore_eos=True)
    with record(llm) as trace:
        outputs = llm.generate(PROMPTS, params, use_tqdm=False)
        outputs += llm.generate(PROMPTS, params, use_tqdm=False)  # now the tree knows them
        assert_same(trace, llm.engine)
    wanted = [output.outputs[0].token_ids for output in outputs]
    sampled: list[list[int]] = [[] for _ in wanted]
    for event in trace.events:
        for entry in event.batch:
            sampled[entry.request] += entry.tokens
    assert sampled == wanted
    assert [req.output_ids for req in trace.state().requests.values()] == wanted
    counts = [(req.drafted_tokens, req.accepted_tokens) for req in trace.state().requests.values()]
    assert counts == [(output.outputs[0].drafted_tokens, output.outputs[0].accepted_tokens) for output in outputs]
    stats = llm.engine.stats()
    assert (stats.drafted_tokens, stats.accepted_tokens) == tuple(map(sum, zip(*counts, strict=True)))
    assert stats.drafted_tokens > 0
    if options["drafter"] == "model" and not temperature:
        assert stats.accepted_tokens == stats.drafted_tokens, "its own draft"


def test_what_a_verify_computed_and_brought_is_in_its_entries(drafted: Trace) -> None:
    (event,) = [event for event in drafted.events if event.drafted]
    first, second = event.batch
    assert event.mode == "VERIFY"
    assert (event.drafted, event.accepted) == (3, 2)
    assert (first.start, first.end, first.accepted, first.kv_len) == (7, 11, 2, 10)
    assert "".join(map(chr, first.drafts or ())) == "dea"
    assert "".join(map(chr, first.tokens)) == "def"
    assert (second.start, second.end, second.drafts, second.accepted, second.kv_len) == (3, 4, [], 0, 4)
    assert len(second.tokens) == 1


def test_the_sentences_count_drafts(drafted: Trace) -> None:
    (step,) = [event.step for event in drafted.events if event.drafted]
    assert drafted.describe(step).split(": ", 1)[1] == (
        "request 0 computes position 7 and 3 drafts at 8-10 in slots 10-13, accepts 2 of them and samples 3 tokens: "
        "“def”; request 1 computes position 3 in slot 14 and samples “s”."
    )
    assert repr(drafted) == f"<Trace: {len(drafted)} steps (1 EXTEND, {len(drafted) - 2} DECODE, 1 VERIFY), 2 requests>"


@pytest.mark.parametrize(
    ("prompt", "words"),
    [("abcxab", "1 draft at 7 in slots 6-7, accepts no draft"), ("abcdab", "1 draft at 7 in slots 6-7, accepts it")],
)
def test_a_sentence_of_a_single_draft(prompt: str, words: str) -> None:
    engine = make_engine(drafter="ngram", adaptive_drafts=False, num_draft_tokens=1)
    with record(engine) as trace:
        serve(engine, prompt, max_new_tokens=8)
    (first, *_) = [event.step for event in trace.events if event.mode == "VERIFY"]
    assert words in trace.describe(first)


def test_many_requests_with_drafts_are_summed_up() -> None:
    engine = make_engine(rows=8, drafter="ngram", adaptive_drafts=False)
    with record(engine) as trace:
        serve(engine, *("abcdeab" for _ in range(6)), max_new_tokens=9)
    (step,) = [event.step for event in trace.events if event.mode == "VERIFY" and event.accepted == 12]
    assert "; 3 more requests check 9 drafts, accept 6 and sample 9 tokens" in trace.describe(step)


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_saved_trace_with_drafts_comes_back(drafted: Trace, tmp_path: Path) -> None:
    drafted.save(tmp_path / "a.json")
    loaded = Trace.load(tmp_path / "a.json")
    assert loaded.events == [type(event).from_json(event.to_json()) for event in drafted.events]
    assert (loaded.engine, loaded.texts, loaded.describe()) == (drafted.engine, drafted.texts, drafted.describe())
    assert loaded.engine["drafter"] == ["ngram"]
    loaded.save(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_text() == (tmp_path / "b.json").read_text()


def test_a_file_of_version_1_is_read(tmp_path: Path) -> None:
    engine = make_engine(chunked_prefill_size=4)
    with record(engine) as trace:
        serve(engine, "abcdefg", "xyz", max_new_tokens=3)
    trace.save(tmp_path / "2.json")
    document = json.loads((tmp_path / "2.json").read_text())
    document["version"] = 1
    for name in ("drafter", "num_draft_tokens"):
        del document["engine"][name]
    for request in document["requests"]:
        del request["drafted_tokens"], request["accepted_tokens"]
    for event in document["events"]:
        for entry in event.get("batch", ()):
            entry[4:] = [entry[4][0] if entry[4] else None, entry[5]]
    (tmp_path / "1.json").write_text(json.dumps(document))
    loaded = Trace.load(tmp_path / "1.json")
    assert loaded.describe() == trace.describe()
    assert [req.output_ids for req in loaded.state().requests.values()] == [
        req.output_ids for req in trace.state().requests.values()
    ]
    loaded.save(tmp_path / "again.json")
    assert json.loads((tmp_path / "again.json").read_text())["version"] == 2
    assert Trace.load(tmp_path / "again.json").describe() == trace.describe()


def entry_of(change: Callable[[list[Any]], None]) -> Callable[[dict[str, Any]], None]:
    def apply(document: dict[str, Any]) -> None:
        (event,) = [event for event in document["events"] if event["mode"] == "VERIFY"]
        change(event["batch"][0])

    return apply


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (entry_of(lambda entry: entry[6].pop()), r"2 drafts at positions 8\.\.10"),
        (entry_of(lambda entry: entry[4].insert(0, 3)), "every token but the last must be an accepted draft"),
        (entry_of(lambda entry: entry[4].extend([1, 2])), "every token but the last must be an accepted draft"),
        (entry_of(lambda entry: entry.__setitem__(6, ["d", "e", "a"])), "TypeError: 'd': must be int"),
        (entry_of(lambda entry: entry.__setitem__(4, 7)), "TypeError"),
        (entry_of(lambda entry: entry.__setitem__(6, None)), "every token but the last"),
    ],
)
def test_drafts_that_do_not_fit_are_refused(
    drafted: Trace, spoil: Callable[[dict[str, Any]], None], message: str, tmp_path: Path
) -> None:
    drafted.save(tmp_path / "a.json")
    document = json.loads((tmp_path / "a.json").read_text())
    spoil(document)
    (tmp_path / "a.json").write_text(json.dumps(document))
    with pytest.raises(ValueError, match=rf"a\.json: events\[\d+\]: .*{message}"):
        Trace.load(tmp_path / "a.json")


# --- pictures and exports ---------------------------------------------------------------------------------------------


def test_each_verify_is_a_span_with_its_counts(drafted: Trace) -> None:
    found = [(span.request, span.tokens, span.sampled, span.drafted, span.accepted) for span in spans(drafted)[0]
             if span.phase == "verify"]  # fmt: skip
    assert found == [(0, 4, 3, 3, 2), (1, 1, 1, 0, 0)]
    picture = viz.timeline(drafted)
    assert "1 VERIFY (2 of 3 drafts accepted)" in picture.alt
    assert "verifies 1 (2 of 3 drafts accepted)" in picture.alt
    texts = [text.get_text() for text in picture.axes[0].texts]
    assert "verify" in texts
    assert any("tokens that a verify gave" in text for text in texts)
    names = [patch.get_gid() or "" for patch in picture.axes[0].patches]
    assert sum(name.startswith("verify ") for name in names) == 2
    assert final_state(drafted).alt.startswith(picture.alt)
    assert viz.timeline(drafted, by="time", occupancy=True).alt.startswith(picture.alt)


def test_the_export_has_drafts_of_the_pass_and_of_each_request(drafted: Trace) -> None:
    entries = trace_events(drafted)
    (step,) = [entry for entry in entries if entry["name"] == "VERIFY"]
    assert {name: step["args"][name] for name in ("tokens", "drafted", "accepted")} == {
        "tokens": 5,
        "drafted": 3,
        "accepted": 2,
    }
    slices = [entry["args"] for entry in entries if entry["name"] == "verify"]
    assert [(args["sampled"], args["drafted"], args["accepted"]) for args in slices] == [(3, 3, 2), (1, 0, 0)]


def test_a_verify_that_fails_has_drafts_and_no_tokens() -> None:
    engine = make_engine(drafter="ngram", adaptive_drafts=False)
    with record(engine) as trace:
        engine.add_request("abcdeab", greedy(9))
        engine.step()
        model_of(engine).fail_at = 2
        with pytest.raises(RuntimeError, match="the model broke"):
            engine.step()
        assert_same(trace, engine)
    event = trace.step(2)
    assert (event.mode, event.batch[0].tokens, event.drafted, event.accepted) == ("VERIFY", [], 3, 0)
    assert "computes position 7 and 3 drafts at 8-10 in slots 7-10; request 0 ends (error)" in trace.describe(2)
    assert trace.state().requests[0].drafted_tokens == 0, "none was checked"


def test_a_trace_that_starts_later_knows_the_drafts_before() -> None:
    engine = make_engine(drafter="ngram", adaptive_drafts=False)
    engine.add_request("abcdeab", greedy(12))
    engine.step()
    engine.step()
    with record(engine) as trace:
        assert_same(trace, engine)
        assert (trace.requests[0].drafted_tokens, trace.requests[0].accepted_tokens) == (3, 2)
        finish(engine)


def test_the_life_of_a_token_begins_with_its_own_k_v_not_with_a_wrong_drafts(drafted: Trace) -> None:
    (event,) = [event for event in drafted.events if event.drafted]
    right, wrong = (lives_of(drafted, 0, position)[-1] for position in (9, 10))
    assert right.written == event.step
    assert wrong.written == event.step + 1


# --- pictures of a VERIFY's InputMetadata -----------------------------------------------------------------------------


def test_a_verify_written_by_hand_is_drawn_as_an_extend_with_all_rows() -> None:
    runner = make_runner()
    runner.req_to_token_pool.req_to_token[0, :6] = torch.arange(6, dtype=torch.int32)
    metadata = InputMetadata.create(runner, 1, ForwardMode.VERIFY, [0, 1], [6, 3], [3, 2], [3, 4, 5, 10])
    mask = viz.extend_mask(metadata)
    assert mask.alt.startswith("VERIFY mask; request 0: 3 queries × 6 keys (3 in the prefix), 15 of 18 pairs seen; ")
    for fields in (None, "all"):
        picture = viz.input_metadata(metadata, fields=fields)
        assert picture.alt.startswith("VERIFY of 2 requests, 4 new tokens of 9 in all; ")
        assert "prefix_lens=[3, 2]" in picture.alt
    assert "extend_seq_lens=[3, 1]" in picture.alt
    texts = [text.get_text() for text in picture.axes[0].texts]
    assert any("the newest token of each sequence and its drafts" in text for text in texts)
    assert any("extend_seq_lens[0] = 3" in text for text in texts)


def test_the_last_pass_shows_its_drafts_even_those_that_were_wrong() -> None:
    engine = make_engine(drafter="ngram", adaptive_drafts=False)
    engine.add_request("abcdeab", greedy(9))
    engine.step()
    engine.step()
    assert engine.last_batch is not None
    assert engine.last_batch.forward_mode is ForwardMode.VERIFY
    assert "".join(viz.last_tokens(engine)) == "abcdeabcdea"
    metadata = viz.last_input_metadata(engine)
    assert metadata.forward_mode is ForwardMode.VERIFY
    assert metadata.positions.tolist() == [7, 8, 9, 10]
    picture = viz.input_metadata(metadata, tokens=viz.last_tokens(engine), labels=viz.last_labels(engine))
    assert "out_cache_loc=[7, 8, 9, 10]" in picture.alt

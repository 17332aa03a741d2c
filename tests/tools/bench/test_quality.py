"""`bench quality`: the same tokens scored by every engine, and what the figures mean."""

import json
import math
import sys
from pathlib import Path

import pytest
import torch
import transformers

from nanoinfer.bench.engines import EngineSpec, parse_engine
from nanoinfer.bench.quality import (
    SAMPLED,
    format_quality,
    measure_quality,
    sampled_texts,
    written_texts,
)
from nanoinfer.bench.session import Settings
from nanoinfer.model.loader import resolve_model_path
from tests.helpers.fake_sessions import FAKE


def fake(name: str, **options: object) -> EngineSpec:
    return EngineSpec(name, FAKE, sys.executable, options)


def nats(flat: float, right: bool) -> float:
    """Of the fake's logits: 8 tokens, one at 2 - flat, one at flat, the others at 0."""
    total = math.log(math.exp(2 - flat) + math.exp(flat) + 6)
    return total - (2 - flat if right else 0.0)


def test_nats_and_greedy_tokens_are_those_of_the_logits(tmp_path: Path) -> None:
    texts = {"counting": [[0, 1, 2, 3], [5, 6]], "falling": [[3, 2, 1]]}
    figures, failed = measure_quality(tmp_path, "float32", texts, Settings([fake("first"), fake("second", flat=1.5)]))
    assert failed == {}
    by = {(figure.engine, figure.text): figure for figure in figures}
    first, second = by["first", "counting"], by["second", "counting"]
    assert first.tokens == second.tokens == 4, "the first token of a text has nothing before it"
    assert first.nats == pytest.approx(nats(0.0, right=True))
    assert second.nats == pytest.approx(nats(1.5, right=True))
    assert (first.change, first.same) == (None, None)
    assert second.change == pytest.approx(second.nats - first.nats)
    assert second.error == pytest.approx(0.0), "every token costs the same"
    assert second.same == 0.0
    falling = by["second", "falling"]
    assert falling.nats == pytest.approx(nats(1.5, right=False))


def test_the_error_is_the_scatter_over_texts(tmp_path: Path) -> None:
    texts = {"mixed": [[0, 1], [3, 2], [4, 5], [7, 6]]}
    figures, _ = measure_quality(tmp_path, "float32", texts, Settings([fake("first"), fake("second", flat=0.5)]))
    right, wrong = (nats(0.5, each) - nats(0.0, each) for each in (True, False))
    assert figures[1].change == pytest.approx((right + wrong) / 2)
    assert figures[1].error == pytest.approx(abs(right - wrong) / 2 / 4**0.5)
    assert figures[1].same == 1.0


def test_a_peer_that_fails_is_named_and_the_others_are_scored(tmp_path: Path) -> None:
    engines = [fake("first"), fake("absent", refuse=True), fake("third")]
    figures, failed = measure_quality(tmp_path, "float32", {SAMPLED: [[0, 1]]}, Settings(engines))
    assert [figure.engine for figure in figures] == ["first", "third"]
    text = format_quality(figures, failed)
    assert "- FAILED: absent: FileNotFoundError" in text
    assert "100.00%" in text
    with pytest.raises(ValueError, match="absent"):
        measure_quality(tmp_path, "float32", {SAMPLED: [[0, 1]]}, Settings(engines[1:]))


@pytest.mark.slow
def test_nanoinfer_and_transformers_score_alike() -> None:
    path = resolve_model_path("story")
    texts = {SAMPLED: [[1, 400, 500, 37, 90], [1, 17]]}
    engines = [parse_engine("nanoinfer"), parse_engine("transformers")]
    (ours, theirs), failed = measure_quality(path, "float32", texts, Settings(engines))
    assert failed == {}
    assert theirs.change == pytest.approx(0.0, abs=1e-4)
    assert theirs.same == 1.0
    model = transformers.AutoModelForCausalLM.from_pretrained(path)
    with torch.no_grad():
        losses = [
            float(model(input_ids=ids, labels=ids).loss) for ids in (torch.tensor([text]) for text in texts[SAMPLED])
        ]
    assert ours.nats == pytest.approx((4 * losses[0] + losses[1]) / 5, abs=1e-4)


def test_sampled_text_is_the_same_each_time_and_begins_each_text_anew() -> None:
    path = resolve_model_path("story")
    texts = sampled_texts(path, 60, seed=3, at_once=2)
    assert sum(map(len, texts)) >= 60
    assert all(text[0] == 1 for text in texts)
    assert all(1 not in text[1:] for text in texts)
    assert texts == sampled_texts(path, 60, seed=3, at_once=2)
    assert texts != sampled_texts(path, 60, seed=4, at_once=2)


def test_documents_are_read_as_the_model_was_trained_on_them(tmp_path: Path) -> None:
    file, path = tmp_path / "some.jsonl", resolve_model_path("story")
    chat = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi!"}]
    file.write_text("\n".join(json.dumps(each) for each in ({"text": "One day."}, {"messages": chat}, {"text": "x"})))
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    (text,) = written_texts(path, file, 1000)
    assert tokenizer.decode(text) == "<s>One day.</s><s><|user|>Hello</s><|assistant|>Hi!</s><s>x</s>"
    (short,) = written_texts(path, file, 2)
    assert tokenizer.decode(short) == "<s>One day.</s>"
    file.write_text('{"text": "x"}\n{"words": 3}')
    with pytest.raises(ValueError, match=r"some\.jsonl, line 2"):
        written_texts(path, file, 1000)

"""Small parts: names of tokens, offsets, JSON on the wire, histograms, an answer that is cut off."""

import json
import logging
from typing import Any

import httpx
import pytest
import tokenizers
from prometheus_client import Histogram
from prometheus_client.registry import CollectorRegistry
from tokenizers.decoders import Metaspace
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from nanoinfer.requests.tokenizer import Tokenizer
from nanoinfer.server.buckets import Buckets
from nanoinfer.server.json_text import dumps, quoted
from nanoinfer.server.logprobs import chat_logprobs, completion_logprobs
from nanoinfer.server.shape import Shape
from nanoinfer.server.token_names import Offsets, TokenNames
from tests.helpers.engines import make_engine
from tests.helpers.servers import Running, patient_app, running
from tests.helpers.texts import TOKENIZER, encode
from tests.helpers.waiting import HANG_S

NAMES = TokenNames(TOKENIZER, TOKENIZER.special_ids)
ABORTED = 'nanoinfer:requests_aborted_total{model_name="nanoinfer",'
TEXT = "The fox 🦊 said: schön!"


def test_the_bytes_of_tokens_are_those_of_the_text() -> None:
    tokens = encode(TEXT)
    assert b"".join(map(NAMES.bytes, tokens)) == TEXT.encode()
    parts = [NAMES.text(token) for token in tokens if NAMES.text(token).startswith("bytes:")]
    assert parts, "this tokenizer cuts a fox"
    assert all(set(part.removeprefix("bytes:")) <= set("\\x0123456789abcdef") for part in parts)
    assert (NAMES.text(2), NAMES.is_text(2)) == ("</s>", False)
    assert NAMES.is_text(tokens[0])


def test_offsets_are_where_the_tokens_begin() -> None:
    offsets = Offsets(NAMES)
    tokens = [1, *encode(TEXT)]
    at = [offsets.next(token) for token in tokens]
    assert at == sorted(at)
    for token, offset in zip(tokens, at, strict=True):
        if NAMES.is_text(token) and not NAMES.text(token).startswith("bytes:"):
            assert TEXT[offset:].startswith(NAMES.text(token))


def metaspace_names() -> TokenNames:
    """Of a tokenizer whose words bring their space along, and lose it at the beginning of a text."""
    words = ["<unk>", "<s>", "</s>", "▁Once", "▁upon", "▁a", "▁time", "▁"]
    model = tokenizers.Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    model.decoder = Metaspace()
    special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    tokenizer = Tokenizer(PreTrainedTokenizerFast(tokenizer_object=model, **special))
    return TokenNames(tokenizer, tokenizer.special_ids)


@pytest.mark.parametrize(("shows_special", "of_own"), [(True, [9, 11, 15]), (False, [9, 11, 11])])
def test_offsets_after_an_echoed_prompt(shows_special: bool, of_own: list[int]) -> None:
    """Once upon a</s> time: the first word has no space, and the prompt's special token is not shown."""
    offsets = Offsets(metaspace_names(), shows_special, [1, 3, 4], "Once upon")
    assert [offsets.next(token) for token in [1, 3, 4, 5, 2, 6]] == [0, 0, 4, *of_own]


def test_only_special_tokens_are_no_text() -> None:
    names = metaspace_names()
    assert [names.text(token) for token in (1, 2, 3, 7)] == ["<s>", "</s>", " Once", " "]
    assert [names.is_text(token) for token in (1, 2, 3, 7)] == [False, False, True, True]
    assert not TokenNames(TOKENIZER, TOKENIZER.special_ids | {5}).is_text(5)  # an end token that is not flagged


def test_minus_infinity_is_written_as_a_number() -> None:
    token = encode("fox")[0]
    entries = [{token: float("-inf"), 5: -0.5}]
    completion = completion_logprobs(NAMES, Offsets(NAMES), [token], entries, 1)
    assert completion["token_logprobs"] == [-9999.0]
    chat = chat_logprobs(NAMES, entries, 2)
    assert [top["logprob"] for top in chat["content"][0]["top_logprobs"]] == [-0.5, -9999.0]
    assert json.loads(dumps([completion, chat])) == [completion, chat]


@pytest.mark.parametrize(
    "text", ["plain", 'a "quote" \\ and\nlines\r\t\x00\x1f', "schön 🦊", "a\u2028b\u2029c\x85d\x7f", ""]
)
def test_text_on_the_wire_is_json_on_one_line(text: str) -> None:
    for written in (quoted(text), dumps(text)):
        assert json.loads(written) == text
        assert len(written.splitlines()) == 1
        assert written.encode().decode() == written


def test_numbers_that_json_does_not_have_are_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        dumps(float("nan"))


def test_buckets_count_as_prometheus_own_histogram() -> None:
    bounds = (0.1, 1.0, 5.0)
    registry = CollectorRegistry()
    theirs, ours = Histogram("x", "x", buckets=bounds, registry=registry), Buckets(bounds)
    for value, times in ((0.05, 1), (0.1, 2), (0.5, 1), (5.0, 3), (7.0, 1)):
        ours.observe(value, times)
        for _ in range(times):
            theirs.observe(value)
    for bound, count in ours.cumulative():
        assert count == registry.get_sample_value("x_bucket", {"le": bound})
    assert ours.sum == pytest.approx(registry.get_sample_value("x_sum"))


@pytest.mark.parametrize("error", [KeyError, ValueError])  # the latter is the request's fault only before it is served
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_fails_while_it_is_written_is_no_whole_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, stream: bool, error: type[Exception]
) -> None:
    def fail(*_: Any) -> Any:
        raise error("hu" + "sh")  # the log shows lines of code

    monkeypatch.setattr(Shape, "last_events" if stream else "whole", fail)
    caplog.set_level(logging.INFO)
    with running(patient_app(make_engine())) as server:
        body = {"model": "nanoinfer", "prompt": "a", "max_tokens": 3, "stream": stream}
        if stream:
            with pytest.raises(httpx.RemoteProtocolError):
                server.post("/v1/completions", body)
        else:
            answer = server.post("/v1/completions", body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
            assert "hush" not in answer.text
        monkeypatch.undo()
        server.check_idle()
    assert f"failed: {error.__name__}" in caplog.text
    assert "hush" not in caplog.text


@pytest.mark.parametrize("failure", [KeyError, ValueError])
def test_a_stream_whose_text_cannot_be_written_ends_with_an_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failure: type[Exception]
) -> None:
    shown: list[int] = []

    def fail_later(self: Shape, index: int, piece: Any) -> str:
        shown.append(index)
        if len(shown) > 1:
            raise failure("hu" + "sh")
        return "data: {}\n\n"

    monkeypatch.setattr(Shape, "piece", fail_later)
    with running(patient_app(make_engine())) as server:
        body = {"model": "nanoinfer", "prompt": ["a", "b"], "max_tokens": 30, "stream": True}
        answer = server.post("/v1/completions", body)
        *_, error, done, _ = answer.text.split("\n\n")
        assert json.loads(error.removeprefix("data: "))["error"]["code"] == "internal_error"
        assert done == "data: [DONE]"
        monkeypatch.undo()
        server.check_idle()
        aborts = {reason: server.metric(f'{ABORTED}reason="{reason}"}}') for reason in ("error", "disconnect")}
        assert aborts == {"error": 1, "disconnect": 0}
    assert f"failed: {failure.__name__}" in caplog.text
    assert "hush" not in caplog.text + answer.text


def test_text_is_never_cut_inside_a_character(server: Running) -> None:
    """Each event is UTF-8 by itself, though tokens are parts of characters."""
    fox = "".join("🦊é✓" for _ in range(4))
    body = {
        "model": "story",
        "prompt": "x",
        "max_tokens": 100,
        "guided_choice": [fox],
        "stream": True,
        "return_token_ids": True,
    }
    text = ""
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=HANG_S) as answer:
        for part in answer.iter_raw():
            part.decode()
            for event in part.split(b"\n\n"):
                if event.startswith(b"data: {"):
                    text += json.loads(event.removeprefix(b"data: "))["choices"][0]["text"]
    assert text == fox

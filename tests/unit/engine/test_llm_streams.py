"""LLM.stream, as its callers see it."""

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from nanoinfer import LLM, InvalidRequestError, SamplingParams, StreamPiece
from tests.helpers.waiting import Paced, Worker, until

Checkpoint = Callable[..., Path]
TEXT = "Once upon a time"
CHAT = [{"role": "user", "content": "Hello! How are you?"}]
MIXED = "Hi 😀, 中文 and cafe\u0301 👩\u200d👧!"


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("story", max_running_requests=4, max_total_tokens=1024, random_seed=0)


@pytest.fixture(autouse=True)
def _nothing_is_left_behind(llm: LLM) -> Iterator[None]:
    yield
    engine = llm.engine
    assert not engine.has_unfinished()
    assert engine.step() == []
    engine.flush_cache()
    engine.check_integrity()
    assert engine.stats()["free_slots"] == 1024


def greedy(max_new_tokens: int = 8, **fields: Any) -> SamplingParams:
    return SamplingParams(max_new_tokens=max_new_tokens, temperature=0, ignore_eos=True, **fields)


def script(monkeypatch: pytest.MonkeyPatch, llm: LLM, text: str) -> int:
    """Let the model say `text`, whatever it is asked; returns the number of tokens."""
    assert llm.tokenizer is not None
    tokens = llm.tokenizer.hf_tokenizer(text, add_special_tokens=False)["input_ids"]
    monkeypatch.setattr(
        llm.engine.sampler, "sample", lambda logits, reqs: torch.tensor([tokens[req.num_output_tokens] for req in reqs])
    )
    return len(tokens)


def joined(pieces: list[StreamPiece]) -> tuple[str, list[int]]:
    return "".join(piece.text for piece in pieces), [token for piece in pieces for token in piece.token_ids]


@pytest.mark.parametrize(
    "params",
    [greedy(20), SamplingParams(max_new_tokens=30, seed=3), SamplingParams(max_new_tokens=30, temperature=3.0, seed=4)],
)
def test_increments_joined_are_what_generate_gives(llm: LLM, params: SamplingParams) -> None:
    """At temperature 3 with many a half character."""
    output = llm.generate(TEXT, params)[0]
    pieces = list(llm.stream(TEXT, params))
    assert joined(pieces) == (output.text, output.token_ids)
    assert [piece.finish_reason for piece in pieces] == [None] * (len(pieces) - 1) + [output.finish_reason]
    assert {piece.prompt_tokens for piece in pieces} == {output.prompt_tokens}
    assert {piece.cached_tokens for piece in pieces} == {output.prompt_tokens - 1}
    assert len(pieces) <= len(output.token_ids)  # fewer when the reader was behind


def test_a_stream_never_splits_a_character(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    count = script(monkeypatch, llm, MIXED)
    pieces = list(llm.stream(TEXT, greedy(count)))
    assert joined(pieces)[0] == MIXED
    assert len(pieces) <= count
    assert script(monkeypatch, llm, "😀") > 1, "there was something to hold back"
    assert not any("\ufffd" in piece.text for piece in pieces)


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        ("中文", "Hi 😀, "),
        ("and cafe", "Hi 😀, 中文 "),
        (["zzz", ", 中"], "Hi 😀"),
        (["👧", "😀"], "Hi "),
        ("!", MIXED[:-1]),
        ("Hi", ""),
        ("!!", MIXED),
    ],
)
def test_a_stream_emits_nothing_of_a_stop_string(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, stop: Any, text: str
) -> None:
    count = script(monkeypatch, llm, MIXED)
    pieces = list(llm.stream(TEXT, greedy(count, stop=stop)))
    assert joined(pieces)[0] == text
    assert pieces[-1].finish_reason == ("length" if text == MIXED else "stop")
    assert llm.generate(TEXT, greedy(count, stop=stop))[0].text == text


def test_two_streams_may_be_read_in_turns(llm: LLM) -> None:
    prompts, params = [TEXT, "The dog"], [SamplingParams(max_new_tokens=12, seed=1, ignore_eos=True), greedy(5)]
    wanted = [llm.generate(prompt, asked)[0] for prompt, asked in zip(prompts, params, strict=True)]
    streams = [llm.stream(prompt, asked) for prompt, asked in zip(prompts, params, strict=True)]
    read: list[list[StreamPiece]] = [[], []]
    for turn in range(100):
        piece = next(streams[turn % 2], None)
        if piece is not None:
            read[turn % 2].append(piece)
    assert [joined(pieces) for pieces in read] == [(output.text, output.token_ids) for output in wanted]


def test_a_stream_catches_up_after_generate_was_called_in_between(llm: LLM) -> None:
    wanted = llm.generate(TEXT, greedy(10))[0]
    stream = llm.stream(TEXT, greedy(10))
    first = next(stream)
    llm.generate("The dog", greedy(30))
    rest = list(stream)
    assert joined([first, *rest]) == (wanted.text, wanted.token_ids)
    assert len(rest) <= 1  # all its passes were made with those of `generate`


def test_closing_a_stream_early_aborts_its_request_and_no_other(llm: LLM) -> None:
    aborted, paced = llm.engine.stats()["aborted"], Paced(1)
    stream = llm.stream(TEXT, greedy(50, logits_processors=[paced]))
    next(stream)
    paced.arrival()
    other = Worker(llm.generate, "The dog", greedy(6))
    until(lambda: llm.engine.turns.waiting, "the other call")
    stream.close()  # type: ignore[attr-defined]
    paced.open()
    assert len(other.result()[0].token_ids) == 6
    assert llm.engine.stats()["aborted"] == aborted + 1
    assert not llm.engine.has_unfinished()


def test_leaving_the_loop_over_a_stream_aborts_its_request(llm: LLM) -> None:
    aborted, paced = llm.engine.stats()["aborted"], Paced(1)
    for piece in llm.stream(TEXT, greedy(50, logits_processors=[paced])):
        assert llm.engine.is_unfinished(piece.request_id)
        break
    paced.open()
    assert not llm.engine.has_unfinished()
    assert llm.engine.stats()["aborted"] == aborted + 1


def test_a_stream_checks_at_once_and_queues_when_it_is_first_read(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="is empty"):
        llm.stream("")
    llm.stream(TEXT)
    assert not llm.engine.has_unfinished()


def test_a_stream_whose_request_is_aborted_ends_and_says_so(llm: LLM) -> None:
    paced = Paced(1)
    stream = llm.stream(TEXT, greedy(50, logits_processors=[paced]))
    rid = next(stream).request_id
    paced.arrival()
    abort = Worker(llm.engine.abort, rid)
    until(lambda: llm.engine.turns.waiting, "who aborts")
    paced.open()
    assert abort.result().token_ids
    assert list(stream)[-1].finish_reason == "abort"


def test_a_stream_of_n_completions_marks_each_piece_with_its_index(llm: LLM) -> None:
    params = SamplingParams(max_new_tokens=12, n=3, seed=5)
    wanted = llm.generate(TEXT, params)[0].outputs
    pieces = list(llm.stream(TEXT, params))
    for completion in wanted:
        parts = [piece for piece in pieces if piece.index == completion.index]
        assert joined(parts) == (completion.text, completion.token_ids)
        assert [piece.finish_reason for piece in parts] == [None] * (len(parts) - 1) + [completion.finish_reason]
    assert {piece.index for piece in pieces} == {0, 1, 2}


def interrupted(stream: Iterator[StreamPiece]) -> None:
    """Ctrl-C here, before the next piece has come."""
    Worker(signal.pthread_kill, threading.main_thread().ident, signal.SIGINT)
    next(stream)


def test_an_interrupted_stream_leaves_nothing_behind(llm: LLM) -> None:
    aborted, paced = llm.engine.stats()["aborted"], Paced(1)
    stream = llm.stream(TEXT, greedy(50, logits_processors=[paced]))
    next(stream)
    with pytest.raises(KeyboardInterrupt):
        interrupted(stream)
    stream.close()  # type: ignore[attr-defined]
    paced.open()
    assert list(stream) == []
    assert llm.engine.stats()["aborted"] == aborted + 1


def test_a_checkpoint_without_tokenizer_serves_ids_and_says_so_of_text_and_chats(checkpoint: Checkpoint) -> None:
    bare = LLM(checkpoint())
    with pytest.raises(InvalidRequestError, match=r"^prompt 1: is text, but this model has no tokenizer"):
        bare.generate([[1, 2], "text"])
    with pytest.raises(ValueError, match="chat: this model has no tokenizer"):
        bare.chat(CHAT)
    (output,) = bare.generate([1, 2, 3], greedy())
    assert (len(output.token_ids), output.text) == (8, "")
    assert joined(list(bare.stream([1, 2, 3], greedy())))[1] == output.token_ids

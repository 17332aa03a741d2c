"""LLM: generate, chat and stream, as their callers see them."""

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from nanoinfer import LLM, InvalidRequestError, RequestOutput, SamplingParams, StreamPiece
from nanoinfer.model.loader import resolve_model_path
from tests.helpers.checkpoints import greedy as transformers_greedy
from tests.helpers.waiting import Paced, Worker, someone_waits, until

Checkpoint = Callable[..., Path]
Oracle = Callable[[Path], transformers.PreTrainedModel]
TEXT = "Once upon a time"
CHAT = [{"role": "user", "content": "Hello! How are you?"}]


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


HF_TOKENIZER = transformers.AutoTokenizer.from_pretrained(resolve_model_path("story"))


def ids_of(text: str) -> list[int]:
    return HF_TOKENIZER(text)["input_ids"]


@pytest.mark.parametrize(
    "convert",
    [
        lambda ids: TEXT,
        lambda ids: [TEXT],
        lambda ids: ids,
        lambda ids: [ids],
        tuple,
        lambda ids: [np.int64(token) for token in ids],
        lambda ids: np.array(ids, dtype=np.int32),
        lambda ids: np.array([ids]),
        lambda ids: torch.tensor(ids),
        lambda ids: [torch.tensor(ids)],
    ],
    ids=["text", "[text]", "ids", "[ids]", "tuple", "[int64]", "array", "2-D array", "tensor", "[t]"],
)
def test_a_prompt_may_come_in_any_form(llm: LLM, convert: Callable[[list[int]], Any]) -> None:
    (output,) = llm.generate(convert(ids_of(TEXT)), greedy(), use_tqdm=False)
    assert output.prompt_token_ids == ids_of(TEXT)
    assert len(output.token_ids) == 8
    assert output.finish_reason == "length"
    assert TEXT + output.text == llm.tokenizer.decode(output.prompt_token_ids + output.token_ids)


def test_a_mixed_list_comes_back_in_order_with_the_tokens_of_transformers(llm: LLM, oracle: Oracle) -> None:
    """More prompts than run at a time, each of its own length."""
    prompts = ["Once", [1, 5, 9], np.array([1, 300, 301, 302]), torch.tensor([1, 7]), TEXT + " there was a", [1]]
    params = [greedy(3 + i) for i in range(len(prompts))]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    model = oracle(resolve_model_path("story"))
    for prompt, asked, output in zip(prompts, params, outputs, strict=True):
        ids = ids_of(prompt) if isinstance(prompt, str) else [int(token) for token in prompt]
        assert output.prompt_token_ids == ids
        assert output.token_ids == transformers_greedy(model, ids, asked.max_new_tokens)
        assert output.prompt_tokens == len(ids)


def test_no_prompts_give_no_outputs_and_other_arguments_are_checked_all_the_same(llm: LLM) -> None:
    assert llm.generate([]) == llm.generate((), []) == []
    with pytest.raises(InvalidRequestError, match=r"^prompts: adapter='x'"):
        llm.generate([], adapter="x")


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_list_of_params_of_another_length_is_refused(llm: LLM, count: int) -> None:
    with pytest.raises(ValueError, match="params"):
        llm.generate(["a", "b"], [greedy()] * count)
    assert not llm.engine.has_unfinished()


@pytest.mark.parametrize(("bad", "named"), [([1, 10**6], "token id 1000000"), ("\ud800", "UTF-8")], ids=ascii)
def test_one_bad_prompt_is_named_and_none_of_the_list_is_started(llm: LLM, bad: Any, named: str) -> None:
    before = llm.engine.stats()
    with pytest.raises(InvalidRequestError, match=f"^prompt 1: .*({named})"):
        llm.generate([TEXT, bad, TEXT], greedy(), use_tqdm=False)
    with pytest.raises(InvalidRequestError, match=r"^prompt 1: stop_token_ids"):
        llm.generate([TEXT, TEXT], [greedy(), greedy(stop_token_ids=[10**6])])
    assert llm.engine.stats() == before
    assert len(llm.generate(TEXT, greedy())[0].token_ids) == 8


@pytest.mark.parametrize(("use_tqdm", "shown"), [(True, True), (False, False)])
def test_a_list_shows_a_progress_bar_unless_turned_off(
    llm: LLM, capsys: pytest.CaptureFixture[str], use_tqdm: bool, shown: bool
) -> None:
    llm.generate([TEXT, "The"], greedy(2), use_tqdm=use_tqdm)
    llm.chat([CHAT, CHAT], greedy(2), use_tqdm=use_tqdm)
    captured = capsys.readouterr()
    llm.generate(TEXT, greedy(2))
    llm.chat(CHAT, greedy(2))
    assert capsys.readouterr().err == "", "one prompt shows none"
    # A bar is drawn over itself, how often depends on the time it takes; what stays is drawn when it is closed.
    stays = [line.split("\r")[-1] for line in captured.err.split("\n")[:-1]]
    assert ["2/2" in line for line in stays] == ([True, True] if shown else [])
    assert all("tok/s" in line for line in stays)
    assert bool(captured.err) == shown
    assert captured.out == ""


def test_requests_added_to_the_engine_are_not_lost_when_generate_is_called_in_between(llm: LLM) -> None:
    engine = llm.engine
    short, long = engine.add_request(TEXT, greedy(2)), engine.add_request("The cat", greedy(20))
    engine.step()
    wanted = {short: llm.generate(TEXT, greedy(2))[0], long: llm.generate("The cat", greedy(20))[0]}
    "".join(piece.text for piece in llm.stream("A dog", greedy(5)))
    last: dict[int, RequestOutput] = {}
    while engine.has_unfinished():
        last |= {output.request_id: output for output in engine.step()}
    assert last.keys() == wanted.keys()
    for rid, output in last.items():
        assert output.finished
        assert (output.token_ids, output.text) == (wanted[rid].token_ids, wanted[rid].text)


# --- chat ------------------------------------------------------------------------------------------------------------


def test_several_chats_come_back_in_order(llm: LLM) -> None:
    other = [*CHAT, {"role": "assistant", "content": "Fine."}, {"role": "user", "content": "1 + 2?"}]
    outputs = llm.chat([CHAT, other, CHAT], [greedy(3), greedy(6), greedy(4)], use_tqdm=False)
    assert [output.prompt_token_ids for output in outputs] == [llm.chat_prompt(one) for one in (CHAT, other, CHAT)]
    assert [len(output.token_ids) for output in outputs] == [3, 6, 4]


@pytest.mark.parametrize(
    ("messages", "named"),
    [
        ([], "messages: a conversation needs"),
        ("Hello", "messages"),
        ([{"role": "user"}], "content"),
        ([{"content": "a"}], r"messages\[0\].*role"),
        ([{"role": "wizard", "content": "a"}], "wizard"),
        ([CHAT, [{"role": "user"}]], "conversation 1"),
        ([{"role": "user", "content": "a" * 5000}], "max_context_len"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_bad_chat_is_refused_and_nothing_is_queued(llm: LLM, messages: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        llm.chat(messages, greedy())
    assert not llm.engine.has_unfinished()


MIXED = "Hi 😀, 中文 and cafe\u0301 👩\u200d👧!"


def script(monkeypatch: pytest.MonkeyPatch, llm: LLM, text: str) -> int:
    """Let the model say `text`, whatever it is asked; returns the number of tokens."""
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
    until(lambda: someone_waits(llm.engine), "the other call")
    stream.close()  # type: ignore[attr-defined]
    paced.open()
    assert len(other.result()[0].token_ids) == 6
    until(lambda: not llm.engine.has_unfinished(), "its end")
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
    until(lambda: someone_waits(llm.engine), "who aborts")
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
    until(lambda: not llm.engine.has_unfinished(), "its end")
    assert llm.engine.stats()["aborted"] == aborted + 1


def test_a_checkpoint_without_tokenizer_serves_ids_and_says_so_of_text_and_chats(checkpoint: Checkpoint) -> None:
    bare = LLM(checkpoint())
    with pytest.raises(InvalidRequestError, match="prompt 1"):
        bare.generate([[1, 2], "text"])
    with pytest.raises(InvalidRequestError, match="stop="):
        bare.generate([1], greedy(stop="a"))
    with pytest.raises(ValueError, match="tokenizer"):
        bare.chat(CHAT)
    (output,) = bare.generate([1, 2, 3], greedy())
    assert (len(output.token_ids), output.text) == (8, "")
    assert joined(list(bare.stream([1, 2, 3], greedy())))[1] == output.token_ids

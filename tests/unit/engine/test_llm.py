"""LLM: generate and chat, as their callers see them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from nanoinfer import LLM, InvalidRequestError, RequestOutput, SamplingParams
from nanoinfer.model.loader import resolve_model_path
from nanoinfer.requests.request_group import RequestGroup
from tests.helpers.checkpoints import greedy as transformers_greedy
from tests.helpers.interrupts import InterruptedModel

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
        lambda ids: (TEXT,),
        lambda ids: ids,
        lambda ids: tuple(ids),
        lambda ids: [ids],
        lambda ids: np.array(ids, dtype=np.int32),
        lambda ids: np.array([ids]),
        lambda ids: list(np.array(ids)),
        lambda ids: torch.tensor(ids),
        lambda ids: torch.tensor([ids]),
        lambda ids: [torch.tensor(ids)],
    ],
    ids=[
        "text",
        "[text]",
        "(text)",
        "ids",
        "tuple",
        "[ids]",
        "array",
        "2-D array",
        "numpy ints",
        "tensor",
        "2-D",
        "[t]",
    ],
)
def test_a_prompt_may_come_in_any_form(llm: LLM, convert: Callable[[list[int]], Any]) -> None:
    (output,) = llm.generate(convert(ids_of(TEXT)), greedy(), use_tqdm=False)
    assert output.prompt_token_ids == ids_of(TEXT)
    assert len(output.token_ids) == 8
    assert output.finish_reason == "length"
    assert llm.tokenizer is not None
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


@pytest.mark.parametrize("empty", [[], ()])
def test_no_prompts_give_no_outputs(llm: LLM, empty: Any) -> None:
    assert llm.generate(empty) == []
    assert llm.generate(empty, []) == []


def test_params_may_be_left_out(llm: LLM) -> None:
    (output,) = llm.generate(TEXT)
    assert 1 <= len(output.token_ids) <= SamplingParams().max_new_tokens


def test_params_for_each_prompt_apply_to_that_prompt(llm: LLM) -> None:
    outputs = llm.generate([TEXT] * 3, [greedy(2), greedy(5), greedy(1, logprobs=1)], use_tqdm=False)
    assert [len(output.token_ids) for output in outputs] == [2, 5, 1]
    assert [output.logprobs is None for output in outputs] == [True, True, False]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_list_of_params_of_another_length_is_refused(llm: LLM, count: int) -> None:
    with pytest.raises(ValueError, match=f"params: {count} for 2 prompts"):
        llm.generate(["a", "b"], [greedy()] * count)
    assert not llm.engine.has_unfinished()


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ("", "is empty"),
        ([], "is empty"),
        ([1, 10**6], "token id 1000000"),
        ([1] * 1100, "max_context_len=1024"),
        ([1] * 1020, "max_total_tokens=1024|max_context_len=1024"),
        ([0.5], "must be text or a list of token ids"),
        (None, "got NoneType"),
        (5, "got int"),
        (b"bytes", "got bytes"),
        ("\ud800", "UTF-8"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_one_bad_prompt_is_named_and_none_of_the_list_is_started(llm: LLM, bad: Any, named: str) -> None:
    before = llm.engine.stats()
    with pytest.raises(InvalidRequestError, match=f"^prompt 1: .*({named})"):
        llm.generate([TEXT, bad, TEXT], greedy(), use_tqdm=False)
    assert llm.engine.stats() == before
    assert len(llm.generate(TEXT, greedy())[0].token_ids) == 8


def test_bad_params_name_their_prompt_and_none_of_the_list_is_started(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match=r"^prompt 1: stop_token_ids"):
        llm.generate([TEXT, TEXT], [greedy(), greedy(stop_token_ids=[10**6])])
    assert not llm.engine.has_unfinished()


@pytest.mark.parametrize(("use_tqdm", "shown"), [(True, True), (False, False)])
def test_a_list_shows_a_progress_bar_unless_turned_off(
    llm: LLM, capsys: pytest.CaptureFixture[str], use_tqdm: bool, shown: bool
) -> None:
    llm.generate([TEXT, "The"], greedy(2), use_tqdm=use_tqdm)
    llm.chat([CHAT, CHAT], greedy(2), use_tqdm=use_tqdm)
    captured = capsys.readouterr()
    # A bar is drawn over itself, how often depends on the time it takes; what stays is drawn when it is closed.
    stays = [line.split("\r")[-1] for line in captured.err.split("\n")[:-1]]
    assert ["2/2" in line for line in stays] == ([True, True] if shown else [])
    assert all("tok/s" in line for line in stays)
    assert bool(captured.err) == shown
    assert captured.out == ""


def test_one_prompt_shows_no_progress_bar(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(TEXT, greedy(2))
    llm.generate([1, 5, 9], greedy(2))
    llm.chat(CHAT, greedy(2))
    assert capsys.readouterr().err == ""


def test_a_second_call_reuses_what_the_first_computed(llm: LLM) -> None:
    first = llm.generate(TEXT, greedy())[0]
    second = llm.generate(TEXT, greedy())[0]
    assert (first.cached_tokens, second.cached_tokens) == (0, first.prompt_tokens - 1)
    assert second.token_ids == first.token_ids


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


def test_a_keyboard_interrupt_ends_all_prompts_of_the_call_and_the_next_call_works(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six prompts of which four run: two are still waiting when it comes."""
    prompts = [[1, 10 * i + 10] for i in range(6)]
    runner = llm.engine.model_runner
    with monkeypatch.context() as patch:
        patch.setattr(runner, "model", InterruptedModel(runner.model, at=3))
        with pytest.raises(KeyboardInterrupt):
            llm.generate(prompts, greedy(), use_tqdm=False)
    assert not llm.engine.has_unfinished()
    llm.engine.check_integrity()
    assert [len(output.token_ids) for output in llm.generate(prompts, greedy(), use_tqdm=False)] == [8] * 6


def test_a_step_of_generate_does_not_go_through_all_the_prompts(
    checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = LLM(checkpoint("llama"), max_running_requests=2, max_total_tokens=64)
    finished, visits = RequestGroup.finished.fget, []
    assert finished is not None
    monkeypatch.setattr(RequestGroup, "finished", property(lambda group: visits.append(group) or finished(group)))
    llm.generate([[i] for i in range(100)], SamplingParams(max_new_tokens=4, temperature=0), use_tqdm=False)
    stats = llm.engine.stats()
    assert len(visits) <= 8 * (stats["extend_steps"] + stats["decode_steps"]) + 2 * 100, "two requests are in a step"


# --- chat ------------------------------------------------------------------------------------------------------------


def test_a_chat_is_generate_with_the_models_template(llm: LLM, oracle: Oracle) -> None:
    path = resolve_model_path("story")
    ids = transformers.AutoTokenizer.from_pretrained(path).apply_chat_template(CHAT, add_generation_prompt=True)
    (output,) = llm.chat(CHAT, greedy(10))
    assert output.prompt_token_ids == llm.chat_prompt(CHAT) == ids["input_ids"]
    assert output.token_ids == transformers_greedy(oracle(path), ids["input_ids"], 10)


def test_several_chats_come_back_in_order(llm: LLM) -> None:
    other = [*CHAT, {"role": "assistant", "content": "Fine."}, {"role": "user", "content": "1 + 2?"}]
    outputs = llm.chat([CHAT, other, CHAT], [greedy(3), greedy(6), greedy(4)], use_tqdm=False)
    assert [output.prompt_token_ids for output in outputs] == [llm.chat_prompt(one) for one in (CHAT, other, CHAT)]
    assert [len(output.token_ids) for output in outputs] == [3, 6, 4]


@pytest.mark.parametrize(
    ("messages", "named"),
    [
        ([], "at least one message"),
        ([[]], "at least one message"),
        ("Hello", "list of messages"),
        ([{"role": "user"}], "role and content"),
        ([{"role": "wizard", "content": "a"}], "wizard"),
        ([CHAT, [{"role": "user"}]], "role and content"),
        ([{"role": "user", "content": "a" * 5000}], "max_context_len"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_bad_chat_is_refused_and_nothing_is_queued(llm: LLM, messages: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        llm.chat(messages, greedy())
    assert not llm.engine.has_unfinished()

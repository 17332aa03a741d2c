"""/v1/completions as OpenAI's own client sees it."""

import json
from itertools import count

import numpy as np
import openai
import pytest
import tokenizers
from tokenizers.decoders import Metaspace
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from nanoinfer import LLM, SamplingParams
from nanoinfer.requests.tokenizer import Tokenizer
from nanoinfer.sampling.grammar.matcher import Matcher
from nanoinfer.server.formatter import dumps
from nanoinfer.server.logprobs import Offsets, TokenNames, chat_logprobs, completion_logprobs
from tests.helpers.servers import Running, sent_events
from tests.helpers.texts import TOKENIZER, encode
from tests.server.conftest import greedy

PROMPT = "Once upon a time"


def test_a_completion_is_what_generate_gives(client: openai.OpenAI, reference: LLM) -> None:
    made = client.completions.create(model="story", prompt=PROMPT, temperature=0, max_tokens=12)
    (wanted,) = reference.generate(PROMPT, greedy(12))
    (choice,) = made.choices
    assert (choice.text, choice.finish_reason, choice.index, choice.logprobs) == (wanted.text, "length", 0, None)
    assert made.object == "text_completion"
    assert made.id.startswith("cmpl-")
    assert made.model == "story"
    assert made.usage is not None
    assert (made.usage.prompt_tokens, made.usage.completion_tokens) == (wanted.prompt_tokens, 12)
    assert made.usage.total_tokens == wanted.prompt_tokens + 12


def test_without_max_tokens_there_are_sixteen_or_what_is_left(client: openai.OpenAI) -> None:
    assert client.completions.create(model="story", prompt=PROMPT, temperature=0).usage.completion_tokens == 16
    made = client.completions.create(model="story", prompt=[5] * 1020, temperature=0, extra_body={"ignore_eos": True})
    assert made.usage is not None
    assert (made.usage.completion_tokens, made.choices[0].finish_reason) == (4, "length")


def test_prompts_may_be_ids_or_lists_of_either(client: openai.OpenAI, reference: LLM) -> None:
    ids = [1, 50, 60, 70]
    texts = [output.text for output in reference.generate([ids, PROMPT, "The fox"], greedy(6))]
    alone = client.completions.create(model="story", prompt=ids, temperature=0, max_tokens=6)
    assert alone.choices[0].text == texts[0]
    several = client.completions.create(model="story", prompt=[PROMPT, "The fox"], temperature=0, max_tokens=6)
    assert [choice.text for choice in several.choices] == texts[1:]
    lists = client.completions.create(model="story", prompt=[ids, ids], temperature=0, max_tokens=6)
    assert [(choice.index, choice.text) for choice in lists.choices] == [(0, texts[0]), (1, texts[0])]
    mixed = client.completions.create(model="story", prompt=[ids, PROMPT], temperature=0, max_tokens=6)  # type: ignore[list-item]
    assert [choice.text for choice in mixed.choices] == texts[:2]


@pytest.mark.parametrize("stream", [False, True])
def test_n_at_temperature_zero_gives_equal_choices(client: openai.OpenAI, stream: bool) -> None:
    made = client.completions.create(
        model="story", prompt=[PROMPT, "The fox"], n=3, temperature=0, max_tokens=4, stream=stream
    )
    parts = [choice for chunk in made for choice in chunk.choices] if stream else made.choices
    assert sorted(part.index for part in parts if part.finish_reason) == list(range(6)), "each choice ends once"
    assert stream or made.usage.completion_tokens == 24
    one, *ones, other, _, _ = ["".join(part.text for part in parts if part.index == i) for i in range(6)]
    assert ones == [one] * 2
    assert one != other


def test_n_with_a_seed_gives_what_generate_gives(client: openai.OpenAI, reference: LLM) -> None:
    made = client.completions.create(model="story", prompt=PROMPT, n=3, seed=7, max_tokens=8)
    (wanted,) = reference.generate([PROMPT], SamplingParams(max_new_tokens=8, n=3, seed=7), use_tqdm=False)
    assert [choice.text for choice in made.choices] == [completion.text for completion in wanted.outputs]
    assert [choice.finish_reason for choice in made.choices] == ["length"] * 3
    assert len({choice.text for choice in made.choices}) > 1


def test_a_stream_adds_up_and_ends_once_and_then_has_its_usage(client: openai.OpenAI, reference: LLM) -> None:
    asked = {"model": "story", "prompt": PROMPT, "temperature": 0, "max_tokens": 10, "stream": True}
    *chunks, last = client.completions.create(**asked, stream_options={"include_usage": True})
    assert last.choices == []
    assert (last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.total_tokens) == (5, 10, 15)
    assert not any("usage" in chunk.model_fields_set for chunk in client.completions.create(**asked))
    (wanted,) = reference.generate(PROMPT, greedy(10))
    assert "".join(chunk.choices[0].text for chunk in chunks) == wanted.text
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert len({chunk.id for chunk in chunks}) == 1
    assert {chunk.object for chunk in chunks} == {"text_completion"}
    assert all(chunk.usage is None for chunk in chunks)


def test_log_probabilities(client: openai.OpenAI, reference: LLM) -> None:
    made = client.completions.create(model="story", prompt=PROMPT, temperature=0, max_tokens=6, logprobs=3)
    (wanted,) = reference.generate(PROMPT, greedy(6, logprobs=3))
    found = made.choices[0].logprobs
    assert found is not None
    assert wanted.logprobs is not None
    assert found.token_logprobs == pytest.approx(
        [entry[t] for entry, t in zip(wanted.logprobs, wanted.token_ids, strict=True)]
    )
    assert "".join(found.tokens or []) == wanted.text
    assert all(len(top) == 3 for top in found.top_logprobs or [])
    for offset, token in zip(found.text_offset or [], found.tokens or [], strict=True):
        assert wanted.text[offset:].startswith(token)
    asked = {"model": "story", "prompt": PROMPT, "temperature": 0, "max_tokens": 6, "logprobs": 3, "stream": True}
    parts = [chunk.choices[0].logprobs for chunk in client.completions.create(**asked)]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [value for part in parts for value in getattr(part, name)] == getattr(found, name)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_echo_begins_with_the_prompt_and_its_log_probabilities(
    client: openai.OpenAI, reference: LLM, stream: bool, count: int
) -> None:
    params = greedy(4, prompt_logprobs=True, prompt_top_logprobs=count, logprobs=count)
    (wanted,) = reference.generate(PROMPT, params)
    asked = {"model": "story", "prompt": PROMPT, "temperature": 0, "max_tokens": 4, "echo": True, "logprobs": count}
    made = client.completions.create(**asked, stream=stream)
    choices = [chunk.choices[0] for chunk in made] if stream else made.choices
    text = "".join(choice.text for choice in choices)
    tokens, logprobs, tops, offsets = (
        [value for choice in choices for value in getattr(choice.logprobs, name)]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    )
    assert text == PROMPT + wanted.text
    assert offsets[:3] == [0, 0, 4], "the first token stands for no text"
    assert (logprobs[0], tops[0]) == (None, None)
    assert logprobs[1:5] == pytest.approx(wanted.prompt_logprobs[1:])
    assert "".join(tokens[1:]) == text
    if not count:
        assert tops == [None] * 9
        return
    ids = [*wanted.prompt_token_ids, *wanted.token_ids]
    entries = [*wanted.prompt_top_logprobs, *wanted.logprobs]
    for i in range(1, 9):
        names = {reference.tokenizer.hf_tokenizer.decode([token]) for token in (ids[i], *entries[i])}
        assert set(tops[i]) == names
        assert sorted(tops[i].values(), reverse=True)[:count] == pytest.approx(
            sorted(entries[i].values())[::-1][:count]
        )
        assert tops[i][tokens[i]] == logprobs[i], "the token itself is one of them"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("logprobs", [None, 1])
def test_a_prompt_alone_shows_nothing_of_the_token_that_was_computed(
    server: Running, reference: LLM, stream: bool, logprobs: int | None
) -> None:
    (hidden,) = reference.generate(PROMPT, greedy(1))
    body = {"model": "story", "prompt": PROMPT, "max_tokens": 0, "temperature": 0, "echo": True, "logprobs": logprobs}
    more = {"return_token_ids": True, "stop": [hidden.text], "stream": stream}
    answer = server.post("/v1/completions", {**body, **more})
    text = answer.text.removeprefix("data: ").partition("\n")[0] if stream else answer.text
    (choice,) = json.loads(text)["choices"]
    assert (choice["text"], choice["token_ids"], choice["stop_reason"]) == (PROMPT, [], None)
    assert (choice["prompt_token_ids"], choice["finish_reason"]) == (hidden.prompt_token_ids, "length")


@pytest.mark.parametrize("count", [0, 2])
def test_prompt_log_probabilities_in_vllms_form(client: openai.OpenAI, reference: LLM, count: int) -> None:
    more = {"prompt_logprobs": count, "return_token_ids": True}
    made = client.completions.create(model="story", prompt=PROMPT, max_tokens=2, temperature=0, extra_body=more)
    first, *others = made.choices[0].prompt_logprobs  # type: ignore[attr-defined]
    assert first is None
    ids = made.choices[0].prompt_token_ids  # type: ignore[attr-defined]
    (wanted,) = reference.generate(PROMPT, greedy(1, prompt_logprobs=True, prompt_top_logprobs=2))
    for token, entry, own, top in zip(
        ids[1:], others, wanted.prompt_logprobs[1:], wanted.prompt_top_logprobs[1:], strict=True
    ):
        values = {token: own} | (top if count else {})
        assert {int(each): value["logprob"] for each, value in entry.items()} == pytest.approx(values)
        assert entry[str(token)]["decoded_token"] == reference.tokenizer.decode([token])


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({"top_k": 1}, {"top_k": 1}),
        ({"min_p": 1.0}, {"min_p": 1.0}),
        ({"repetition_penalty": 1.5, "temperature": 0}, {"repetition_penalty": 1.5, "temperature": 0}),
        ({"min_tokens": 9, "stop": ["a"]}, {"min_new_tokens": 9, "stop": ["a"]}),
        ({"stop_token_ids": [17]}, {"stop_token_ids": [17]}),
        ({"frequency_penalty": 1, "presence_penalty": -1.5}, {"frequency_penalty": 1, "presence_penalty": -1.5}),
        ({"top_p": 0.5, "ignore_eos": True}, {"top_p": 0.5, "ignore_eos": True}),
        ({"skip_special_tokens": False}, {"skip_special_tokens": False}),
        ({"logit_bias": {"5": -100, "29": 3.5}}, {"logit_bias": {5: -100, 29: 3.5}}),
    ],
)
def test_fields_mean_what_they_mean_in_sampling_params(
    server: Running, reference: LLM, more: dict[str, object], wanted: dict[str, object]
) -> None:
    body = {"model": "story", "prompt": PROMPT, "max_tokens": 10, "seed": 11, "return_token_ids": True, **more}
    (output,) = reference.generate(PROMPT, SamplingParams(**{"max_new_tokens": 10, "seed": 11, **wanted}))
    answer = server.post("/v1/completions", body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["token_ids"] == output.token_ids


def test_the_second_time_a_prompt_is_cached(client: openai.OpenAI) -> None:
    prompt = "A prompt that no other test has sent to this server before"
    asked = {"model": "story", "prompt": prompt, "temperature": 0, "max_tokens": 2}
    client.completions.create(**asked)
    again = client.completions.create(**asked).usage
    assert again.prompt_tokens_details.cached_tokens == again.prompt_tokens - 1
    salted = client.completions.create(**asked, extra_body={"cache_salt": "mine"}).usage
    assert salted.prompt_tokens_details.cached_tokens == 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_grammar_that_can_be_followed_no_further_is_the_requests_fault(
    server: Running, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_mask, calls = Matcher.fill_mask, count()

    def fails_later(matcher: Matcher, row: np.ndarray) -> bool:
        if next(calls) < 30:
            return fill_mask(matcher, row)
        monkeypatch.setattr(Matcher, "error", property(lambda matcher: "too many items"))
        row[:] = 0
        return True

    monkeypatch.setattr(Matcher, "fill_mask", fails_later)
    body = {"model": "story", "prompt": "x", "max_tokens": 300, "temperature": 0, "stream": stream}
    answer = server.post("/v1/completions", {**body, "guided_regex": "[a-z ]{200}"})
    if stream:
        found = sent_events(answer.text)[-1]["error"]
    else:
        assert answer.status_code == 400
        found = answer.json()["error"]
    wanted = ("invalid_request_error", "guided_regex", "no_token_allowed")
    assert (found["type"], found["param"], found["code"]) == wanted


# --- names of tokens, offsets, JSON on the wire ------------------------------------------------------------------------

NAMES = TokenNames(TOKENIZER, TOKENIZER.special_ids)
TEXT = "The fox 🦊 said: schön!"


def test_the_bytes_of_tokens_are_those_of_the_text() -> None:
    tokens = encode(TEXT)
    assert b"".join(NAMES[token].data for token in tokens) == TEXT.encode()
    parts = [NAMES[token].text for token in tokens if NAMES[token].text.startswith("bytes:")]
    assert parts, "this tokenizer cuts a fox"
    assert all(set(part.removeprefix("bytes:")) <= set("\\x0123456789abcdef") for part in parts)
    assert NAMES[2] == ("</s>", b"</s>", False)
    assert NAMES[tokens[0]].is_text


def test_offsets_are_where_the_tokens_begin() -> None:
    offsets = Offsets(NAMES)
    tokens = [1, *encode(TEXT)]
    at = [offsets.next(token) for token in tokens]
    assert at == sorted(at)
    for token, offset in zip(tokens, at, strict=True):
        if NAMES[token].is_text and not NAMES[token].text.startswith("bytes:"):
            assert TEXT[offset:].startswith(NAMES[token].text)


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


@pytest.mark.parametrize(
    ("tokens", "text", "wanted"),
    [
        ([3, 2, 4], "Once</s> upon", [0, 4, 8]),
        ([1, 1, 3, 2, 2, 4], "<s> Once</s></s> upon", [0, 0, 3, 8, 12, 16]),  # a tokenizer adds its own <s>
        ([1, 3, 2, 4], "Once upon", [0, 0, 4, 4]),
    ],
)
def test_special_tokens_that_the_client_wrote_itself_are_in_the_echo(
    tokens: list[int], text: str, wanted: list[int]
) -> None:
    offsets = Offsets(metaspace_names(), False, tokens, text)
    assert [offsets.next(token) for token in [*tokens, 5, 2, 6]] == [*wanted, *[len(text) + at for at in (0, 2, 2)]]


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
    written = dumps(text)
    assert json.loads(written) == text
    assert len(written.splitlines()) == 1

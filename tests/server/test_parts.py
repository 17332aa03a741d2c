"""Small parts: names of tokens, offsets, JSON on the wire, histograms, an answer that is cut off."""

import json

import pytest
import tokenizers
from tokenizers.decoders import Metaspace
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from nanoinfer.requests.tokenizer import Tokenizer
from nanoinfer.server.formatter import dumps
from nanoinfer.server.logprobs import Offsets, TokenNames, chat_logprobs, completion_logprobs
from tests.helpers.texts import TOKENIZER, encode

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

"""Tokenizer and IncrementalDetokenizer: decoding everything at once is the oracle for decoding token by token."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from nanoinfer.errors import InvalidRequestError
from nanoinfer.model.loader import resolve_model_path
from nanoinfer.requests.request_builder import RequestBuilder
from nanoinfer.requests.tokenizer import IncrementalDetokenizer, TokenIds, Tokenizer
from nanoinfer.sampling.grammar.vocabulary import byte_letters
from tests.helpers.texts import REPLACEMENT, TOKENIZER, PieceTokenizer, encode

PATH = resolve_model_path("story")


# --- all at once -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [list, tuple, np.array, lambda ids: [np.int64(token) for token in ids]])
@pytest.mark.parametrize("skips", [True, False])
def test_decode_gives_what_transformers_does_whatever_the_ids_come_in(given: Any, skips: bool) -> None:
    ids = encode("a 😀 . , é</s>b n't")
    expected = TOKENIZER.hf_tokenizer.decode(ids, skip_special_tokens=skips, clean_up_tokenization_spaces=False)
    assert TOKENIZER.decode(given(ids), skip_special_tokens=skips) == expected
    assert TOKENIZER.decode([]) == ""


def test_what_a_tokenizer_makes_of_its_text_itself_is_not_passed_over() -> None:
    class Loud(PreTrainedTokenizerFast):
        def _decode(self, *args: Any, **more: Any) -> str:
            return super()._decode(*args, **more).upper()

    assert Tokenizer(Loud.from_pretrained(PATH)).decode(encode("ab")) == "AB"


# --- characters ------------------------------------------------------------------------------------------------------


def test_a_replacement_character_in_the_text_itself_is_kept() -> None:
    text = f"{REPLACEMENT}a{REPLACEMENT}{REPLACEMENT}b{REPLACEMENT}"
    detokenizer = IncrementalDetokenizer(TOKENIZER)
    assert "".join(detokenizer.add(token) for token in encode(text)) + detokenizer.flush() == text


def with_byte_fallback() -> Tokenizer:
    """As those of Llama 2 and Mistral: a byte's token is 6 + byte, and ▁a is "a" at the start of a text, " a" elsewhere."""
    words = ["<unk>", "▁", "a", "▁a", "b", "▁b", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocab = {word: i for i, word in enumerate(words)}
    fast = FastTokenizer(models.BPE(vocab, [("▁", "a"), ("▁", "b")], unk_token="<unk>", byte_fallback=True))
    fast.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=fast, unk_token="<unk>"))


def as_bytes(text: str) -> list[int]:
    return [6 + byte for byte in text.encode()]


def test_spaces_survive_a_tokenizer_that_strips_the_first_one() -> None:
    tokenizer, emoji = with_byte_fallback(), as_bytes("😀")
    prompt, output = [3, 5], [3, 2, 5, *emoji, 3, 3, 3, 3, 5, 3, 3, 5, 4, *emoji, 5]
    assert tokenizer.decode(prompt) == "a b"  # the oracle strips what it should
    detokenizer = IncrementalDetokenizer(tokenizer, prompt)
    out = "".join(detokenizer.add(token) for token in output)
    assert "a b" + out == tokenizer.decode(prompt + output)
    assert out.startswith(" aa b😀 a a")


@pytest.mark.parametrize("prompt", [[], [3], as_bytes("語"), as_bytes("é語日本語日"), [3, *as_bytes("本日本日本日")]])
@pytest.mark.parametrize("shared", [0, 1, 2])
def test_characters_in_bytes_side_by_side_come_out_once(prompt: list[int], shared: int) -> None:
    """With byte fallback, a run of byte tokens is decoded as a whole: one byte more turns all of it into replacements."""
    tokenizer, text = with_byte_fallback(), "日本😀😀語é" * 3
    output = [*as_bytes(text), 3, *as_bytes("é"), 5]
    prompt, output = [*prompt, *output[:shared]], output[shared:]  # the prompt may end inside a character
    detokenizer = IncrementalDetokenizer(tokenizer, prompt)
    out = [detokenizer.add(token) for token in output]
    assert "".join(out) + detokenizer.flush() == f"{text} aé b"
    assert max(map(len, out)) == 2  # each as soon as it is certain


def test_an_invalid_byte_leaves_what_was_released_before() -> None:
    detokenizer = IncrementalDetokenizer(with_byte_fallback())
    out = [detokenizer.add(token) for token in [*as_bytes("😀"), 6 + 0xFF, 2, *as_bytes("é")]]
    assert out == ["", "", "", "😀", "", f"{REPLACEMENT}a", "", "é"]


def spaced(byte: int) -> int:
    """The token of " " and one byte, in `with_spaced_bytes`."""
    return 256 + byte


def with_spaced_bytes() -> Tokenizer:
    """Byte-level: a token per byte, and one per byte with a space before it, as in the vocabulary of Llama 3."""
    letters = {byte: letter for letter, byte in byte_letters().items()}
    vocab = {letters[byte]: byte for byte in range(256)} | {f"Ġ{letters[byte]}": spaced(byte) for byte in range(256)}
    fast = FastTokenizer(models.BPE(vocab, []))
    fast.decoder = decoders.ByteLevel()
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=fast))


@pytest.mark.parametrize("byte_token", [lambda byte: byte, lambda byte: 6 + byte], ids=["byte level", "byte fallback"])
def test_a_prompt_that_ends_within_a_character_leaves_nothing_to_the_output(byte_token: Callable[[int], int]) -> None:
    tokenizer = with_byte_fallback() if byte_token(0) else with_spaced_bytes()
    text = [byte_token(byte) for byte in "日本😀".encode()] if byte_token(0) else list("a日本😀".encode())
    b, stray = 4 if byte_token(0) else ord("b"), byte_token(0xFF)
    for cut in (1, 2, 3):
        prompt = text[:-cut]
        for output, expected in (([b], "b"), ([], ""), ([stray, stray, b], f"{REPLACEMENT}{REPLACEMENT}b")):
            detokenizer = IncrementalDetokenizer(tokenizer, prompt)
            assert "".join(detokenizer.add(token) for token in output) + detokenizer.flush() == expected
    for prompt in ([stray] * 3, [stray] * 40, [b] + [stray] * 40):
        detokenizer = IncrementalDetokenizer(tokenizer, prompt)
        assert detokenizer.add(b) == "b"


def test_a_space_before_a_prompts_half_character_is_the_prompts() -> None:
    first, *rest = "é".encode()
    detokenizer = IncrementalDetokenizer(with_spaced_bytes(), [ord("a"), spaced(first)])
    assert [detokenizer.add(token) for token in rest] == ["é"]
    assert IncrementalDetokenizer(with_spaced_bytes(), [ord("a"), spaced(first)]).add(ord("b")) == "b"


def test_text_goes_on_behind_special_tokens_that_are_not_shown() -> None:
    tokenizer = with_byte_fallback()
    detokenizer = IncrementalDetokenizer(tokenizer, [3, *[0] * 20])
    assert tokenizer.special_ids == {0}
    assert [detokenizer.add(token) for token in [*[0] * 20, 5]] == [*[""] * 20, " b"]


class Watched(Tokenizer):
    """Counts how many tokens it decodes."""

    def __init__(self, tokenizer: Tokenizer):
        super().__init__(tokenizer.hf_tokenizer)
        self.decoded = 0

    def decode(self, token_ids: TokenIds, skip_special_tokens: bool = True) -> str:
        self.decoded += len(token_ids)
        return super().decode(token_ids, skip_special_tokens)


@pytest.mark.parametrize(
    ("make", "stray"),
    [
        (with_spaced_bytes, [0xFF]),
        (with_spaced_bytes, [0x80]),
        (with_spaced_bytes, [0xE6, 0x97]),
        (with_spaced_bytes, [spaced(0xE6)]),
        (with_byte_fallback, [6 + 0xFF]),
        (with_byte_fallback, [6 + 0xE6, 6 + 0x97]),
    ],
)
def test_stray_bytes_come_out_as_they_come_in_and_cost_the_decoding_of_a_few(
    make: Callable[[], Tokenizer], stray: list[int]
) -> None:
    tokenizer, count = Watched(make()), 4_000
    ids = stray * (count // len(stray))
    detokenizer, held, out = IncrementalDetokenizer(tokenizer), 0, []
    for i, token in enumerate(ids):
        out.append(detokenizer.add(token))
        held = held + 1 if not out[-1] else 0
        assert held <= 9, f"nothing comes out at token {i}"
    assert tokenizer.decoded < 25 * count
    assert "".join(out) + detokenizer.flush() == tokenizer.decode(ids)


def test_a_token_costs_the_decoding_of_a_few_however_long_the_text() -> None:
    class Pieces(PieceTokenizer):
        longest = 0

        def decode(self, token_ids: Sequence[int]) -> str:
            self.longest = max(self.longest, len(token_ids))
            return super().decode(token_ids)

    tokenizer = Pieces([f"{i} " for i in range(300)])
    detokenizer = IncrementalDetokenizer(tokenizer)
    assert "".join(detokenizer.add(token) for token in range(300)) == "".join(tokenizer.pieces)
    assert tokenizer.longest <= 3 * IncrementalDetokenizer.CONTEXT_TOKENS


# --- stop strings ----------------------------------------------------------------------------------------------------


def test_half_a_character_after_a_stop_string_is_not_flushed() -> None:
    detokenizer = IncrementalDetokenizer(TOKENIZER, stop=["END"])
    assert "".join(detokenizer.add(token) for token in encode("aEND😀")[:-1]) == "a"
    assert detokenizer.flush() == ""


# --- prompts -------------------------------------------------------------------------------------------------------


def test_special_tokens_are_added_by_encode_and_left_out_by_decode() -> None:
    ids = TOKENIZER.encode("Once upon")
    assert ids == AutoTokenizer.from_pretrained(PATH)("Once upon")["input_ids"]
    assert TOKENIZER.decode([*ids, *TOKENIZER.hf_tokenizer.all_special_ids]) == "Once upon"


def test_a_directory_without_tokenizer_files_has_no_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert Tokenizer.from_pretrained(tmp_path) is None
    assert Tokenizer.from_pretrained(PATH) is not None


# --- texts that are refused -------------------------------------------------------------------------------------------


class Counted(Tokenizer):
    """The story's tokenizer, which counts the texts it is given."""

    def __init__(self) -> None:
        super().__init__(TOKENIZER.hf_tokenizer)
        self.texts = 0

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        self.texts += 1
        return super().encode(text, add_special_tokens)


def test_a_text_that_cannot_fit_is_not_tokenized_and_one_that_may_is() -> None:
    tokenizer = Counted()
    builder, longest = RequestBuilder(10_000, (), tokenizer), tokenizer.max_chars_per_token
    assert longest is not None
    with pytest.raises(
        InvalidRequestError,
        match=rf"^prompt: has {64 * longest + 1} characters: .* {64 * longest} ",
    ):
        builder.prompt_ids("x" * (64 * longest + 1), max_context_len=64)
    with pytest.raises(ValueError, match=r"^messages: has \d+ characters"):
        builder.chat_prompt([{"role": "user", "content": "x" * 64 * longest}], None, 64)
    assert tokenizer.texts == 0
    assert len(builder.prompt_ids("x" * (64 * longest), max_context_len=64)) > 64  # refused after that
    assert tokenizer.texts == 1


class PanicException(BaseException):
    """What a failure in a tokenizer written in Rust is to Python, by its name."""


@pytest.mark.parametrize("error", [PanicException("no such byte"), KeyboardInterrupt()])
def test_a_panic_in_the_tokenizer_refuses_the_text_and_an_interrupt_interrupts(error: BaseException) -> None:
    class Broken:
        eos_token_id, added_tokens_decoder, all_special_ids = None, dict[int, Any](), list[int]()

        def __call__(self, text: str, **options: Any) -> Any:
            raise error

        def decode(self, token_ids: list[int], **options: Any) -> Any:
            raise error

    builder = RequestBuilder(100, (), Tokenizer(Broken()))
    expected = InvalidRequestError if isinstance(error, PanicException) else KeyboardInterrupt
    with pytest.raises(expected) as caught:
        builder.prompt_ids("abc")
    with pytest.raises(ValueError if isinstance(error, PanicException) else KeyboardInterrupt):
        Tokenizer(Broken()).decode([1])
    if isinstance(error, PanicException):
        assert "prompt: the tokenizer fails on this text: no such byte" in str(caught.value)

"""A text that is too long for certain is refused before it is tokenized; one that may fit never is."""

import random
import unicodedata
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as FastTokenizer
from transformers import PreTrainedTokenizerFast

from nanoinfer.errors import InvalidRequestError
from nanoinfer.requests.request_builder import RequestBuilder
from nanoinfer.requests.text_bound import max_chars_per_token
from nanoinfer.requests.tokenizer import Tokenizer
from tests.helpers.texts import TOKENIZER

STORY = TOKENIZER.hf_tokenizer
ALPHABET = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
BYTES = {f"<0x{byte:02X}>": byte for byte in range(256)}


def fast(model: Any, normalizer: Any = None, pre_tokenizer: Any = None, added: tuple[Any, ...] = ()) -> Any:
    tokenizer = FastTokenizer(model)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.add_tokens(list(added))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def byte_level(vocab: dict[str, int] = ALPHABET) -> Any:
    return models.BPE({**vocab, "ab": 256, "abc": 257}, [("a", "b"), ("ab", "c")])


def with_bytes(vocab: dict[str, int] = BYTES) -> Any:
    return models.BPE({**vocab, "a": 256}, [], byte_fallback=True)


def normalize(*steps: Any) -> Any:
    return normalizers.Sequence(list(steps))


def in_turn(*steps: Any) -> Any:
    return pre_tokenizers.Sequence(list(steps))


def post_processed(tokenizer: Any, *template: str) -> Any:
    steps = [processors.TemplateProcessing(list(template), special_tokens=[("a", 0)])]
    tokenizer.backend_tokenizer.post_processor = processors.Sequence(steps)
    return tokenizer


class Deletes:
    """A normalizer written in Python."""

    def normalize(self, text: Any) -> None:
        text.clear()


def in_python(tokenizer: Any) -> Any:
    tokenizer.backend_tokenizer.normalizer = normalizers.Normalizer.custom(Deletes())
    return tokenizer


BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False)
WORDS = pre_tokenizers.Split(Regex(r"\p{N}{1,3}| ?\p{L}+|\s+"), "isolated")
BY_WORDS = in_turn(WORDS, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
EOS = AddedToken("<|endoftext|>", normalized=False)
LIGATURE = AddedToken("\ufdfa", normalized=True)  # 18 characters after NFKD
CERTAIN = {
    "bytes": (fast(byte_level(), None, BYTE_LEVEL), 3),
    "as Llama 3": (fast(byte_level(), None, BY_WORDS, (EOS,)), 13),
    "as Qwen": (fast(byte_level(), normalizers.NFC(), BY_WORDS, (EOS,)), 52),
    "as Falcon": (fast(byte_level(), None, in_turn(BYTE_LEVEL, pre_tokenizers.Digits(), WORDS)), 3),
    "as Llama 2": (
        fast(
            with_bytes(),
            normalize(normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")),
            None,
            (AddedToken("<|unknown|>", normalized=True),),
        ),
        12,
    ),
    "as Mistral": (fast(with_bytes(), None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False)), 6),
    "as Gemma": (
        fast(with_bytes(), normalizers.Replace(" ", "▁"), pre_tokenizers.Split(" ", "merged_with_previous")),
        6,
    ),
    "bytes as a normalizer": (fast(byte_level(), normalize(normalizers.NFD(), normalizers.ByteLevel()), WORDS), 3),
    "an added token that decomposes and composes": (
        fast(byte_level(), normalizers.NFKC(), BYTE_LEVEL, (LIGATURE,)),
        72,
    ),
    "an added token that grows": (
        fast(byte_level(), normalizers.Replace("x", 10 * "y"), BYTE_LEVEL, (AddedToken("x", normalized=True),)),
        10,
    ),
    "composed twice": (fast(byte_level(), normalize(normalizers.NFC(), normalizers.NFC()), BYTE_LEVEL), 48),
    "a start token": (post_processed(fast(byte_level(), None, BYTE_LEVEL), "a", "$A"), 3),
}
UNCERTAIN = {
    "no fast tokenizer": object(),
    "unknown words": fast(models.WordPiece({"a": 0, "[UNK]": 1})),
    "bytes without a token": fast(byte_level(dict(list(ALPHABET.items())[1:])), None, BYTE_LEVEL),
    "fallback without a token": fast(with_bytes(dict(list(BYTES.items())[1:]))),
    "unknown characters": fast(models.BPE({"a": 0, "?": 1}, [], unk_token="?", fuse_unk=True)),
    "spaces removed": fast(byte_level(), normalizers.Strip(), BYTE_LEVEL),
    "shorter for longer": fast(byte_level(), normalizers.Replace("  ", " "), BYTE_LEVEL),
    "patterns replaced": fast(byte_level(), normalizers.Replace(Regex(" +"), "    "), BYTE_LEVEL),
    "split and removed": fast(
        byte_level(), None, pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), BYTE_LEVEL])
    ),
    "separators removed": fast(
        byte_level(), None, pre_tokenizers.Sequence([pre_tokenizers.Split(" ", "removed"), BYTE_LEVEL])
    ),
    "characters after the first in a word have other names": fast(
        models.BPE(ALPHABET, [], continuing_subword_prefix="##"), None, BYTE_LEVEL
    ),
    "a word's last character has another name": fast(
        models.BPE(ALPHABET, [], end_of_word_suffix="</w>"), None, BYTE_LEVEL
    ),
    "bytes replaced": fast(byte_level(), normalize(normalizers.ByteLevel(), normalizers.Replace("Ġ", "▁"))),
    "bytes and then spaces": fast(byte_level(), None, in_turn(BYTE_LEVEL, pre_tokenizers.Metaspace())),
    "written in Python": in_python(fast(byte_level(), None, BYTE_LEVEL)),
    "a template without the text": post_processed(fast(byte_level(), None, BYTE_LEVEL), "a"),
    "takes spaces beside it": fast(byte_level(), None, BYTE_LEVEL, (AddedToken("<m>", lstrip=True),)),
}


@pytest.mark.parametrize("name", CERTAIN)
def test_the_longest_token_bounds_the_characters(name: str) -> None:
    tokenizer, longest = CERTAIN[name]
    assert max_chars_per_token(tokenizer) == longest


@pytest.mark.parametrize("name", UNCERTAIN)
def test_there_is_no_bound_where_characters_may_get_lost(name: str) -> None:
    assert max_chars_per_token(UNCERTAIN[name]) is None


def test_no_text_has_more_characters_than_its_tokens_can_stand_for() -> None:
    rng = random.Random(0)
    composed = ["e\u0301", "\u1100\u1161\u11a8", "\u03b1\u0313\u0300\u0345"]  # one character each after NFC
    longest_tokens = ["<|endoftext|>", "<|unknown|>", "y" * 10, unicodedata.normalize("NFKD", "\ufdfa")]
    parts = ["a", "abc", " ", "\n", *composed, "中", "😀", "Once upon", "\0", "\u200d", "x", *longest_tokens]
    for tokenizer in [STORY, *(tokenizer for tokenizer, _ in CERTAIN.values())]:
        longest = max_chars_per_token(tokenizer)
        assert longest is not None
        texts = [rng.choice(parts) * rng.randrange(1, 30) for _ in range(30)]
        for text in [*texts, *("".join(rng.choices(parts, k=20)) for _ in range(30))]:
            assert len(text) <= longest * len(tokenizer(text)["input_ids"])


class Counted(Tokenizer):
    """The story's tokenizer, which counts the texts it is given."""

    def __init__(self) -> None:
        super().__init__(STORY)
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
        match=rf"^prompt: has {64 * longest + 1} characters: must not exceed {64 * longest} ",
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

    builder = RequestBuilder(100, (), Tokenizer(Broken()))
    expected = InvalidRequestError if isinstance(error, PanicException) else KeyboardInterrupt
    with pytest.raises(expected) as caught:
        builder.prompt_ids("abc")
    if isinstance(error, PanicException):
        assert "prompt: the tokenizer fails on this text: no such byte" in str(caught.value)

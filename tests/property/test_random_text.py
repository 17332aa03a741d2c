"""Texts at random: what comes out token by token is what decoding all at once gives, and no token stands for more
characters than its bound says."""

import random
import unicodedata
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from nanoinfer.requests.text_bound import max_chars_per_token
from nanoinfer.requests.tokenizer import IncrementalDetokenizer
from tests.helpers.texts import REPLACEMENT, TOKENIZER, PieceTokenizer, certain, encode, feed

VOCAB_SIZE = len(TOKENIZER.hf_tokenizer)
SPECIAL = TOKENIZER.hf_tokenizer.all_special_ids
# The tokens that are single bytes and no ASCII: each is a part of a character.
PARTS = [token for token in range(VOCAB_SIZE) if TOKENIZER.decode([token]) == REPLACEMENT]
quick = settings(max_examples=80)
letters = st.sampled_from(list("ab ,é中한😀👩\u200d👧\u0301\u0308\U0001f3fd\n0123"))
texts = st.text(max_size=30) | st.text(letters, max_size=30)
any_ids = st.lists(
    st.integers(0, VOCAB_SIZE - 1) | st.sampled_from(PARTS) | st.sampled_from(SPECIAL) | st.sampled_from(PARTS[-40:]),
    max_size=40,
)
emoji_ids = st.lists(st.sampled_from(["😀", "é", "中", "a", "</s>"]), max_size=12).map(
    lambda pieces: [token for piece in pieces for token in encode(piece)]
)


@quick
@given(texts)
def test_text_comes_out_as_soon_as_a_character_is_whole_and_never_before(text: str) -> None:
    ids = encode(text)
    detokenizer, out = IncrementalDetokenizer(TOKENIZER), ""
    for i, token in enumerate(ids):
        out += detokenizer.add(token)
        assert out == certain(ids[: i + 1])
    assert out + detokenizer.flush() == text


@quick
@given(any_ids | emoji_ids)
def test_any_token_ids_come_out_as_decoded_at_once(ids: list[int]) -> None:
    detokenizer, out = IncrementalDetokenizer(TOKENIZER), ""
    for i, token in enumerate(ids):
        out += detokenizer.add(token)
        whole = TOKENIZER.decode(ids[: i + 1])
        assert whole.startswith(out)
        assert len(out) >= max(len(certain(ids[: i + 1])), len(whole) - 3)  # a character's first bytes are at most 3
    assert out + detokenizer.flush() == TOKENIZER.decode(ids)


@quick
@given(any_ids | emoji_ids, any_ids | emoji_ids)
def test_output_goes_on_where_the_prompt_ended(prompt: list[int], output: list[int]) -> None:
    """Also within a character: it belongs to the output that completes it. If none does, its U+FFFD is the prompt's."""
    detokenizer = IncrementalDetokenizer(TOKENIZER, prompt)
    out = "".join(detokenizer.add(token) for token in output) + detokenizer.flush()
    before, whole = TOKENIZER.decode(prompt), TOKENIZER.decode(prompt + output)
    shared = next(n for n in range(len(before), -1, -1) if whole.startswith(before[:n]))
    assert out == whole[shared:]


short = st.text("ab", min_size=1, max_size=4)


@settings(quick, max_examples=300)
@given(st.lists(st.text("abc", max_size=3), max_size=12), st.lists(short, min_size=1, max_size=3))
def test_text_ends_before_the_first_stop_string_however_it_is_cut(pieces: list[str], stop: list[str]) -> None:
    """The oracle looks for the stop strings in all of the text after every token."""
    wanted = end = None
    for i in range(len(pieces)):
        text = "".join(pieces[: i + 1])
        found = [text.find(one) for one in stop if one in text]
        if found:
            wanted, end = text[: min(found)], i
            break
    out, detokenizer = feed(pieces, stop)
    assert detokenizer.stopped == (wanted is not None)
    assert "".join(out) + detokenizer.flush() == ("".join(pieces) if wanted is None else wanted)
    if end is not None:
        assert out[end + 1 :] == [""] * (len(pieces) - end - 1)


@settings(quick, max_examples=100)
@given(st.lists(st.text("abc", max_size=3), max_size=12), st.lists(short, min_size=1, max_size=3))
def test_only_what_may_begin_a_stop_string_is_held_back(pieces: list[str], stop: list[str]) -> None:
    detokenizer, out, text = IncrementalDetokenizer(PieceTokenizer(pieces), stop=stop), "", ""
    for token, piece in enumerate(pieces):
        out, text = out + detokenizer.add(token), text + piece
        if detokenizer.stopped:
            return
        held = text[len(out) :]
        assert text == out + held
        assert not held or any(one.startswith(held) for one in stop)


ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
# Characters that are composed, or stand for several, and what they decompose into.
COMPOSED = ["é", "ᾂ", "ǖ", "각", "ﷺ", "①", "ﬃ"]
DECOMPOSED = [unicodedata.normalize("NFKD", character) for character in COMPOSED]
PIECES = ["a", "b", " ", "  ", "\n", "1", ".", "x", "Ġ", "▁", "²", "中", "😀", "\0", "<s>", *COMPOSED, *DECOMPOSED]
LONG = ["y" * 10, "▁" * 10, "a" * 10, "ᾂᾂᾂ"]
BEHAVIORS = ["isolated", "merged_with_previous", "merged_with_next", "contiguous", "removed"]


def normalizer_step(rng: random.Random) -> Any:
    a, b = rng.choice(PIECES), rng.choice([*PIECES, *LONG, ""])
    kinds: list[Callable[[], Any]] = [
        *(normalizers.NFC, normalizers.NFD, normalizers.NFKC, normalizers.NFKD) * 2,
        *(lambda: normalizers.Prepend("▁"), lambda: normalizers.Replace(" ", "▁")) * 2,
        *(normalizers.ByteLevel, lambda: normalizers.Replace(a, b), lambda: normalizers.Replace("x", "y" * 10)) * 2,
        *(normalizers.Strip, normalizers.StripAccents, lambda: normalizers.Replace(Regex(" +"), b)),
    ]
    return rng.choice(kinds)()


def pre_tokenizer_step(rng: random.Random) -> Any:
    pattern = rng.choice([" ", "a", "Ġ", Regex(r"\p{L}+"), Regex(r"\s")])
    behavior, either = rng.choice(BEHAVIORS), rng.random() < 0.5
    kinds: list[Callable[[], Any]] = [
        *(lambda: pre_tokenizers.ByteLevel(add_prefix_space=either),) * 6,
        *(lambda: pre_tokenizers.Split(pattern, behavior, either), lambda: pre_tokenizers.Digits(either)),
        *(lambda: pre_tokenizers.Punctuation(behavior), pre_tokenizers.Metaspace, pre_tokenizers.WhitespaceSplit),
    ]
    return rng.choice(kinds)()


def bpe(rng: random.Random) -> Any:
    """A model with tokens for all bytes, in one way or the other (as a rule), and a few merges."""
    fallback = rng.random() < 0.4
    tokens = [*(BYTES if fallback else ALPHABET)]
    if rng.random() < 0.08:
        del tokens[rng.randrange(256)]
    tokens += [character for character in "▁ab" if character not in tokens and rng.random() < 0.5]
    merges = []
    for _ in range(rng.randrange(4)):
        left, right = rng.choice(["Ġ", "▁", "a", *tokens[-4:]]), rng.choice(["a", *tokens[-4:]])
        if left in tokens and right in tokens and left + right not in tokens:
            tokens.append(left + right)
            merges.append((left, right))
    options: dict[str, Any] = {"byte_fallback": fallback and rng.random() < 0.95}
    if rng.random() < 0.1:
        options |= {"unk_token": tokens[0], "fuse_unk": True}
    if rng.random() < 0.1:
        merges, options[rng.choice(["continuing_subword_prefix", "end_of_word_suffix"])] = [], "##"
    return models.BPE({token: i for i, token in enumerate(tokens)}, merges, **options)


def build(rng: random.Random) -> Tokenizer:
    tokenizer = Tokenizer(bpe(rng))
    chosen = rng.sample([*PIECES, *LONG], k=rng.choice([0, 0, 1, 2]))
    added = [AddedToken(text, normalized=rng.random() < 0.6, rstrip=rng.random() < 0.05) for text in chosen]
    added_first = rng.random() < 0.5
    if added_first:
        tokenizer.add_tokens(added)
    if count := rng.choice([0, 0, 1, 1, 2, 3]):
        tokenizer.normalizer = normalizers.Sequence([normalizer_step(rng) for _ in range(count)])
    if count := rng.choice([0, 1, 1, 1, 2]):
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizer_step(rng) for _ in range(count)])
    if not added_first:
        tokenizer.add_tokens(added)
    if rng.random() < 0.1:
        template = rng.choice([["s"], ["s", "$A"]])
        tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=[("s", 0)])
    return tokenizer


@pytest.mark.parametrize("seed", range(4))
def test_no_text_has_more_characters_than_its_tokens_can_stand_for(seed: int) -> None:
    rng, bounded = random.Random(seed), 0
    for _ in range(300):
        tokenizer = build(rng)
        longest = max_chars_per_token(SimpleNamespace(backend_tokenizer=tokenizer))
        if longest is None:
            continue
        bounded += 1
        vocab = tokenizer.get_vocab()
        texts = [*PIECES, *LONG, *sorted(vocab.keys() - set(BYTES), key=len)[-3:]]
        texts += ["".join(rng.choices(texts, k=3)) for _ in range(3)]
        texts += [unicodedata.normalize("NFD", text) for text in texts[-6:]]
        for text in texts:
            for repeated in (text, text * 20, text.replace("Ġ", " ") * 20):
                tokens = tokenizer.encode(repeated).ids
                assert len(repeated) <= longest * len(tokens), (repeated, tokens, tokenizer.to_str())
    assert bounded > 60

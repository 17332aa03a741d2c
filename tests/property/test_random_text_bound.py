"""The bound on the characters of a token, for tokenizers put together at random and texts that are meant to break it."""

import random
import unicodedata
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from nanoinfer.requests.text_bound import max_chars_per_token

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

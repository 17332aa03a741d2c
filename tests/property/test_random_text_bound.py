"""The bound on the characters of a token, for tokenizers put together at random and texts that are meant to break it."""

import unicodedata
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer
from transformers import PreTrainedTokenizerFast

from nanoinfer.requests.text_bound import max_chars_per_token

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
# Characters that compose, decompose, stand for bytes or for spaces, and words of them.
COMPOSED = ["é", "ᾂ", "각", "ǖ", "ﷺ", "①", "ﬃ"]
DECOMPOSED = [unicodedata.normalize("NFKD", character) for character in COMPOSED]
PIECES = [
    "a",
    "b",
    "ab",
    " ",
    "  ",
    "\n",
    "1",
    ".",
    "x",
    "Ġ",
    "▁",
    "²",
    "中",
    "😀",
    "\0",
    "<s>",
    *COMPOSED,
    *DECOMPOSED,
]
BEHAVIORS = ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]

pieces = st.sampled_from(PIECES)
normalizer_steps = st.sampled_from([normalizers.NFC(), normalizers.NFD(), normalizers.NFKC(), normalizers.NFKD()]) | (
    st.sampled_from([normalizers.ByteLevel(), normalizers.Strip(), normalizers.StripAccents(), normalizers.Lowercase()])
    | st.builds(normalizers.Prepend, pieces)
    | st.builds(normalizers.Replace, pieces, st.sampled_from(["", *PIECES, "y" * 10, "▁" * 10]))
    | st.builds(normalizers.Replace, st.sampled_from([Regex(" +"), Regex(".")]), pieces)
)
pre_tokenizer_steps = (
    st.builds(pre_tokenizers.ByteLevel, add_prefix_space=st.booleans(), use_regex=st.booleans())
    | st.builds(pre_tokenizers.Split, pieces | st.just(Regex(r"\p{L}+")), st.sampled_from(BEHAVIORS), st.booleans())
    | st.builds(pre_tokenizers.Punctuation, st.sampled_from(BEHAVIORS))
    | st.builds(pre_tokenizers.Metaspace, replacement=st.sampled_from("▁Ġ_"))
    | st.sampled_from([pre_tokenizers.Digits(True), pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Whitespace()])
)
added_tokens = st.builds(AddedToken, pieces, normalized=st.booleans(), single_word=st.booleans()) | st.builds(
    AddedToken, pieces, rstrip=st.booleans()
)


@st.composite
def bpe(draw: Any) -> Any:
    """A BPE model, as a rule with tokens for all bytes, in one way or the other, and a few merges."""
    kind = draw(st.sampled_from(["alphabet", "bytes", "both"]))
    tokens = [*(BYTES if kind != "alphabet" else []), *(ALPHABET if kind != "bytes" else [])]
    rare = st.sampled_from([False] * 7 + [True])
    if draw(rare):
        tokens = tokens[1:] if draw(st.booleans()) else tokens[:-1]
    tokens += [character for character in "▁ab" if character not in tokens and draw(st.booleans())]
    merges = []
    for _ in range(draw(st.integers(0, 4))):
        left, right = (
            draw(st.sampled_from(["Ġ", "▁", "a", "b", *tokens[-6:]])),
            draw(st.sampled_from(["a", *tokens[-6:]])),
        )
        if left in tokens and right in tokens and left + right not in tokens:
            tokens.append(left + right)
            merges.append((left, right))
    vocab = {token: i for i, token in enumerate(tokens)}
    options: dict[str, Any] = {"byte_fallback": kind != "alphabet" and not draw(rare)}
    if draw(rare):
        options |= {"unk_token": tokens[0], "fuse_unk": True}
    if not merges and draw(rare):
        options[draw(st.sampled_from(["continuing_subword_prefix", "end_of_word_suffix"]))] = "##"
    return models.BPE(vocab, merges, **options)


@st.composite
def tokenizers(draw: Any) -> Any:
    tokenizer = FastTokenizer(draw(bpe()))
    added = draw(st.lists(added_tokens, max_size=2))
    early = draw(st.booleans())
    if early:
        tokenizer.add_tokens(added)
    if steps := draw(st.lists(normalizer_steps, max_size=2)):
        tokenizer.normalizer = normalizers.Sequence(steps) if len(steps) > 1 else steps[0]
    if steps := draw(st.lists(pre_tokenizer_steps, max_size=2)):
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps) if len(steps) > 1 else steps[0]
    if not early:
        tokenizer.add_tokens(added)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@settings(max_examples=600, deadline=None, derandomize=True)
@given(tokenizers(), st.lists(st.lists(pieces, min_size=1, max_size=3).map("".join), min_size=1, max_size=3))
def test_no_text_has_more_characters_than_its_tokens_can_stand_for(tokenizer: Any, words: list[str]) -> None:
    longest = max_chars_per_token(tokenizer)
    if longest is None:
        return
    added = [token.content for token in tokenizer.added_tokens_decoder.values()]
    long = sorted((token for token in tokenizer.get_vocab() if token not in BYTES), key=len)[-4:]
    forms = [unicodedata.normalize(form, text) for text in added for form in ("NFD", "NFKD")]
    for text in [*PIECES, *words, *added, *long, *forms, "y" * 10, "▁" * 10]:
        for repeated in (text, text * 20, text.replace("Ġ", " ") * 20):
            assert len(repeated) <= longest * len(tokenizer(repeated)["input_ids"])

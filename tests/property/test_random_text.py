"""Texts at random: what comes out token by token is what decoding all at once gives."""

from hypothesis import given, settings
from hypothesis import strategies as st

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

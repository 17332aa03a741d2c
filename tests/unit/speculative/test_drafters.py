"""The drafters, each by itself: what they propose is what was seen before, and they change nothing."""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoinfer import SamplingParams
from nanoinfer.cache.radix_cache import RadixCache
from nanoinfer.requests.req import Req
from nanoinfer.sampling.grammar.compiler import Grammars
from nanoinfer.speculative.draft_model import PrefixStamps
from nanoinfer.speculative.drafters import (
    GrammarDrafter,
    NgramDrafter,
    SuffixIndex,
    TreeDrafter,
    continuation,
)
from tests.helpers.texts import TOKENIZER
from tests.helpers.trees import make_cache, put


def make_req(tokens: Sequence[int], max_new_tokens: int = 64, **fields: Any) -> Req:
    return Req(0, np.array(tokens), SamplingParams(max_new_tokens=max_new_tokens, temperature=0), **fields)


# --- ngram -----------------------------------------------------------------------------------------------------------


def drafts_of(tokens: Sequence[int], most: int) -> list[int]:
    (drafts,) = NgramDrafter().propose([make_req(tokens)], [most])
    return drafts


@given(st.lists(st.integers(0, 2), min_size=1, max_size=30), st.integers(1, 9))
def test_drafts_follow_an_occurrence_of_the_longest_suffix(tokens: list[int], most: int) -> None:
    drafts = drafts_of(tokens, most)
    lengths = range(len(tokens) - 1, 1, -1)
    ends = {k: [e for e in range(k, len(tokens)) if tokens[e - k : e] == tokens[-k:]] for k in lengths}
    longest = next((k for k in lengths if ends[k]), 0)
    if not longest:
        assert drafts == []
        return
    assert len(drafts) == most
    repeated = []
    for end in ends[longest]:  # a text that goes on as it did behind that occurrence
        text = list(tokens)
        for i in range(most):
            text.append(text[end + i])
        repeated.append(text[len(tokens) :])
    assert drafts in repeated


def test_each_request_has_its_own_tokens_and_its_own_limit() -> None:
    reqs = [make_req([1, 2, 3, 1, 2]), make_req([6, 7]), make_req([1, 2, 9, 9, 9, 1, 2])]
    assert NgramDrafter().propose(reqs, [1, 3, 3]) == [[3], [], [9, 9, 9]]


def test_only_new_tokens_are_read_and_drafts_that_were_wrong_are_forgotten() -> None:
    drafter, req = NgramDrafter(), make_req([1, 2, 3, 4, 1, 2])
    assert drafter.propose([req], [3]) == [[3, 4, 1]]
    req.token_ids[6:9] = [3, 4, 1]  # as the scheduler writes them
    req.append(3)
    req.append(5)  # the second draft was wrong
    assert drafter.propose([req], [3]) == [[]], "4 follows 3, but the text says 3 5"
    assert drafter._indices[req].size == req.num_tokens
    req.append(1)
    req.append(2)
    fresh = NgramDrafter().propose([req], [4])
    assert drafter.propose([req], [4]) == fresh == [[3, 5, 1, 2]]


# --- tree ------------------------------------------------------------------------------------------------------------

Sequences = list[list[int]]


def whole(tokens: Sequence[int], page_size: int) -> list[int]:
    return list(tokens[: len(tokens) - len(tokens) % page_size])


def known_continuations(stored: Sequences, tokens: Sequence[int], count: int, page_size: int) -> set[tuple[int, ...]]:
    """What follows `tokens` in any of the sequences, as far as each goes; the empty one if it is not known."""
    kept = [whole(each, page_size) for each in stored]
    return {tuple(each[len(tokens) : len(tokens) + count]) for each in kept if each[: len(tokens)] == list(tokens)}


@given(
    page_size=st.sampled_from([1, 2, 4]),
    stored=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=8),
    tokens=st.lists(st.integers(0, 2), max_size=9),
    count=st.integers(1, 8),
    key=st.sampled_from(["a", None]),
)
def test_a_continuation_is_one_of_those_that_were_stored_under_the_same_key(
    page_size: int, stored: Sequences, tokens: list[int], count: int, key: str | None
) -> None:
    cache = make_cache(256, page_size)
    for i, each in enumerate(stored):
        put(cache, each, "a" if i % 3 == 2 else None)
    before = str(cache), [(node.last_access_time, node.hit_count) for _, node in cache.nodes()], cache._clock
    found = continuation(cache.root, np.array(tokens, dtype=np.int64), key, count).tolist()
    assert before == (str(cache), [(node.last_access_time, node.hit_count) for _, node in cache.nodes()], cache._clock)
    stored = [each for i, each in enumerate(stored) if (i % 3 == 2) == (key == "a")]
    known = known_continuations(stored, tokens, count, page_size)
    if not any(known):
        assert found == []
    else:
        assert any(tuple(found) == each[: len(found)] for each in known)
        assert found, "a continuation is known"
        longer = {each for each in known if each[: len(found)] == tuple(found) and len(each) > len(found)}
        assert not longer, "it ends where nothing more is known"


@given(
    page_size=st.sampled_from([1, 2, 4]),
    stored=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=6),
    length=st.integers(0, 11),
    split=st.integers(0, 3),
)
def test_it_does_not_matter_at_which_node_above_the_tokens_the_search_begins(
    page_size: int, stored: Sequences, length: int, split: int
) -> None:
    cache = make_cache(256, page_size)
    for each in stored:
        put(cache, each)
    tokens = np.array(stored[0][:length], dtype=np.int64)
    held = cache.match_prefix(tokens[: split * page_size])  # may split a node: a request holds it then
    below = continuation(held.last_node, tokens[len(held.indices) :], None, 5)
    assert below.tolist() == continuation(cache.root, tokens, None, 5).tolist()


@pytest.mark.parametrize("page_size", [1, 2, 4])
def test_of_several_continuations_the_last_used_is_taken(page_size: int) -> None:
    cache = make_cache(256, page_size)
    stem, first, second = [1] * 8, [2] * 8, [3] * 8
    for each in (stem, stem + first, stem + second):
        put(cache, each)
    start = np.array(stem)
    assert continuation(cache.root, start, None, 4).tolist() == [3] * 4
    cache.match_prefix(stem + first)
    assert continuation(cache.root, start, None, 4).tolist() == [2] * 4


def locked_req(cache: RadixCache, tokens: Sequence[int], extra_key: Hashable = None) -> Req:
    req = make_req(tokens, extra_key=extra_key)
    match = cache.match_prefix(req.reusable_tokens, extra_key, count_hit=False)
    req.last_node, req.tree_len = match.last_node, len(match.indices)
    return req


@pytest.mark.parametrize("page_size", [1, 2, 4])
def test_a_request_gets_what_followed_its_tokens_in_another(page_size: int) -> None:
    cache = make_cache(256, page_size)
    put(cache, list(range(20)))
    put(cache, [30, 31, 32, 33], extra_key="a")
    reqs = [
        locked_req(cache, range(9)),
        locked_req(cache, [*range(9), 50]),
        locked_req(cache, range(18)),
        locked_req(cache, [30, 31], "a"),
        make_req([0, 1]),  # holds no node
    ]
    found = TreeDrafter().propose(reqs, [3, 3, 4, 1, 2])
    assert found == [[9, 10, 11], [], [18, 19], [32], []]
    assert all(type(token) is int for drafts in found for token in drafts)


# --- grammar ---------------------------------------------------------------------------------------------------------

SCHEMA = {"type": "object", "properties": {"a long name": {"enum": ["yes", "no"]}, "another": {"type": "boolean"}}}
LANGUAGES: list[tuple[dict[str, Any], list[str]]] = [  # grammars, and all the outputs that match them
    (
        {"json_schema": {**SCHEMA, "required": ["a long name", "another"], "additionalProperties": False}},
        [f'{{"a long name":"{word}","another":{value}}}' for word in ("yes", "no") for value in ("true", "false")],
    ),
    (
        {"regex": r"Once upon a time there was a (cat|dog) with a hat\."},
        [f"Once upon a time there was a {animal} with a hat." for animal in ("cat", "dog")],
    ),
    ({"choice": ["the first of two", "the first of one"]}, ["the first of two", "the first of one"]),
]


@pytest.mark.parametrize(("grammar", "language"), LANGUAGES, ids=["json_schema", "regex", "choice"])
@pytest.mark.parametrize("most", [1, 64])
def test_forced_tokens_are_proposed_and_no_others_were_allowed(
    grammar: dict[str, Any], language: list[str], most: int
) -> None:
    vocab_size, ends = TOKENIZER.hf_tokenizer.vocab_size, frozenset([TOKENIZER.hf_tokenizer.eos_token_id])
    params = SamplingParams(max_new_tokens=200, temperature=0, **grammar)
    new_matcher = Grammars(TOKENIZER, vocab_size, ends).prepare(params)
    assert new_matcher is not None
    drafter, written = GrammarDrafter(), set()
    for seed in range(4):
        req = Req(0, np.array([1]), params, ends, matcher=new_matcher(ends))
        rng, mask, proposed = np.random.default_rng(seed), np.empty(req.matcher.words, dtype=np.int32), 0

        def allowed() -> list[int]:
            req.matcher.fill_mask(mask)  # noqa: B023
            return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")[:vocab_size]).tolist()  # noqa: B023

        while not req.finished:
            (drafts,) = drafter.propose([req], [most])
            assert len(drafts) <= most
            assert drafter.propose([req], [most]) == [drafts], "asking changes nothing"
            before = TOKENIZER.decode(req.output_ids)
            after = TOKENIZER.decode([*req.output_ids, *drafts])
            assert {each for each in language if each.startswith(before)} == {
                each for each in language if each.startswith(after)
            }, "a choice was taken away"
            for draft in drafts:
                assert allowed() == [draft], "another token could have been chosen"
                req.append(draft)
            proposed += len(drafts)
            if not drafts:
                req.append(int(rng.choice(allowed())))
        text = TOKENIZER.decode([token for token in req.output_ids if token not in ends])
        assert text in language
        assert req.finish_reason == "stop"
        assert proposed >= 3
        written.add(text)
    assert len(written) > 1


def test_a_request_without_a_grammar_gets_no_forced_tokens() -> None:
    assert GrammarDrafter().propose([make_req([1, 2])], [4]) == [[]]


# --- stamps ----------------------------------------------------------------------------------------------------------
@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=2, max_size=5),
)
def test_stamps_are_equal_exactly_where_the_tokens_up_to_there_are(texts: Sequences) -> None:
    stamps: dict[tuple[int, ...], int] = {}
    for text in texts:
        found = PrefixStamps(len(text) + 64).of(make_req(text), 0, len(text)).tolist()
        assert 0 not in found, "zero is no stamp"
        for end, stamp in enumerate(found, start=1):
            assert stamps.setdefault(tuple(text[:end]), stamp) == stamp
    assert len(set(stamps.values())) == len(stamps)


@given(
    prompt=st.lists(st.integers(0, 2), min_size=1, max_size=5),
    rounds=st.lists(
        st.tuples(st.lists(st.integers(0, 2), max_size=4), st.integers(0, 4), st.integers(0, 2), st.booleans()),
        max_size=10,
    ),
)
def test_drafts_that_are_replaced_change_the_stamps_from_there_on(
    prompt: list[int], rounds: list[tuple[list[int], int, int, bool]]
) -> None:
    """Drafts come and go behind a request's tokens, as the scheduler writes them; the stamps are those of a new object."""
    req = make_req(prompt)
    stamps = PrefixStamps(len(req.token_ids))
    for drafts, right, token, is_asked in rounds:
        end = req.num_tokens + len(drafts)
        req.token_ids[req.num_tokens : end] = drafts
        if is_asked:
            for start, stop in ((0, req.num_tokens - 1), (req.num_tokens - 1, end)):
                fresh = PrefixStamps(len(req.token_ids)).of(req, start, stop)
                assert stamps.of(req, start, stop).tolist() == fresh.tolist()
        for accepted in [*drafts[:right], token]:
            req.append(accepted)


# --- the suffix index ------------------------------------------------------------------------------------------------


REPEATED = st.lists(st.integers(0, 5), min_size=1, max_size=6)
BROKEN_OFF = st.builds(
    lambda period, times, rest: period * times + rest + period,
    REPEATED, st.integers(2, 8), st.lists(st.integers(0, 5), max_size=4),
)  # fmt: skip


def longest_match(tokens: list[int]) -> int:
    """The length of the longest suffix of `tokens` that also ends before their end."""
    for length in range(len(tokens) - 1, 0, -1):
        if any(tokens[end - length : end] == tokens[-length:] for end in range(length, len(tokens))):
            return length
    return 0


@given(st.integers(1, 4).flatmap(lambda letters: st.lists(st.integers(0, letters - 1), max_size=40)) | BROKEN_OFF)
def test_match_and_place_are_those_of_a_search_after_each_token(tokens: list[int]) -> None:
    index = SuffixIndex()
    assert (index.size, index.match_length) == (0, 0)
    for size, token in enumerate(tokens, start=1):
        index.append(token)
        assert index.size == size
        length = index.match_length
        assert length == longest_match(tokens[:size])
        if length:
            assert length <= index.follows < size, "what follows the occurrence is a token that is there already"
            assert tokens[index.follows - length : index.follows] == tokens[size - length : size]

"""Matchers: masks, rollback, copies, drafts, forced tokens, and numbers that must end."""

import json
import random
from typing import Any

import numpy as np
import pytest
import torch

from nanoinfer import SamplingParams
from nanoinfer.sampling.grammar.bitmask import apply_masks, fill_masks, forbid_other_tokens, forbidden_by_shifts
from nanoinfer.sampling.grammar.matcher import MAX_DIGITS, Matcher
from tests.helpers.engines import finish, greedy, make_engine
from tests.helpers.grammars import EOS, accepts, allowed, byte_tokens, matcher_of, story_compiler

SCHEMA = json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
GRAMMARS = (
    ("regex", "a(b|c)*d"),
    ("json_schema", SCHEMA),
    ("choice", '["red", "blue", "reddish"]'),
    ("grammar", 'start: "(" start ")" | "x"'),
)


@pytest.mark.parametrize(("kind", "text"), GRAMMARS)
def test_exactly_the_tokens_of_the_mask_can_be_accepted(kind: str, text: str) -> None:
    rng, written = random.Random(0), list[int]()

    def after_written() -> Matcher:
        matcher = matcher_of(kind, text)
        assert all(matcher.accept(token) for token in written)
        return matcher

    for _ in range(6):
        may = allowed(after_written())
        tokens = story_compiler().vocabulary.tokens
        beginnings = {tokens[token][:1] for token in may}
        for token in rng.sample(range(story_compiler().vocabulary.size), 60):
            if tokens[token][:1] not in beginnings:  # else, it may be a way of writing that is not the only one
                assert not after_written().accept(token)
        for token in rng.sample(sorted(may), min(len(may), 60)):
            assert after_written().accept(token)
        ordinary = sorted(may - {EOS})
        if not ordinary:
            break
        written.append(rng.choice(ordinary))


@pytest.mark.parametrize(("kind", "text"), GRAMMARS)
def test_rollback_brings_the_mask_of_before_back(kind: str, text: str) -> None:
    rng = random.Random(1)
    for _ in range(10):
        matcher, masks, accepted = matcher_of(kind, text), [], 0
        for _ in range(12):
            masks.append(allowed(matcher))
            if not masks[-1]:
                break
            assert matcher.accept(rng.choice(sorted(masks[-1])))
            accepted += 1
        masks.append(allowed(matcher))
        while accepted:
            count = rng.randint(1, accepted)
            matcher.rollback(count)
            accepted -= count
            assert allowed(matcher) == masks[accepted]


@pytest.mark.parametrize(("kind", "text"), GRAMMARS)
def test_drafts_get_the_masks_that_accepting_them_would_give(kind: str, text: str) -> None:
    rng = random.Random(2)
    for _ in range(20):
        matcher, walker = matcher_of(kind, text), matcher_of(kind, text)
        drafts: list[int] = []
        masks = [allowed(walker)]
        for _ in range(4):
            if not masks[-1]:
                break
            drafts.append(rng.choice(sorted(masks[-1])))
            walker.accept(drafts[-1])
            masks.append(allowed(walker))
        wrong = rng.randrange(len(drafts) + 1)
        if wrong < len(drafts):
            drafts[wrong] = 1  # <s>, which no grammar allows
        rows = np.full((len(drafts) + 1, matcher.words), 7, dtype=np.int32)
        assert fill_masks(matcher, drafts, rows) == wrong
        bits = np.unpackbits(rows.view(np.uint8), axis=1, bitorder="little")[:, : story_compiler().vocabulary.size]
        for row in range(wrong + 1):
            assert set(np.flatnonzero(bits[row]).tolist()) == masks[row]
        assert (rows[wrong + 1 :] == 7).all()
        assert allowed(matcher) == masks[0]


def test_end_tokens_are_allowed_exactly_when_the_output_is_complete() -> None:
    matcher, single = matcher_of("regex", "ab*"), byte_tokens()
    assert EOS not in allowed(matcher)
    assert not matcher.accept(EOS)
    matcher.accept(single[ord("a")])
    assert EOS in allowed(matcher)
    assert matcher.is_complete
    assert not matcher.must_stop
    assert matcher.accept(EOS)
    assert matcher.must_stop
    assert allowed(matcher) == set()
    assert not matcher.accept(EOS)
    matcher.rollback(1)
    assert EOS in allowed(matcher)


def test_forced_tokens_are_those_of_the_tokenizer() -> None:
    matcher, vocabulary = matcher_of("json_schema", SCHEMA), story_compiler().vocabulary
    tokens = matcher.forced_tokens()
    assert b"".join(vocabulary.tokens[token] for token in tokens) == b'{"a":'
    assert tokens == vocabulary.tokenizer.encode('{"a":', add_special_tokens=False)


def test_a_number_ends_after_so_many_digits_unless_the_schema_wants_more() -> None:
    single = byte_tokens()
    nine = single[ord("9")]
    for kind in ("integer", "number"):
        matcher = matcher_of("json_schema", json.dumps({"type": kind}))
        for _ in range(MAX_DIGITS):
            assert nine in allowed(matcher)
            matcher.accept(nine)
        assert nine not in allowed(matcher)
        assert EOS in allowed(matcher)
        matcher.rollback(1)
        assert nine in allowed(matcher)
    constant = 10**40
    assert accepts(matcher_of("json_schema", json.dumps({"const": constant})), str(constant))
    text = "9" * (2 * MAX_DIGITS)
    assert accepts(matcher_of("json_schema", '{"type": "string"}'), f'"{text}"')
    assert accepts(matcher_of("json_schema", '{"type": "string"}'), f'"\\"{text}"')


# --- masks on logits -------------------------------------------------------------------------------------------------


def test_the_masks_of_a_batch_change_only_the_rows_that_have_one() -> None:
    size = story_compiler().vocabulary.size
    scores = torch.randn(4, size, generator=torch.Generator().manual_seed(0))
    before = scores.clone()
    first, last = matcher_of("choice", '["red", "blue"]'), matcher_of("regex", "[0-9]+")
    forbid_other_tokens(scores, [(1, first, ()), (3, last, ())])
    for row, matcher in ((0, None), (1, first), (2, None), (3, last)):
        may = sorted(range(size) if matcher is None else allowed(matcher))
        assert torch.equal(scores[row, may], before[row, may])
        assert int(scores[row].isfinite().sum()) == len(may)


def test_masks_are_the_same_on_every_device_and_for_all_rows_at_once() -> None:
    rng = np.random.default_rng(0)
    masks = rng.integers(-(2**31), 2**31, (3, 5), dtype=np.int64).astype(np.int32)
    wanted = np.unpackbits(masks.view(np.uint8), axis=1, bitorder="little")[:, :131] == 0
    scores = torch.zeros(3, 131)
    apply_masks(scores, [0, 1, 2], masks)
    assert ((scores == -torch.inf).numpy() == wanted).all()
    assert (forbidden_by_shifts(torch.from_numpy(masks), 131).numpy() == wanted).all()


LIMITED = 'start: x "." x\nx[max_tokens=3]: /[a-z]+/'
STOPPED = 'start: x "," x\nx[stop="k"]: /[a-z]+/'


def outputs(grammars: list[str], **options: Any) -> list[Any]:
    engine = make_engine(eos=[3], **options)
    ids = []
    for i, grammar in enumerate(grammars):
        for params in (greedy(20, grammar=grammar), SamplingParams(max_new_tokens=20, grammar=grammar, seed=i)):
            ids.append(engine.add_request("abcdabcdabcd", params))
    last = finish(engine)
    return [(last[i].token_ids, last[i].finish_reason, last[i].error, last[i].drafted_tokens) for i in ids]


@pytest.mark.parametrize("drafter", ["grammar", "ngram"])
def test_such_a_grammar_is_served_without_drafts_and_others_beside_it_with_them(drafter: str) -> None:
    grammars = [LIMITED, STOPPED, 'start: "abcd" "abcdefgh" /[a-z]/+']
    expected = outputs(grammars)
    found = outputs(grammars, drafter=drafter, adaptive_drafts=False)
    assert [each[:3] for each in found] == [each[:3] for each in expected]
    assert all(error is None for _, _, error, _ in found)
    assert [drafted for *_, drafted in found[:4]] == [0] * 4
    assert sum(drafted for *_, drafted in found[4:]) > 0

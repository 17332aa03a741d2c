"""Lark grammars whose tokens cannot be taken back, those with max_tokens=... or stop=...: they get no drafts."""

from typing import Any

import pytest

from nanoinfer import SamplingParams
from tests.helpers.engines import finish, greedy, make_engine

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

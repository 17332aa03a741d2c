"""The check of notebook 00: the right answer passes, each typical mistake gets its hint."""

from collections.abc import Callable

import pytest

from notebooks.course import Hint, NotWritten, check


def given(answer: Callable[[int, int], object]) -> dict[str, object]:
    return {"tokens_to_compute": answer}


def test_the_right_answer_passes(capsys: pytest.CaptureFixture[str]) -> None:
    check("0.1", given(lambda prompt_tokens, cached_tokens: prompt_tokens - cached_tokens))
    assert capsys.readouterr().out.startswith("✓ 0.1")


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        (lambda prompt, cached: cached, "No token of this prompt is in the tree"),
        (lambda prompt, cached: prompt, "only read"),
        (lambda prompt, cached: 4 if cached else 14, "Other prompts"),
    ],
)
def test_a_typical_mistake_gets_its_hint(answer: Callable[[int, int], object], hint: str) -> None:
    with pytest.raises(Hint, match=hint):
        check("0.1", given(answer))


def test_the_stub_is_not_written_yet() -> None:
    def stub(prompt_tokens: int, cached_tokens: int) -> int:
        raise NotImplementedError("exercise 0.1")

    with pytest.raises(NotWritten):
        check("0.1", given(stub))

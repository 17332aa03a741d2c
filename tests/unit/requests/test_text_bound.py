"""A text that is too long for certain is refused before it is tokenized, and one that the tokenizer fails at as well."""

from typing import Any

import pytest

from nanoinfer.errors import InvalidRequestError
from nanoinfer.requests.request_builder import RequestBuilder
from nanoinfer.requests.tokenizer import Tokenizer
from tests.helpers.texts import TOKENIZER


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

    builder = RequestBuilder(100, (), Tokenizer(Broken()))
    expected = InvalidRequestError if isinstance(error, PanicException) else KeyboardInterrupt
    with pytest.raises(expected) as caught:
        builder.prompt_ids("abc")
    if isinstance(error, PanicException):
        assert "prompt: the tokenizer fails on this text: no such byte" in str(caught.value)

"""The bundled model's tokenizer, and one whose tokens are any strings."""

from collections.abc import Sequence

from transformers import AutoTokenizer

from nanoinfer.model.loader import resolve_model_path
from nanoinfer.requests.tokenizer import IncrementalDetokenizer, Tokenizer

REPLACEMENT = "\ufffd"
TOKENIZER = Tokenizer(AutoTokenizer.from_pretrained(resolve_model_path("story")))


def encode(text: str) -> list[int]:
    return TOKENIZER.hf_tokenizer(text, add_special_tokens=False)["input_ids"]


def certain(token_ids: Sequence[int]) -> str:
    """The text of `token_ids` without an incomplete end."""
    return TOKENIZER.decode(token_ids).rstrip(REPLACEMENT)


class PieceTokenizer(Tokenizer):
    """Token i is the string `pieces[i]`."""

    def __init__(self, pieces: Sequence[str]):
        self.pieces = pieces

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(self.pieces[token] for token in token_ids)


def feed(pieces: Sequence[str], stop: Sequence[str]) -> tuple[list[str], IncrementalDetokenizer]:
    """What comes out for each of `pieces`, and the detokenizer after them."""
    detokenizer = IncrementalDetokenizer(PieceTokenizer(pieces), stop=stop)
    return [detokenizer.add(token) for token in range(len(pieces))], detokenizer

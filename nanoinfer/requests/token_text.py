"""The text of tokens as pictures and traces show it: every token of a sequence is shown, and no character is cut apart."""

from collections.abc import Callable, Sequence
from typing import Any

from nanoinfer.requests.tokenizer import REPLACEMENT


def token_text(tokenizer: Any, token_ids: Sequence[int]) -> str:
    """The text of tokens as a picture should show it: special tokens by name, and words with their leading space."""
    text = tokenizer.decode(token_ids)
    spell = getattr(getattr(tokenizer, "hf_tokenizer", None), "convert_ids_to_tokens", None)
    if spell is None or len(token_ids) != 1:
        return text
    (name,) = spell(list(token_ids))
    if name and name.startswith("▁"):  # of which the tokenizer leaves a space out at the start of a text
        return name.replace("▁", " ")
    return text or name or ""


def whole_characters(
    tokens: Sequence[int], texts: dict[int, str], decode: Callable[[Sequence[int]], str]
) -> dict[int, str]:
    """Position → text, for positions whose text is not `texts[token]`. If a character consists of several tokens' bytes,
    the last token gets the character, and the others have no text."""
    pieces: dict[int, str] = {}
    incomplete: list[int] = []
    for i, token in enumerate(tokens):
        if not incomplete and REPLACEMENT not in texts[token]:
            continue
        incomplete.append(token)
        text = decode(incomplete)
        if (
            text.endswith(REPLACEMENT) and len(incomplete) < 4 and i + 1 < len(tokens)
        ):  # a character has at most 4 bytes
            pieces[i] = ""
        else:
            pieces[i] = text
            incomplete = []
    return pieces

"""How many characters a token can stand for, so that a text that is too long for certain is refused before it is tokenized.

Tokenizing takes time for every character (minutes for megabytes of one line), and a text can be much longer than any
context. That a text of so many characters cannot have fewer tokens is certain only where a tokenizer loses none on the way.
"""

import json
from typing import Any

COMPOSED = 4  # code points that NFC or NFKC make one of, at most
KEEPS_EVERY_CHARACTER = {"NFD", "NFKD", "ByteLevel", "Digits", "Metaspace", "Prepend"}
MAY_REMOVE = {"Split", "Punctuation"}  # unless their behaviour says otherwise


def check_length(text: str, max_tokens: int | None, tokenizer: Any) -> None:
    """ValueError when a text certainly has more tokens than `max_tokens`, the context. Costs nothing for short ones."""
    if max_tokens is None or len(text) <= max_tokens:
        return
    longest = getattr(tokenizer, "max_chars_per_token", None)
    if longest is not None and len(text) > max_tokens * longest:
        raise ValueError(
            f"is text of {len(text)} characters: must not exceed {max_tokens * longest} (max_context_len={max_tokens} "
            f"tokens, each of {longest} characters at most)"
        )


def max_chars_per_token(hf_tokenizer: Any) -> int | None:
    """The most characters of a text that one token can stand for.

    None where that is not certain: characters may be dropped before the model sees them, or one token may stand for an
    unknown word of any length.
    """
    backend = getattr(hf_tokenizer, "backend_tokenizer", None)
    if backend is None or type(backend.model).__name__ != "BPE":
        return None
    if any(token.lstrip or token.rstrip for token in hf_tokenizer.added_tokens_decoder.values()):
        return None  # it takes any number of spaces beside it
    steps = _steps(backend.normalizer) + _steps(backend.pre_tokenizer)
    vocab = backend.get_vocab(with_added_tokens=True)
    if not all(map(_keeps, steps)) or not _knows_every_byte(backend.model, steps, vocab):
        return None
    composes = any(step["type"] in ("NFC", "NFKC") for step in steps)
    return max(map(len, vocab)) * (COMPOSED if composes else 1)


def _steps(component: Any) -> list[dict[str, Any]]:
    """What a normalizer or pre-tokenizer consists of, as tokenizer.json says it."""
    if component is None:
        return []
    state = json.loads(component.__getstate__())
    return _flat(state)


def _flat(state: dict[str, Any]) -> list[dict[str, Any]]:
    if state["type"] != "Sequence":
        return [state]
    return [step for part in state.get("normalizers") or state.get("pretokenizers") or [] for step in _flat(part)]


def _keeps(step: dict[str, Any]) -> bool:
    kind = step["type"]
    if kind == "Replace":
        return len(step["pattern"].get("String", "")) <= len(step["content"]) and "String" in step["pattern"]
    if kind in MAY_REMOVE:
        return step.get("behavior") != "Removed"
    return kind in KEEPS_EVERY_CHARACTER or kind in ("NFC", "NFKC")


def _knows_every_byte(model: Any, steps: list[dict[str, Any]], vocab: dict[str, int]) -> bool:
    if any(step["type"] == "ByteLevel" for step in steps):
        from tokenizers.pre_tokenizers import ByteLevel

        return vocab.keys() >= set(ByteLevel.alphabet())
    return model.byte_fallback and all(f"<0x{byte:02X}>" in vocab for byte in range(256))

"""Finds out how many characters a token can stand for, to refuse a text that must be too long before it is tokenized.

Tokenizing takes time for every character (minutes for megabytes on one line), and a text can be much longer than any
context. The smallest number of tokens in a text is certain only if the tokenizer loses no characters on the way.
"""

import json
from typing import Any

from nanoinfer.errors import ContextLengthError

COMPOSED = 4  # NFC and NFKC make one character from at most this many: canonical decompositions are no longer
# The steps that each component may have. None of them makes a text shorter (except NFC and NFKC: see COMPOSED).
NORMALIZERS = {"NFC", "NFKC", "NFD", "NFKD", "ByteLevel", "Prepend", "Replace"}
SPLITTERS = {"Split", "Punctuation", "Digits"}  # they change no characters, but their settings may be to remove some
PRE_TOKENIZERS = SPLITTERS | {"ByteLevel", "Metaspace"}
POST_PROCESSORS = {"ByteLevel", "TemplateProcessing", "RobertaProcessing", "BertProcessing"}


def check_length(text: str, max_tokens: int | None, tokenizer: Any, name: str = "prompt") -> None:
    """ContextLengthError when the text of `name` must have more than `max_tokens` tokens, the context's. Costs nothing for
    short texts."""
    if max_tokens is None or len(text) <= max_tokens:
        return
    longest = getattr(tokenizer, "max_chars_per_token", None)
    if longest is not None and len(text) > max_tokens * longest:
        raise ContextLengthError(
            f"{name}: has {len(text)} characters: must not exceed {max_tokens * longest} (max_context_len={max_tokens} "
            f"tokens of at most {longest} characters each)",
            name,
        )


def max_chars_per_token(hf_tokenizer: Any) -> int | None:
    """The largest number of characters that one token can stand for; None if that is not certain for this tokenizer.

    It is certain if four things are true. No step removes characters (NFC and NFKC divide their number by COMPOSED at
    most). The model has a token for every character that it can meet: either for the byte alphabet, if the last step that
    changes text turns everything into it, or for all bytes. A merged token is as long as the two that it is made from, so
    it stands for no more characters than its text has. And an added token stands for its text, after normalization.
    """
    backend = getattr(hf_tokenizer, "backend_tokenizer", None)
    if backend is None or type(backend.model).__name__ != "BPE":
        return None
    try:
        normalizers, pre_tokenizers = _steps(backend.normalizer), _steps(backend.pre_tokenizer)
        post_processors = _steps(backend.post_processor)
    except Exception:  # a component written in Python cannot say what it does
        return None
    vocab, added = backend.get_vocab(with_added_tokens=True), backend.get_added_tokens_decoder().values()
    if (
        any(token.lstrip or token.rstrip for token in added)  # such a token takes in any number of spaces around it
        or not all(step["type"] in NORMALIZERS and _keeps(step) for step in normalizers)
        or not all(step["type"] in PRE_TOKENIZERS and _keeps(step) for step in pre_tokenizers)
        or not all(step["type"] in POST_PROCESSORS and _keeps(step) for step in post_processors)
        or not _knows_every_character(backend.model, normalizers + pre_tokenizers, vocab)
    ):
        return None
    texts = [token.content for token in added]
    if backend.normalizer is not None:
        texts += [backend.normalizer.normalize_str(text) for text in texts]
    composing = sum(step["type"] in ("NFC", "NFKC") for step in normalizers)
    return max(map(len, [*vocab, *texts])) * COMPOSED**composing


def _steps(component: Any) -> list[dict[str, Any]]:
    """The steps of a normalizer, pre-tokenizer or post-processor, as tokenizer.json describes them."""
    return [] if component is None else _flat(json.loads(component.__getstate__()))


def _flat(state: dict[str, Any]) -> list[dict[str, Any]]:
    if state["type"] != "Sequence":
        return [state]
    parts = next(value for value in state.values() if isinstance(value, list))  # under a name that varies
    return [step for part in parts for step in _flat(part)]


def _keeps(step: dict[str, Any]) -> bool:
    """True when the settings of this step make it keep all characters; its kind is one that can."""
    if step["type"] == "Replace":
        return len(step["pattern"].get("String", "")) <= len(step["content"]) and "String" in step["pattern"]
    if step["type"] == "TemplateProcessing":
        return any(piece.get("Sequence", {}).get("id") == "A" for piece in step["single"])
    return step.get("behavior") != "Removed"


def _knows_every_character(model: Any, steps: list[dict[str, Any]], vocab: dict[str, int]) -> bool:
    """True when `model` has a token for everything that `steps` can make of a text, so that it drops and merges nothing."""
    if model.continuing_subword_prefix or model.end_of_word_suffix:
        return False  # its tokens for single characters have other names
    if model.byte_fallback and all(f"<0x{byte:02X}>" in vocab for byte in range(256)):
        return True
    from tokenizers.pre_tokenizers import ByteLevel

    changes = [step["type"] for step in steps if step["type"] not in SPLITTERS]
    return changes[-1:] == ["ByteLevel"] and vocab.keys() >= set(ByteLevel.alphabet())

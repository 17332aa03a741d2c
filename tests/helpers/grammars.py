"""Compilers of grammars over small vocabularies, and how tests follow a grammar."""

import random
from collections.abc import Sequence
from functools import cache

import numpy as np

from nanoinfer.model.loader import resolve_model_path
from nanoinfer.requests.tokenizer import Tokenizer
from nanoinfer.sampling.grammar.compiler import Compiler, Grammar
from nanoinfer.sampling.grammar.matcher import Matcher
from nanoinfer.sampling.grammar.vocabulary import Vocabulary

EOS = 2  # of the bundled model


@cache
def story_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer.from_pretrained(resolve_model_path("story"))
    assert tokenizer is not None
    return tokenizer


@cache
def story_compiler() -> Compiler:
    tokenizer = story_tokenizer()
    return Compiler(Vocabulary(tokenizer, len(tokenizer.hf_tokenizer), [EOS]))


def matcher_of(kind: str, text: str) -> Matcher:
    return story_compiler().compile(Grammar(kind, text)).matcher(frozenset([EOS]))


def allowed(matcher: Matcher) -> set[int]:
    """The tokens that the mask allows."""
    row = np.full(matcher.words, -1, dtype=np.int32)
    matcher.fill_mask(row)
    size = story_compiler().vocabulary.size
    return set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")[:size]).tolist())


@cache
def byte_tokens() -> dict[int, int]:
    """Byte → the token that stands for it alone."""
    vocabulary = story_compiler().vocabulary
    tokens = enumerate(vocabulary.tokens[: vocabulary.size])
    return {token[0]: i for i, token in tokens if len(token) == 1 and i not in vocabulary.special}


def accepts(matcher: Matcher, text: str) -> bool:
    """Whether `text` is a complete output, written byte by byte, each token being allowed by the mask before it."""
    single = byte_tokens()
    return all(matcher.accept(single[byte]) for byte in text.encode()) and matcher.is_complete


def random_output(matcher: Matcher, rng: random.Random, most: int = 80) -> bytes | None:
    """What a model with random weights would write, with a liking for short tokens and for ends; None if it does not end
    within `most` tokens."""
    tokens, output = story_compiler().vocabulary.tokens, b""
    for _ in range(most):
        ids = sorted(allowed(matcher))
        assert ids, f"nothing is allowed after {output!r}: {matcher.error}"
        short = [i for i in ids if len(tokens[i]) <= 2 or i == EOS]
        closing = [i for i in ids if tokens[i][:1] in (b'"', b"}", b"]") or i == EOS]
        choices: Sequence[int] = rng.choice([ids, short or ids, closing or ids])
        token = rng.choice(choices)
        assert matcher.accept(token)
        if token != EOS:
            output += tokens[token]
        if matcher.must_stop:
            return output
    return None

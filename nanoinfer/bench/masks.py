"""What masks cost: the bit masks of a batch with grammars, beside the model's pass of the same batch."""

import json
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np
import torch

from nanoinfer.grammars.bitmask import apply_masks
from nanoinfer.grammars.compiler import Compiler
from nanoinfer.grammars.grammar import Grammar
from nanoinfer.grammars.matcher import Matcher
from nanoinfer.grammars.vocabulary import Vocabulary

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name", "age", "tags"],
}
GRAMMARS = {
    "json_schema": Grammar("json_schema", json.dumps(SCHEMA)),
    "regex": Grammar("regex", r"([a-z]+ ){3,30}\d{4}-\d{2}"),
    "grammar": Grammar("grammar", 'start: sum\nsum: part ("+" part)*\npart: /[0-9]+/ | "(" sum ")"'),
    "choice": Grammar("choice", json.dumps([f"answer {i}" for i in range(100)])),
}
STEPS = 40  # tokens that are followed per grammar


class MadeUpTokenizer:
    """A vocabulary of `size` tokens: the characters of ASCII, then words of random letters, as long as real ones."""

    special_ids: frozenset[int] = frozenset()

    def __init__(self, size: int, seed: int = 0):
        rng, letters = np.random.default_rng(seed), "etaoinshrdlucmfwypvbgkjqxz"
        texts = dict.fromkeys(map(chr, range(128)))
        while len(texts) < size:
            word = "".join(letters[i] for i in rng.geometric(0.12, rng.integers(2, 9)) % len(letters))
            texts[" " * int(rng.integers(2)) + (word.capitalize() if rng.random() < 0.2 else word)] = None
        self.texts = list(texts)
        self._ids = {text: i for i, text in enumerate(self.texts)}

    def encode(self, text: str) -> list[int]:
        """A token per character."""
        return [self._ids[char] for char in text]

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(self.texts[token] for token in token_ids)


def measure_masks(vocab_size: int, rows: int, rounds: int = 5, hidden_size: int = 4096) -> list[dict[str, Any]]:
    """A row per grammar: seconds to compile it, to fill and to apply the masks of `rows` rows (medians over the steps of a
    random output and over `rounds`), and seconds for the product of `rows` rows with an output layer of this vocabulary,
    which every pass contains."""
    vocabulary = Vocabulary(MadeUpTokenizer(vocab_size), vocab_size)
    assert vocabulary.compiled is not None  # read now, not while the first grammar is timed
    compiler, rng = Compiler(vocabulary), np.random.default_rng(0)
    logits = torch.randn(rows, vocab_size)
    weights, hidden = torch.randn(vocab_size, hidden_size), torch.randn(rows, hidden_size)
    product = _median_seconds(lambda: hidden @ weights.T, rounds)
    results = []
    for name, grammar in GRAMMARS.items():
        started = time.perf_counter()
        compiled = compiler.compile(grammar)
        compile_seconds = time.perf_counter() - started
        filled: list[float] = []
        applied: list[float] = []
        for _ in range(rounds):
            matcher = compiled.matcher(frozenset())
            masks = np.empty((rows, matcher.words), dtype=np.int32)
            for _ in range(STEPS):
                started = time.perf_counter()
                for mask in masks:
                    matcher.fill_mask(mask)
                filled.append(time.perf_counter() - started)
                applied.append(_median_seconds(lambda masks=masks: apply_masks(logits.clone(), range(rows), masks), 1))
                if not _follow(matcher, masks[0], rng):
                    break
        fill = {"fill": median(filled), "slowest": max(filled), "apply": median(applied)}
        results.append({"grammar": name, "compile": compile_seconds, **fill, "output layer": product})
    return results


def _follow(matcher: Matcher, mask: np.ndarray, rng: np.random.Generator) -> bool:
    """Accept a random token that the mask allows. False at the end."""
    ids = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
    return len(ids) > 0 and matcher.accept(int(rng.choice(ids))) and not matcher.must_stop


def _median_seconds(function: Any, rounds: int) -> float:
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        function()
        times.append(time.perf_counter() - started)
    return median(times)


def format_masks(results: Sequence[dict[str, Any]], vocab_size: int, rows: int) -> str:
    """The results as a table, in milliseconds."""
    columns = ("compile", "fill", "slowest", "apply", "output layer")
    lines = ["| milliseconds | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for result in results:
        values = " | ".join(f"{1000 * result[column]:.2f}" for column in columns)
        lines.append(f"| {result['grammar']} | {values} |")
    title = f"masks of {rows} rows over {vocab_size:,} tokens, beside the output layer's product for the same rows"
    return "\n".join([title, "", *lines])

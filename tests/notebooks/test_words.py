"""The words of the series: one for one thing, in all headings and captions, and each in the glossary."""

import re
from pathlib import Path

import pytest

from notebooks.tools.files import ROOT, read
from notebooks.tools.series import captions, headings, markdown_texts, series, slug
from notebooks.tools.words import WORDS, wrong_words
from tests.sample_series import code, markdown, notebook

FOLDER = ROOT / "notebooks"
NOTEBOOKS = [*series(FOLDER), *sorted((FOLDER / "demos").glob("*.ipynb"))]
GLOSSARY = FOLDER / "glossary.md"

# What a reader looks up. The rules of notebooks/tools/words.py may have more.
LOOKED_UP = """
    request, pass, step, extend, decode, slot, page, row, token, prefix, K/V, kernel, run, chunk, radix tree,
    lock, evict, retract, admit, owner, session, hits, ticks, other_kv_index, SGLang, InputMetadata,
    scheduler, finish reason, head, query, key, value, logits, sampling, temperature, latency, throughput,
    lock_ref, namespace, hash-chained blocks, cache hit, free list, double free, leak, fragmentation, prefix
    sum, CSR, backend, roofline, arithmetic intensity, captured pass, replay, share of the peak, quantized weights,
    perplexity, adapter, LoRA, rank, place, tile, grammar, DFA, state, token mask, bit mask, forced token,
    draft, drafter, acceptance, verify, client, coroutine, event loop, HTTP, server-sent event, status, back-pressure,
    utilisation, p99, open loop, closed loop, token bucket, drain, replica, router, herd, snapshot,
    all-reduce, tensor parallelism, block, block table, slot mapping, multi-step decoding, workspace
"""


def glossary() -> dict[str, tuple[str, str, str]]:
    """Word → what it means, where it is introduced, what it is not called. "decode, DECODE" is there as "decode"."""
    lines = GLOSSARY.read_text(encoding="utf-8").split("\n")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return {row[0].split(", ")[0].strip("`"): (row[1], row[2], row[3]) for row in rows[1:]}


def texts(path: Path) -> list[str]:
    """The headings and the captions of a notebook."""
    content = read(path)
    return [title for text in markdown_texts(content) for _, title in headings(text)] + list(captions(content))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: str(path.stem))
def test_headings_and_captions_say_one_word_for_one_thing(path: Path) -> None:
    found = texts(path)
    assert found, "no heading or caption was found"
    problems = wrong_words(found, slug(path))
    assert not problems, "\n".join(problems)


def test_every_word_is_in_the_glossary_with_what_it_is_not_called() -> None:
    rows = glossary()
    wanted = {word.strip() for word in " ".join(LOOKED_UP.split()).split(",")}
    assert wanted - set(rows) == set()
    for word in WORDS:
        not_called = rows[word.for_][2].split(", ")
        assert set(word.shown.split(", ")) <= set(not_called), word.for_
    for word_, (meaning, introduced, not_called_) in rows.items():
        assert 1 <= len(re.findall(r"\.(?:\s|$)", meaning)) <= 2, f"{word_}: one sentence or two"
        assert re.fullmatch(r"\[(\d\d)\]\(\1_\w+\.ipynb\)", introduced), word_
        ruled = {shown for word in WORDS if word.for_ == word_ for shown in word.shown.split(", ")}
        assert set(filter(None, not_called_.split(", "))) == ruled, (
            f"{word_}: a rule for each word that it is not called"
        )
    assert list(rows) == sorted(rows, key=lambda name: name.lower().replace("/", "")), "in alphabetical order"


def test_a_word_is_in_the_notebook_that_is_said_to_introduce_it() -> None:
    missing = []
    for word, (_, introduced, _) in glossary().items():
        path = FOLDER / introduced[introduced.index("(") + 1 : -1]
        if word.lower() not in "\n".join(markdown_texts(read(path))).lower():
            missing.append(f"{path.name} does not mention {word!r}")
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize(
    ("text", "notebook", "wrong"),
    [
        ("A forward pass of four requests", "memory_pools", "'pass'"),
        ("What a decode step moves", "scheduler", "'pass'"),
        ("Before step 3", "input_metadata", "'pass'"),
        ("Before step 3", "scheduler", None),
        ("The cache, step by step", "input_metadata", None),
        ("Prefill waits for arithmetic", "the_kv_cache", "'extend'"),
        ("What `max_prefill_tokens` bounds", "scheduler", None),
        ("Two sessions, one pass", "batched_decode", None),
        ("Two sessions, one pass", "scheduler", "'request'"),
        ("The request who ends early", "scheduler", "'request'"),
        ("A client leaves", "scheduler", "'request'"),
        ("A client leaves", "the_engine_behind_a_door", None),
        ("Blocks of four slots", "memory_pools", "'page'"),
        ("The rival: hash-chained blocks", "scheduler", None),
        ("From a block table to slots", "memory_pools", None),
        ("From a block table to slots", "the_same_pools_in_blocks", None),
        ("Blocks of four slots", "the_same_pools_in_blocks", None),
        ("A prefill by hand", "the_same_pools_in_blocks", "'extend'"),
        ("Which requests may come in", "scheduler", "'admit'"),
        ("Try it", "radix_cache", None),
        ("A trie of tokens", "radix_cache", "'radix tree'"),
        ("Where the K/V lies", "memory_pools", "lie:"),
        ("What stands in its way", "memory_pools", "stand:"),
        ("What an S stands for", "memory_pools", None),
        ("One row a request", "memory_pools", "a for per"),
        ("Namespaces ◦", "radix_cache", "May be skipped"),
        ("A pass over the new tokens of four requests", "memory_pools", None),
    ],
)
def test_a_word_for_another_thing_is_found(text: str, notebook: str, wrong: str | None) -> None:
    problems = wrong_words([text], notebook)
    assert bool(problems) == (wrong is not None), problems
    assert all(wrong in problem for problem in problems if wrong is not None)


def test_captions_are_the_titles_of_the_free_cells() -> None:
    cells = [
        code('viz.bars({}, title="One")\nf(title=f"Two {n} of {m}")\nf(title="Three" if a else "Four", label="no")'),
        code('# in nanoinfer/viz/bars.py\nf(title="no")'),
        code("%timeit f(title='no')"),
        markdown('title="no"'),
    ]
    assert list(captions(notebook(*cells))) == ["One", "Two … of …", "Three", "Four"]

"""The words of the series: one word for one thing, in every heading and caption.

To add one: a `Word` here, and its line in notebooks/glossary.md. `for_` is the word to use; `never` says in regular
expressions (any case) what is not used for it; `shown` says the same to a reader, as in the glossary. `allowed`: notebooks,
by name without number, where what `never` describes is right, because it is introduced or told apart there.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Word:
    """One rule; see above."""

    for_: str
    never: tuple[str, ...]
    shown: str
    allowed: frozenset[str] = frozenset()


def _in(*names: str) -> frozenset[str]:
    return frozenset(names)


# The first engines of the series, in these notebooks, serve sessions.
FIRST_ENGINES = _in("start_here", "the_kv_cache", "batched_decode")

# Only where a server is does a request have a client, which is another program.
SERVER = _in("the_engine_behind_a_door")

# A page is a block where other servers' interfaces are meant.
BLOCKS = "the_same_pools_in_blocks"
# What is below the pool is kept in blocks, whatever the pool's pages are.
STOREYS = "a_cache_that_outlives_its_memory"

# A step is a call of Engine.step, or of the step of an engine that grows towards it. These notebooks have one.
ENGINES = _in(
    *("start_here", "an_engine_in_150_lines", "batched_decode", "radix_cache", "the_life_of_a_slot"),
    *("scheduler", "scheduling_policy", "the_engine_behind_a_door"),
    *("multi_turn_chat", "few_shot", "branching_agents"),
)

WORDS = (
    Word("request", (r"\bsessions?\b",), "session", FIRST_ENGINES),
    Word("request", (r"\bjobs?\b", r"\busers?\b"), "job"),
    Word("request", (r"\bclients?\b",), "client", SERVER),
    Word("request", (r"\b(who|whom|whose|whoever|nobody|somebody|everybody|everyone)\b",), "who, nobody"),
    Word("pass", (r"\bforwards?\b(?! to)",), "forward, forward pass"),
    Word("pass", (r"\b(decode|decoding|extend|prefill|model)[ -]steps?\b",), "decode step"),
    Word("pass", (r"(?<!step by )\bsteps?\b(?! by step)",), "step", ENGINES),
    Word("step", (r"\biterations?\b",), "iteration"),
    Word("extend", (r"\bpre-?fill",), "prefill"),
    Word("decode", (r"\bgeneration (pass|phase)\b",), "generation phase"),
    Word("slot", (r"\b(memory|cache) (cell|location|entry|entries)\b",), "cell, location"),
    Word(
        "page",
        (r"(?<!hash-chained )\bblocks?\b(?! table)",),
        "block",
        _in("radix_cache", "many_replicas", BLOCKS, STOREYS),
    ),
    Word("row", (r"\bblock table\b",), "block table", _in("memory_pools", BLOCKS)),
    Word("K/V", (r"\bK-V\b", r"\bkv[ -]pairs?\b", r"\bkey-value\b"), "KV pair, key-value pair"),
    Word(
        "kernel",
        (r"\b(restart|python).*\bkernels?\b", r"(?<!Jupyter's )\bkernel restart"),
        "kernel for a Python process",
    ),
    Word("run", (r"\bsimulations?\b", r"\bruns? of (free )?(neighbours|slots)\b"), "run of slots"),
    Word("chunk", (r"\bpieces? of a prompt\b", r"\bslices? of a prompt\b"), "piece of a prompt"),
    Word("radix tree", (r"\btries?\b(?! (it|out|to))", r"\bprefix tree\b"), "trie, prefix tree"),
    Word("lock", (r"\bpin(s|ned|ning)?\b",), "pin"),
    Word("evict", (r"\b(discard|throw|thrown|throws|drop)(s|ed|ped|ping|ing)?\b",), "drop, throw out"),
    Word("retract", (r"\bpreempt", r"\bswap(s|ped|ping)? out\b"), "preempt, swap out"),
    Word("admit", (r"\b(come|comes|came|let|lets) in\b",), "come in, let in"),
    Word("owner", (r"\bholders?\b",), "holder"),
)

# Not about words that are in the glossary, but about sentences: `wrong` is never in a heading or caption.
PLAIN = (
    (re.compile(r"\b(lies?|lying)\b", re.I), "lie: things *are* somewhere"),
    (re.compile(r"\bstands?\b(?! for)", re.I), "stand: things *are* somewhere"),
    (re.compile(r"\b(one|a|the) (row|slot|token|pass|page|byte|step) an? \w", re.I), "a for per: one row per request"),
    (re.compile(r"◦"), "◦: nothing is marked with it any more; say `May be skipped`"),
)


def wrong_words(texts: Iterable[str], notebook: str) -> list[str]:
    """What is wrong in headings or captions of a notebook, known by its name without number: one message for each."""
    found = []
    for text in texts:
        plain = re.sub(r"`[^`]*`", "`…`", text)  # a name in code is what it is
        for word in WORDS:
            if notebook in word.allowed:
                continue
            for pattern in word.never:
                if match := re.search(pattern, plain, re.IGNORECASE):
                    found.append(f"{text!r}: {match[0]!r}, where the word is {word.for_!r}")
        found += [f"{text!r}: {match[0]!r} ({why})" for pattern, why in PLAIN if (match := pattern.search(plain))]
    return found

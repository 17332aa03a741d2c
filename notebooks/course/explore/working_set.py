"""working_set: conversations and storeys → where the tokens of prompts come from, and how long a first token takes."""

import itertools
import random
from collections import Counter
from dataclasses import dataclass
from functools import cache

import numpy as np

from nanoinfer.cache.storeys.block_index import Block, BlockIndex
from nanoinfer.cluster.costs import attended_pairs
from nanoinfer.cluster.published_costs import KV_BYTES_PER_TOKEN, published_costs
from nanoinfer.frontends.llm import LLM
from nanoinfer.viz.words import count
from notebooks.course.explore import Bar, Bars, Control, Explorable, Frame, Number, Numbers

CONVERSATIONS = (2, 4, 6, 8, 12, 16, 24, 32)
HOSTS = (0, 4, 8, 16)  # conversations for which host memory has room
LEAST_HOST = 4  # with files below it: as large as the pool, if nothing else is said
STOREYS = ("pool", "host", "disk")
BLOCK, FIRST, MORE, TURNS = 128, 1024, 256, 5  # tokens: of a block, of the first prompt, of each further turn
LONGEST = FIRST + (TURNS - 1) * MORE
POOL = 4 * LONGEST
MACHINE = "h100-llama-8b"
HOST_SPEED, DISK_SPEED, DISK_BEGINS = 50e9, 6e9, 200e-6  # bytes per second; seconds until the first byte comes


@dataclass(frozen=True)
class Result:
    """Of all turns together: `tokens` of prompts, by where they came from ("computed" is one, too), and the mean `seconds`
    until a first token."""

    tokens: dict[str, int]
    seconds: float


def turns(conversations: int) -> list[tuple[int, np.ndarray]]:
    """Each conversation's prompts: everybody has a turn before anybody has the next one, in another order each time."""
    chance, said = random.Random(19), []
    for turn in range(TURNS):
        order = list(range(conversations))
        chance.shuffle(order)
        for number in order:
            said.append((number, np.arange(FIRST + turn * MORE, dtype=np.int64) + 1_000_000 * number))
    return said


@cache
def served(conversations: int, host_for: int, has_disk: bool) -> Result:
    """All turns, with a pool for four conversations. A hit in a storey below goes to all storeys above."""
    host_for = host_for or (LEAST_HOST if has_disk else 0)
    disk = BlockIndex(64 * LONGEST, BLOCK) if has_disk else None

    def to_disk(block: Block) -> None:
        if disk is not None and host is not None:
            tokens, _ = host.tokens_of(block)
            disk.add(tokens, None, len(tokens) - BLOCK)

    host = BlockIndex(host_for * LONGEST, BLOCK, to_disk) if host_for else None

    def down(block: Block) -> None:
        tokens, _ = pool.tokens_of(block)
        if host is not None:
            host.add(tokens, None, len(tokens) - BLOCK)

    pool = BlockIndex(POOL, BLOCK, down)
    total: Counter[str] = Counter({"pool": 0, "host": 0, "disk": 0, "computed": 0})
    seconds = 0.0
    for _, tokens in turns(conversations):
        at, found = 0, Counter[str]()
        for name, index in zip(STOREYS, (pool, host, disk), strict=True):
            if index is not None:
                end = min(index.reach(tokens, None, at), len(tokens) - BLOCK)
                if end > at:
                    found[name], at = end - at, end
                    index.use(tokens[:end], None, 0)
        found["computed"] = len(tokens) - at
        seconds += first_token_seconds(len(tokens), found)
        total += found
        pool.add(tokens, None, 0)
    names = (*STOREYS, "computed")
    return Result({name: total[name] for name in names}, seconds / (conversations * TURNS))


def first_token_seconds(length: int, found: Counter[str]) -> float:
    """How long a prompt of `length` tokens takes: K/V is fetched first, then the rest is computed in one pass."""
    costs, new = published_costs(MACHINE), found["computed"]
    pairs = attended_pairs(length - new, length)
    fetched = found["host"] * KV_BYTES_PER_TOKEN / HOST_SPEED + found["disk"] * KV_BYTES_PER_TOKEN / DISK_SPEED
    return fetched + (DISK_BEGINS if found["disk"] else 0.0) + costs.extend_seconds(1, new, pairs)


def working_set(llm: LLM | None = None) -> Explorable:
    """Every number of conversations, size of host memory, with files and without. (`llm` is not needed: the package's index
    of blocks and its published costs are enough.)"""
    chosen = itertools.product(enumerate(CONVERSATIONS), enumerate(HOSTS), enumerate((False, True)))
    frames = {(c, h, d): _frame(number, host, disk) for (c, number), (h, host), (d, disk) in chosen}
    return Explorable(
        "What do storeys below the pool bring?",
        f"Each conversation begins with a prompt of {FIRST:,} tokens and has {TURNS} turns, each {MORE} tokens longer than "
        "the one before. All have a turn before any of them has the next one. The pool has room for four, and where there "
        "are files, host memory has at least as much. The machine is on paper: an H100 with Llama 3.1 8B in 8 bits, host "
        "memory at 50 GB/s, a disk at 6 GB/s.",
        [
            Control("conversations", "conversations", list(CONVERSATIONS), start=6),
            Control("host", "host memory, for how many", list(HOSTS)),
            Control("files", "files", [False, True], ["no", "yes"], slider=False),
        ],
        frames,
        height=1022,
        source="Counted with the package's index of blocks and its published costs, not measured.",
    )


def _frame(conversations: int, host: int, disk: bool) -> Frame:
    result, without = served(conversations, host, disk), served(conversations, 0, False)
    prompts = sum(result.tokens.values())
    names = {"pool": "the pool", "host": "host memory", "disk": "files", "computed": "computed"}
    looks = {"pool": "tree", "host": "in-use", "disk": "bar", "computed": "new"}
    size = host or LEAST_HOST
    ways = {"only a pool": (0, False), f"host memory for {size}": (size, False), "and files": (size, True)}
    times = {name: 1000 * served(conversations, *way).seconds for name, way in ways.items()}
    here = list(ways)[2 if disk else 1 if host else 0]
    hits = prompts - result.tokens["computed"]
    panels = [
        Bars(
            "Where the tokens of all prompts come from",
            [
                Bar(names[name], round(100 * tokens / prompts, 1), f"{100 * tokens / prompts:.0f} %", look=looks[name])
                for name, tokens in result.tokens.items()
            ],
            100,
        ),
        Bars(
            "Mean time to the first token",
            [
                Bar(name, round(ms, 2), f"{ms:.1f} ms", look="highlight" if name == here else "in-use")
                for name, ms in times.items()
            ],
            MOST_MS,
        ),
        Numbers(
            "All turns together",
            [
                Number("working set, and the pool", f"{conversations * LONGEST:,} and {POOL:,} tokens"),
                Number("prompt tokens", f"{prompts:,}"),
                Number("found, and computed", f"{hits:,} and {result.tokens['computed']:,}", strong=True),
                Number("time, compared with only a pool", f"{result.seconds / without.seconds:.2f} times", strong=True),
            ],
        ),
    ]
    return Frame(panels, _sentence(conversations, host, disk, result, without))


MOST_MS = 25.0


def _sentence(conversations: int, host: int, disk: bool, result: Result, without: Result) -> str:
    share = 100 * (1 - result.tokens["computed"] / sum(result.tokens.values()))
    said = f"{count(conversations, 'conversation').capitalize()}: {share:.0f} % of the prompt tokens are found. "
    if conversations * LONGEST <= POOL:
        return f"{said}The pool has room for all, so nothing below it is ever asked."
    if not host and not disk:
        return f"{said}The pool is too small, and what leaves it is gone."
    if result.tokens["computed"] == conversations * LONGEST:
        quick = without.seconds / result.seconds
        return (
            f"{said}Each token is computed once, and a first token comes {quick:.1f} times as soon as with only a pool."
        )
    return f"{said}Host memory is too small as well, and what leaves it is gone."

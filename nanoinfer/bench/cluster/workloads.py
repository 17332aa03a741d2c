"""What clients ask: conversations that share system prompts, and bursts of prefixes that nobody has seen before."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

FIRST_TOKEN, LAST_TOKEN = 10, 1999  # ordinary tokens of the bundled model, and of every larger vocabulary


@dataclass(frozen=True)
class Ask:
    """One request: at `at` seconds or, after the answer of the request before it in its session, `at` seconds later. Its
    prompt is the session's tokens so far, prompts and answers, then `token_ids`."""

    at: float
    token_ids: Sequence[int]
    max_tokens: int


Session = Sequence[Ask]


@dataclass(frozen=True)
class Size:
    """Tokens of each part, and how many of everything. `seconds`: until the last conversation begins, and of all bursts.
    `burst_s`: seconds in which the clients of a burst ask. It should be about the prefill of a prefix."""

    seconds: float = 12.0
    chats: int = 48
    systems: int = 8
    system: int = 256
    question: int = 24
    answer: int = 16
    turns: int = 3
    bursts: int = 3
    burst_prefixes: int = 4
    burst_clients: int = 60
    burst_prefix: int = 1024
    burst_s: float = 0.5


def chat(size: Size, seed: int) -> list[Session]:
    """Conversations of several turns. A few system prompts begin all of them; some are asked far more often than others."""
    rng = Random(f"chat {seed}")
    systems = [_tokens(rng, size.system) for _ in range(size.systems)]
    weights = [1 / rank for rank in range(1, size.systems + 1)]
    sessions: list[Session] = []
    for start in sorted(rng.uniform(0, size.seconds) for _ in range(size.chats)):
        (system,) = rng.choices(systems, weights)
        first = Ask(start, [*system, *_tokens(rng, size.question)], size.answer)
        later = [Ask(rng.expovariate(2.0), _tokens(rng, size.question), size.answer) for _ in range(size.turns - 1)]
        sessions.append([first, *later])
    return sessions


def burst(size: Size, seed: int) -> list[Session]:
    """Again and again, many clients ask within about one prefill, with a few new prefixes, some far more often than others.
    Nobody has them cached: a router that waits for reports sends each client elsewhere, and one that looks at nothing but
    prefixes lets the clients of the first one wait for each other, beside replicas that have nothing to do."""
    rng = Random(f"burst {seed}")
    weights = [1 / rank for rank in range(1, size.burst_prefixes + 1)]
    sessions: list[Session] = []
    for number in range(size.bursts):
        start = size.seconds * number / size.bursts
        prefixes = [_tokens(rng, size.burst_prefix) for _ in weights]
        for at in sorted(rng.uniform(0, size.burst_s) for _ in range(size.burst_clients)):
            (prefix,) = rng.choices(prefixes, weights)
            sessions.append([Ask(start + at, [*prefix, *_tokens(rng, size.question)], size.answer)])
    return sessions


WORKLOADS = {"chat": chat, "burst": burst}


def _tokens(rng: Random, count: int) -> list[int]:
    return [rng.randint(FIRST_TOKEN, LAST_TOKEN) for _ in range(count)]

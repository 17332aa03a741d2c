"""How many choices a second PrefixRouter makes, and how many events it follows, by the size of its index. Real time, no
model."""

import time
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from nanoinfer.cache.block_events import BlockStored, EventBatch, block_hashes
from nanoinfer.cluster.costs import PassCosts
from nanoinfer.cluster.policy import RoutedRequest
from nanoinfer.cluster.prefix_router import PrefixRouter
from nanoinfer.cluster.simulate.segments import Segment, all_tokens

SHARED_TOKENS, OWN_TOKENS, ANSWER_TOKENS = 600, 900, 130  # a prompt like one of the trace `chat`
OPEN = 500  # requests


@dataclass(frozen=True)
class RouterSpeed:
    """`blocks`: different ones in the index. `choice_us`: in so many microseconds, half of the choices are made, with the
    hashes of the prompt at hand; these take `hash_us`. `choices_per_second`: with the hashing, and with noting the first
    token and the end. `blocks_per_second`: how fast it follows what replicas report. All of it is processor time, because a
    router's thread does nothing else."""

    replicas: int
    blocks: int
    choice_us: float
    hash_us: float
    choices_per_second: float
    blocks_per_second: float

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def router_speed(
    replicas: int, prompts_per_replica: int, costs: PassCosts, choices: int = 2000, block_size: int = 16
) -> RouterSpeed:
    """Fill an index with so many prompts per replica, then time `choices` requests: hashing, choosing, first token and end.

    A quarter of the requests go on with a prompt that is there; the others have only the shared beginning in common. While
    one is chosen for, OPEN others are on their way or running.
    """
    clock = time.thread_time
    router = PrefixRouter(costs, block_size=block_size)
    names = [f"replica-{number}" for number in range(replicas)]
    for name in names:
        router.add_replica(name)
    shared = Segment(1, SHARED_TOKENS)
    seconds, stored = 0.0, 0
    for replica, name in enumerate(names):
        for number in range(prompts_per_replica):
            event = _stored(replica * prompts_per_replica + number + 2, shared, block_size)
            began = clock()
            router.note_events(name, EventBatch(number, 0.0, [event], source=name))
            seconds += clock() - began
            stored += len(event.block_hashes)
    blocks, known = len(router.index.sets.masks), replicas * prompts_per_replica
    requests, hashing = list[RoutedRequest](), list[float]()
    for number in range(choices):
        own = 2 + number * 7919 % known if number % 4 == 0 else known + 2 + number
        tokens = all_tokens((shared, Segment(own, OWN_TOKENS)))
        began = clock()
        hashes = block_hashes(tokens, block_size)
        hashing.append(clock() - began)
        requests.append(RoutedRequest(str(number), tokens.tolist(), ANSWER_TOKENS, hashes=hashes))
    choosing, noting = list[float](), 0.0
    for number, request in enumerate(requests):
        began = clock()
        router.choose(request)
        chosen = clock()
        if number >= OPEN:
            router.note_first_token(str(number - OPEN))
            router.note_end(str(number - OPEN), ANSWER_TOKENS)
        choosing.append(chosen - began)
        noting += clock() - chosen
    whole = sum(hashing) + sum(choosing) + noting * choices / max(choices - OPEN, 1)
    return RouterSpeed(
        replicas, blocks, 1e6 * median(choosing), 1e6 * median(hashing), choices / whole, stored / seconds
    )


def _stored(own: int, shared: Segment, block_size: int) -> BlockStored:
    tokens = all_tokens((shared, Segment(own, OWN_TOKENS)))
    hashes = block_hashes(tokens, block_size)
    return BlockStored(hashes, None, tokens[: len(hashes) * block_size].tolist(), block_size, None, None)

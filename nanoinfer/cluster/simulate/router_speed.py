"""How many choices a second PrefixRouter makes, and how many events it follows, by the size of its index. Real time, no
model."""

import time
from dataclasses import asdict, dataclass
from typing import Any

from nanoinfer.cache.block_events import BlockStored, EventBatch, block_hashes
from nanoinfer.cluster.costs import PassCosts
from nanoinfer.cluster.policy import RoutedRequest
from nanoinfer.cluster.prefix_router import PrefixRouter
from nanoinfer.cluster.simulate.segments import Segment, all_tokens

SHARED_TOKENS, OWN_TOKENS, ANSWER_TOKENS = 600, 900, 130  # a prompt like one of the trace `chat`


@dataclass(frozen=True)
class RouterSpeed:
    """`blocks`: in the index, of all replicas. `blocks_per_second`: how fast it follows what replicas report. Both in
    seconds of processor time, because a router's thread does nothing else."""

    replicas: int
    blocks: int
    choices_per_second: float
    blocks_per_second: float

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def router_speed(
    replicas: int, prompts_per_replica: int, costs: PassCosts, choices: int = 300, block_size: int = 16
) -> RouterSpeed:
    """Fill an index with so many prompts per replica, then time `choices` requests: choosing, first token and end.

    A quarter of the requests go on with a prompt that is there; the others have only the shared beginning in common.
    """
    clock = time.thread_time
    router = PrefixRouter(costs, block_size=block_size)
    names = [f"replica-{number}" for number in range(replicas)]
    for name in names:
        router.add_replica(name)
    shared = Segment(1, SHARED_TOKENS)
    blocks, seconds = 0, 0.0
    for replica, name in enumerate(names):
        for number in range(prompts_per_replica):
            event = _stored(replica * prompts_per_replica + number + 2, shared, block_size)
            began = clock()
            router.note_events(name, EventBatch(number, 0.0, [event], source=name))
            seconds += clock() - began
            blocks += len(event.block_hashes)
    known = replicas * prompts_per_replica
    spent = 0.0
    for number in range(choices):
        own = 2 + number * 7919 % known if number % 4 == 0 else known + 2 + number
        request = RoutedRequest(str(number), all_tokens((shared, Segment(own, OWN_TOKENS))).tolist(), ANSWER_TOKENS)
        began = clock()
        router.choose(request)
        router.note_first_token(request.request_id)
        router.note_end(request.request_id, ANSWER_TOKENS)
        spent += clock() - began
    return RouterSpeed(replicas, blocks, choices / spent, blocks / seconds)


def _stored(own: int, shared: Segment, block_size: int) -> BlockStored:
    tokens = all_tokens((shared, Segment(own, OWN_TOKENS)))
    hashes = block_hashes(tokens, block_size)
    return BlockStored(hashes, None, tokens[: len(hashes) * block_size].tolist(), block_size, None, None)

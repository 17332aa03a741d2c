"""Replicas in virtual time: real engines with real trees, whose passes take as long as a cost model says.

    run = serve_chats(chats, LeastLoaded())               three replicas, and a router in front of them
    run = serve_chats(chats, LeastLoaded(), dies=("B", 2.5))
    compare_runs({"least loaded": run})                   one line of numbers per run

What an engine computes is real: tokens, hits, evictions, events. Only the clock is not, so that every number is the same on
every computer. A replica makes one pass after the other. What comes of a pass is known at its end, and so is what has
changed in the tree: `report_seconds` later, the router is told.

`story_chats` has the traffic of notebook 17, and `Informed` is its router.
"""

import heapq
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any

from nanoinfer.cache.block_events import EventBatch, block_hashes
from nanoinfer.cluster.block_index import BlockIndex
from nanoinfer.cluster.costs import PassCosts
from nanoinfer.cluster.policy import Policy, RoutedRequest
from nanoinfer.engine.engine import Engine
from nanoinfer.model.forward_batch import ForwardMode
from nanoinfer.outputs import RequestOutput
from nanoinfer.sampling_params import SamplingParams
from notebooks.course.prompts import STORY
from notebooks.course.workloads import new_engine

# A machine on which a prompt of 250 tokens takes a quarter of a second, and each further token 10 ms.
COSTS = PassCosts(
    seconds_per_pass=0.01, seconds_per_prompt_token=0.001, seconds_per_decode_row=0.0005, seconds_per_context_token=0.0
)
BLOCK = 16  # tokens
HEROES = ("fox named Lily", "bear named Max", "cat named Mia", "dog named Ben", "frog named Tom", "duck named Sue")
NEW_HEROES = ("hen named Tilly", "pig named Otto", "owl named Ruth")
POPULAR = (6, 3, 2, 2, 1, 1)  # how often each story is chosen, compared with the others
QUESTIONS = (
    *("What did the seed need?", "Who came by first?", "Tell me more about the pond."),
    *("And then?", "Was it cold at night?", "Why did the hen laugh?"),
)


@dataclass(frozen=True)
class Chat:
    """A conversation. Its first prompt, at `at` seconds, is `beginning` and the first of `says`; each later one is all that
    was said so far and the next of `says`, `pause` seconds after the answer before. Answers have `new_tokens` tokens."""

    name: str
    beginning: Sequence[int]
    says: Sequence[Sequence[int]]
    at: float = 0.0
    pause: float = 1.0
    new_tokens: int = 12


def story_of(encode: Callable[[str], list[int]], hero: str) -> list[int]:
    """The tokens of our story, with another hero."""
    return encode(STORY.replace(HEROES[0], hero).replace("Lily", hero.split()[-1]))


def story_chats(encode: Callable[[str], list[int]], seed: int) -> list[Chat]:
    """24 chats of three requests about the stories of HEROES; eight begin per second."""
    stories = [story_of(encode, hero) for hero in HEROES]
    return draw_chats(seed, stories, POPULAR, [encode(" " + question)[1:] for question in QUESTIONS])


def story_burst(encode: Callable[[str], list[int]], at: float) -> list[Chat]:
    """18 requests for three new stories within a tenth of a second."""
    order = [0, 1, 2] * 6
    random.Random(1).shuffle(order)
    stories = [story_of(encode, hero) for hero in NEW_HEROES]
    asks = [encode(" " + question)[1:] for question in QUESTIONS]
    return [Chat(f"new {i}", stories[k], [asks[i % 6]], at + 0.005 * i) for i, k in enumerate(order)]


def draw_chats(
    seed: int,
    beginnings: Sequence[Sequence[int]],
    popular: Sequence[float],
    says: Sequence[Sequence[int]],
    count: int = 24,
    turns: int = 3,
    per_second: float = 8.0,
    **fields: Any,
) -> list[Chat]:
    """Chats that arrive at random; `popular`: how often each beginning is chosen. `fields`: others of a Chat."""
    chance, now, chats = random.Random(seed), 0.0, []
    for i in range(count):
        now += chance.expovariate(per_second)
        (beginning,) = chance.choices(beginnings, popular)
        chats.append(Chat(f"chat {i}", beginning, [chance.choice(says) for _ in range(turns)], round(now, 3), **fields))
    return chats


@dataclass
class Served:
    """One request: a turn of a chat. Times are in seconds; `cached_tokens`: what the replica found that gave
    its first token. `replicas`: where it has been, in order."""

    id: str
    chat: Chat
    turn: int
    prompt: list[int]
    at: float
    replicas: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    cached_tokens: int = 0
    first_token_at: float = 0.0
    end_at: float = 0.0
    done: int = 0  # of its tokens, those from replicas that died

    @property
    def ttft(self) -> float:
        """Seconds from its arrival to its first token."""
        return self.first_token_at - self.at


@dataclass(frozen=True)
class ReplicaPass:
    """A pass of a replica: from when to when, and how many prompt tokens it found and computed."""

    start: float
    end: float
    cached: int
    computed: int


@dataclass
class ClusterRun:
    """What came of the chats: all requests in order of arrival, and the passes of each replica."""

    served: list[Served] = field(default_factory=list)
    passes: dict[str, list[ReplicaPass]] = field(default_factory=dict)
    engines: dict[str, Engine] = field(default_factory=dict)

    @property
    def hit_rate(self) -> float:
        """The share of all prompt tokens that were found in a tree. Of a request sent again, both prompts count."""
        found = sum(each.cached for passes in self.passes.values() for each in passes)
        return found / (found + self.computed)

    @property
    def computed(self) -> int:
        """How many prompt tokens were computed."""
        return sum(each.computed for passes in self.passes.values() for each in passes)

    @property
    def mean_ttft(self) -> float:
        """The mean time to the first token."""
        return sum(self.ttfts()) / len(self.served)

    def ttfts(self) -> list[float]:
        """The times to the first token, the shortest first."""
        return sorted(each.ttft for each in self.served)

    def tokens(self) -> dict[str, list[int]]:
        """The answers, by request."""
        return {each.id: each.token_ids for each in self.served}


@dataclass
class View:
    """What a router knows of a replica when a request arrives."""

    name: str
    cached: int  # tokens of this prompt that the replica holds
    queued: int  # prompt tokens that were sent there and are still to be computed
    requests: int  # requests that were sent there and have not ended


class Informed(Policy):
    """Sends a request to the one of its views that `best(prompt_tokens, views)` returns. `memory`: of what was sent where,
    as in exercise 17.2."""

    def __init__(self, best: Callable[..., View], memory: Any = None, clock: Callable[[], float] = time.monotonic):
        super().__init__()
        self.index = BlockIndex(BLOCK)
        self.best, self.memory, self.clock = best, memory, clock
        self.bits = dict[str, int]()  # by replica
        self.uncomputed = dict[str, int]()  # by request: tokens

    def add_replica(self, replica: str) -> None:
        super().add_replica(replica)
        self.bits[replica] = 1 << len(self.bits)
        self.index.add(replica, self.bits[replica])

    def remove_replica(self, replica: str) -> None:
        super().remove_replica(replica)
        self.index.remove(replica)

    def note_events(self, replica: str, batch: EventBatch) -> bool:
        return self.index.note_events(replica, batch)

    def _started(self, request_id: str, replica: str, cached_tokens: int | None) -> None:
        self.uncomputed.pop(request_id)

    def _pick(self, request: RoutedRequest) -> str:
        hashes = block_hashes(request.token_ids, BLOCK)
        chosen = self.best(len(request.token_ids), [self.view(replica, hashes) for replica in self.replicas])
        self.uncomputed[request.request_id] = len(request.token_ids) - chosen.cached
        if self.memory is not None:
            self.memory.sent(chosen.name, hashes, self.clock())
        return chosen.name

    def view(self, replica: str, hashes: Sequence[int]) -> View:
        held = {each for each in hashes if self.index.sets.masks.get(each, 0) & self.bits[replica]}
        blocks = next((i for i, each in enumerate(hashes) if each not in held), len(hashes))
        if self.memory is not None:
            blocks = self.memory.matched(replica, hashes, held, self.clock())
        queued = sum(self.uncomputed.get(request, 0) for request in self._at[replica])
        return View(replica, BLOCK * blocks, queued, self.in_flight(replica))


def longest_match(prompt_tokens: int, views: Sequence[View]) -> View:
    """The replica that holds most of the prompt; among equals, the one with the fewest requests."""
    return max(views, key=lambda view: (view.cached, -view.requests))


@dataclass
class _Replica:
    name: str
    engine: Engine
    next_seq: int = 0
    is_busy: bool = False
    is_alive: bool = True
    serving: dict[int, Served] = field(default_factory=dict)  # by the engine's request id


def serve_chats(
    chats: Sequence[Chat],
    policy: Policy | Callable[[Callable[[], float]], Policy],
    *,
    replicas: Sequence[str] = ("A", "B", "C"),
    costs: PassCosts = COSTS,
    report_seconds: float = 0.0,
    dies: tuple[str, float] | None = None,
    **settings: Any,
) -> ClusterRun:
    """Serve all chats to their end. `policy`: a router, or a function that makes one with a clock. `dies`: a replica, and
    when it is gone with all that it has. `settings` of the engines, as in `workloads.new_engine`."""
    return _Cluster(policy, replicas, costs, report_seconds, settings).serve(chats, dies)


def compare_runs(runs: Mapping[str, ClusterRun]) -> None:
    """Print one line of numbers per run."""
    width = max(map(len, runs))
    print(f"{'':{width}}  requests of each  computed by each     in all  hit rate  first token: mean  longest")
    for name, run in runs.items():
        requests = " ".join(f"{sum(each.replicas[-1] == r for each in run.served):4}" for r in run.passes)
        computed = " ".join(f"{sum(each.computed for each in passes):5}" for passes in run.passes.values())
        mean = f"{run.mean_ttft:.2f} s"
        counted = f"{requests:>16}  {computed:>17}  {run.computed:8}  {run.hit_rate:8.0%}"
        print(f"{name:{width}}  {counted}  {mean:>17}  {run.ttfts()[-1]:5.2f} s")


class _Cluster:
    def __init__(self, policy: Any, names: Sequence[str], costs: PassCosts, report_seconds: float, settings: Any):
        self.now, self._costs, self._report_seconds = 0.0, costs, report_seconds
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._order = count()
        self._policy: Policy = policy if hasattr(policy, "choose") else policy(lambda: self.now)
        self._replicas = {name: _Replica(name, new_engine(clock=lambda: self.now, **settings)) for name in names}
        self._run = ClusterRun(
            passes={name: [] for name in names}, engines={name: each.engine for name, each in self._replicas.items()}
        )
        for name, replica in self._replicas.items():
            self._policy.add_replica(name)
            replica.engine.block_feed(BLOCK)

    def serve(self, chats: Sequence[Chat], dies: tuple[str, float] | None) -> ClusterRun:
        for chat in chats:
            self._at(chat.at, partial(self._turn, chat, 0, list(chat.beginning)))
        if dies is not None:
            self._at(dies[1], lambda: self._die(self._replicas[dies[0]]))
        while self._events:
            self.now, _, do = heapq.heappop(self._events)
            do()
        return self._run

    def _at(self, seconds: float, do: Callable[[], object]) -> None:
        heapq.heappush(self._events, (seconds, next(self._order), do))

    def _turn(self, chat: Chat, turn: int, said: list[int]) -> None:
        served = Served(f"{chat.name}.{turn}", chat, turn, [*said, *chat.says[turn]], self.now)
        self._run.served.append(served)
        self._send(served)

    def _send(self, served: Served) -> None:
        """To a replica that the router chooses, with the tokens that it has already."""
        served.done = len(served.token_ids)
        tokens, left = served.prompt + served.token_ids, served.chat.new_tokens - served.done
        replica = self._replicas[self._policy.choose(RoutedRequest(served.id, tokens, left))]
        served.replicas.append(replica.name)
        params = SamplingParams(max_new_tokens=left, temperature=0, ignore_eos=True)
        replica.serving[replica.engine.add_request(tokens, params)] = served
        if not replica.is_busy:
            self._begin_pass(replica)

    def _begin_pass(self, replica: _Replica) -> None:
        """Compute a pass now; what came of it is known at its end."""
        replica.is_busy = replica.engine.has_unfinished()
        if not replica.is_busy:
            return
        outputs, batch = replica.engine.step(), replica.engine.last_batch
        cached, computed = 0, 0
        assert batch is not None
        if batch.forward_mode is ForwardMode.EXTEND:
            computed = len(batch.input_ids)
            cached = int(batch.prefix_lens.sum()) if batch.prefix_lens is not None else 0
        if computed:
            seconds = self._costs.extend_seconds(len(batch.reqs), computed, 0)
        else:
            seconds = self._costs.decode_seconds(len(batch.reqs), int(batch.seq_lens.sum()))
        passed = ReplicaPass(self.now, self.now + seconds, cached, computed)
        self._run.passes[replica.name].append(passed)
        self._at(passed.end, lambda: self._end_pass(replica, outputs))

    def _end_pass(self, replica: _Replica, outputs: list[RequestOutput]) -> None:
        if not replica.is_alive:
            return
        batches = replica.engine.block_feed(BLOCK).since(replica.next_seq) or []
        replica.next_seq += len(batches)
        for batch in batches:
            self._at(self.now + self._report_seconds, partial(self._report, replica, batch))
        for output in outputs:
            self._note(replica, replica.serving[output.request_id], output)
        self._begin_pass(replica)

    def _note(self, replica: _Replica, served: Served, output: RequestOutput) -> None:
        served.token_ids = served.token_ids[: served.done] + output.token_ids
        if len(output.token_ids) == 1:
            self._policy.note_first_token(served.id, output.cached_tokens)
            if not served.done:
                served.cached_tokens, served.first_token_at = output.cached_tokens, self.now
        if output.finished:
            del replica.serving[output.request_id]
            self._policy.note_end(served.id, len(output.token_ids))
            served.end_at, chat, turn = self.now, served.chat, served.turn + 1
            if turn < len(chat.says):
                said = served.prompt + served.token_ids
                self._at(self.now + chat.pause, lambda: self._turn(chat, turn, said))

    def _report(self, replica: _Replica, batch: Any) -> None:
        if replica.is_alive and not self._policy.note_events(replica.name, batch):
            snapshot = replica.engine.block_feed(BLOCK).snapshot()
            self._policy.note_snapshot(replica.name, snapshot)

    def _die(self, replica: _Replica) -> None:
        """Its requests go elsewhere, and continue behind the tokens that they have."""
        replica.is_alive, passes = False, self._run.passes[replica.name]
        if passes and passes[-1].end > self.now:
            passes[-1] = replace(passes[-1], end=self.now)
        self._policy.remove_replica(replica.name)
        for served in replica.serving.values():
            self._send(served)

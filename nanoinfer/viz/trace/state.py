"""TraceState: slots, rows, tree and requests, rebuilt from the events of a trace."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from nanoinfer.outputs import tokens_by_tier
from nanoinfer.viz.trace import events as ev
from nanoinfer.viz.trace.events import TraceEvent, TraceRequest, from_runs

WAITING, PREFILLING, RUNNING, RETRACTED = "waiting", "prefilling", "running", "retracted"
PAUSED, ENDED = "paused", "ended"


@dataclass(eq=False)
class NodeState:
    """A node of the tree, with the names of TreeNode: `key` has its tokens, `value` the slots with their K/V."""

    number: int
    parent: "NodeState | None"
    key: list[int]
    value: list[int]
    extra_key: str | None = None
    creation_time: int = 0
    lock_ref: int = 0
    last_access_time: int = 0
    hit_count: int = 0
    children: list["NodeState"] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.key)


@dataclass
class RequestState:
    """A request and what it holds, with the names of Req.

    `status`: waiting, prefilling (a later pass continues its prompt), running, retracted (waiting again), paused or ended.
    `slots`: the slots that the request owns, from position `tree_len` on. Those before belong to the tree, on the path to
    `node`. `fetched`: which positions came from which tier, for the first admission, as in Req.
    """

    request: TraceRequest
    status: str = WAITING
    tokens: list[int] = field(default_factory=list)
    row: int | None = None
    node: int = 0
    tree_len: int = 0
    kv_len: int = 0
    slots: list[int] = field(default_factory=list)
    cached_tokens: int = 0
    fetched: dict[str, tuple[int, int]] = field(default_factory=dict)
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    admitted: bool = False
    retractions: int = 0
    finish_reason: str | None = None

    @property
    def name(self) -> str:
        return self.request.name

    @property
    def output_ids(self) -> list[int]:
        return self.tokens[len(self.request.prompt) :]

    @property
    def cached_tokens_by_tier(self) -> dict[str, int]:
        """Where the `cached_tokens` were, as in RequestOutput: in the pool's tree (`device`), or fetched from a tier."""
        return tokens_by_tier(self.cached_tokens, self.fetched)

    @property
    def is_running(self) -> bool:
        """Whether it has a row and slots."""
        return self.status in (PREFILLING, RUNNING)


class TraceState:
    """The state of an engine after an event. `requests`: those that have arrived, by index; `nodes`: by number, 0 the root.

    `size`: how many slots the pool has. `free`: how many of them are free, as counted by the pool itself.
    """

    def __init__(self, size: int, requests: Sequence[TraceRequest]):
        self.size, self.step, self.mode, self.time = size, 0, ev.START, 0.0
        self.free = size
        self.requests: dict[int, RequestState] = {}
        self.nodes: dict[int, NodeState] = {0: NodeState(0, None, [], [])}
        self._all = requests

    # --- looking at it -------------------------------------------------------------------------------------------

    @property
    def root(self) -> NodeState:
        return self.nodes[0]

    @property
    def waiting(self) -> list[RequestState]:
        """Requests that wait, including retracted ones, in order of arrival."""
        return [req for req in self.requests.values() if req.status in (WAITING, RETRACTED)]

    @property
    def running(self) -> list[RequestState]:
        """Requests that hold slots, in order of arrival."""
        return [req for req in self.requests.values() if req.is_running]

    def walk(self) -> Iterator[tuple[int, NodeState]]:
        """Every node but the root as `(depth, node)`, depth from 1, parents before children, oldest child first."""
        stack = [(1, child) for child in reversed(self.root.children)]
        while stack:
            depth, node = stack.pop()
            yield depth, node
            stack += [(depth + 1, child) for child in reversed(node.children)]

    def row_slots(self, req: RequestState) -> list[int]:
        """The slots in a running request's row, position by position."""
        path: list[int] = []
        node: NodeState | None = self.nodes[req.node]
        while node is not None:
            path[:0] = node.value
            node = node.parent
        return path[: req.tree_len] + req.slots

    def tree_slots(self) -> list[int]:
        """Every slot the tree owns."""
        return [slot for _, node in self.walk() for slot in node.value]

    def protected_size(self) -> int:
        """How many tokens of the tree are locked by running requests."""
        return sum(len(node) for _, node in self.walk() if node.lock_ref)

    def evictable_size(self) -> int:
        """How many tokens of the tree could be evicted."""
        return sum(len(node) for _, node in self.walk() if not node.lock_ref)

    def check_integrity(self) -> None:
        """RuntimeError unless every slot has exactly one owner and the pool's own count agrees."""
        slots = self.tree_slots() + [slot for req in self.running for slot in req.slots]
        if len(set(slots)) != len(slots):
            raise RuntimeError(f"after step {self.step}: a slot has two owners")
        if self.free + len(slots) != self.size:
            raise RuntimeError(f"after step {self.step}: {self.free} free + {len(slots)} owned, must be {self.size}")

    # --- playing -------------------------------------------------------------------------------------------------

    def apply(self, event: TraceEvent) -> None:
        """Move to the state after `event`."""
        self.step, self.mode, self.time, self.free = event.step, event.mode, event.time + event.seconds, event.free
        for index in event.arrived:
            request = self._all[index]
            req = self.requests[index] = RequestState(request, tokens=request.prompt + request.outputs)
            req.cached_tokens, req.admitted = request.cached_tokens, request.admitted
            req.drafted_tokens, req.accepted_tokens = request.drafted_tokens, request.accepted_tokens
            req.fetched = dict(request.fetched)
        for operation in event.tree:
            self._change_tree(*operation)
        for node, lock_ref, last_access_time, hit_count in event.nodes:
            use = self.nodes[node]
            use.lock_ref, use.last_access_time, use.hit_count = lock_ref, last_access_time, hit_count
        for index, row, number, tree_len, kv_len, runs in event.held:
            req = self.requests[index]
            req.row, req.node, req.tree_len, req.kv_len, req.slots = row, number, tree_len, kv_len, from_runs(runs)
            req.admitted = True
            req.status = RUNNING if kv_len + 1 == len(req.tokens) and req.output_ids else PREFILLING
        for index in event.retracted:
            self._release(self.requests[index], RETRACTED)
            self.requests[index].retractions += 1
            self.requests[index].admitted = True
        for index in event.paused:
            self._release(self.requests[index], PAUSED)
        for index in event.resumed:
            self.requests[index].status = RETRACTED if self.requests[index].retractions else WAITING
        for fetch in event.fetched:
            if not self.requests[fetch.request].admitted:
                self.requests[fetch.request].fetched = fetch.parts
        for index, row_, number, prefix_len in event.admitted:
            req = self.requests[index]
            req.status, req.row, req.node = RUNNING, row_, number
            req.tree_len = req.kv_len = prefix_len
            if not req.admitted:
                req.cached_tokens = prefix_len
            req.admitted = True
        for entry in event.batch:
            self._compute(self.requests[entry.request], entry, failed=event.error is not None)
        for index, number, tree_len in event.paths:
            req = self.requests[index]
            req.slots = req.slots[tree_len - req.tree_len :]
            req.node, req.tree_len = number, tree_len
        for index, reason in event.ended:
            self._release(self.requests[index], ENDED)
            self.requests[index].finish_reason = reason

    def _compute(self, req: RequestState, entry: ev.BatchEntry, failed: bool) -> None:
        req.slots += from_runs(entry.slots if entry.allocated is None else entry.allocated)
        req.kv_len = entry.kv_len
        req.status = RUNNING if entry.tokens else PREFILLING
        req.tokens += entry.tokens
        if entry.tokens or not failed:
            req.drafted_tokens += len(entry.drafts or ())
            req.accepted_tokens += entry.accepted

    def _release(self, req: RequestState, status: str) -> None:
        req.status, req.row, req.node, req.tree_len, req.kv_len, req.slots = status, None, 0, 0, 0, []

    def _change_tree(self, what: str, number: int, *rest: Any) -> None:
        if what == "add":
            parent, tokens, runs, extra_key, time = rest
            node = NodeState(number, self.nodes[parent], list(tokens), from_runs(runs), extra_key, time, 0, time)
            self.nodes[parent].children.append(node)
            self.nodes[number] = node
        elif what == "grow":
            tokens, runs = rest
            self.nodes[number].key += tokens
            self.nodes[number].value += from_runs(runs)
        elif what == "split":
            self._split(self.nodes[number], *rest)
        else:
            node = self.nodes.pop(number)
            assert node.parent is not None
            node.parent.children.remove(node)

    def _split(self, node: NodeState, number: int, length: int) -> None:
        """Split `node`, which becomes the lower part, as in RadixCache."""
        parent = node.parent
        assert parent is not None
        upper = NodeState(number, parent, node.key[:length], node.value[:length], node.extra_key, node.creation_time)
        parent.children[parent.children.index(node)] = upper
        upper.children.append(node)
        node.key, node.value, node.parent = node.key[length:], node.value[length:], upper
        self.nodes[number] = upper

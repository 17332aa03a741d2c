"""The live engine and the state that is rebuilt from its trace, in the same words."""

from typing import Any

from nanoinfer import Engine
from nanoinfer.cache.tree_node import TreeNode
from nanoinfer.outputs import tokens_by_tier
from nanoinfer.requests.req import Req
from nanoinfer.viz.trace import Trace, TraceState
from nanoinfer.viz.trace.state import NodeState


def tree_of(node: TreeNode | NodeState) -> tuple[Any, ...]:
    """A node with everything below it."""
    children = node.children.values() if isinstance(node, TreeNode) else node.children
    key, value = ([int(number) for number in numbers] for numbers in (node.key, node.value))
    return (
        (key, value, node.lock_ref, node.last_access_time, node.hit_count, node.creation_time),
        [tree_of(child) for child in children],
    )


def of_engine(engine: Engine) -> dict[str, Any]:
    def key(req: Req) -> tuple[int, int]:
        return req.request_id, engine.open_requests.groups[req.request_id].reqs.index(req)

    scheduler, pool, rows = engine.scheduler, engine.cache.token_to_kv_pool, engine.cache.rows
    unfinished = (*scheduler.running, *scheduler.waiting, *scheduler.paused)
    return {
        "free": pool.free_slots().tolist(),
        "rows": {req.req_pool_idx: rows[req.req_pool_idx, : req.allocated_len].tolist() for req in scheduler.running},
        "slots": sorted(rows[r.req_pool_idx, r.tree_len : r.allocated_len].tolist() for r in scheduler.running),
        "tokens": {key(req): req.token_ids[: req.num_tokens].tolist() for req in unfinished},
        "kv_len": {key(req): req.kv_len for req in scheduler.running},
        "cached": {key(req): tokens_by_tier(req.cached_tokens, req.fetched) for req in unfinished},
        "drafts": {key(req): (req.drafted_tokens, req.accepted_tokens) for req in unfinished},
        "waiting": sorted(map(key, scheduler.waiting)),
        "retracted": sorted(key(req) for req in scheduler.waiting if req.num_retractions),
        "paused": sorted(map(key, scheduler.paused)),
        "prefilling": [key(req) for req in (scheduler.prefilling,) if req is not None],
        "tree": tree_of(engine.radix_cache.root)[1],
        "namespaces": [repr(child.edge[0]) for child in engine.radix_cache.root.children.values()],
        "protected": engine.radix_cache.protected_size(),
        "evictable": engine.radix_cache.evictable_size(),
    }


def of_trace(state: TraceState) -> dict[str, Any]:
    live = [req for req in state.requests.values() if req.status != "ended"]
    names = {id(req): (req.request.request_id, req.request.completion) for req in live}
    return {
        "free": sorted({*range(state.size)} - {*state.tree_slots()}.union(*(req.slots for req in state.running))),
        "rows": {req.row: state.row_slots(req) for req in state.running},
        "slots": sorted(req.slots for req in state.running),
        "tokens": {names[id(req)]: req.tokens for req in live},
        "kv_len": {names[id(req)]: req.kv_len for req in state.running},
        "cached": {names[id(req)]: req.cached_tokens_by_tier for req in live},
        "drafts": {names[id(req)]: (req.drafted_tokens, req.accepted_tokens) for req in live},
        "waiting": sorted(names[id(req)] for req in state.waiting),
        "retracted": sorted(names[id(req)] for req in state.waiting if req.status == "retracted"),
        "paused": sorted(names[id(req)] for req in live if req.status == "paused"),
        "prefilling": [names[id(req)] for req in state.running if req.status == "prefilling"],
        "tree": tree_of(state.root)[1],
        "namespaces": [repr(None) if child.extra_key is None else child.extra_key for child in state.root.children],
        "protected": state.protected_size(),
        "evictable": state.evictable_size(),
    }


def assert_same(trace: Trace, engine: Engine, step: int | None = None) -> None:
    state = trace.state(step)
    state.check_integrity()
    engine.check_integrity()
    wanted, got = of_engine(engine), of_trace(state)
    for name, value in wanted.items():
        assert got[name] == value, name
    assert state.free == engine.cache.token_to_kv_pool.available_size()

"""engine: slots, rows and tree of a live Engine in one picture."""

from nanoinfer.engine.engine import Engine
from nanoinfer.viz.facts import decoder_of, request_labels
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.rows import draw_request_rows
from nanoinfer.viz.sheet import Sheet
from nanoinfer.viz.slots import draw_slot_map, owners, running_labels
from nanoinfer.viz.tree import draw_radix_tree
from nanoinfer.viz.words import count, plural_list

MOST_ROWS = 8


def engine(engine: Engine, *, title: str | None = None, caption: str | None = None) -> Picture:
    """The owner of each slot, the rows of the running requests (the first 8), the tree, and the requests that wait."""
    scheduler, cache = engine.scheduler, engine.cache
    running, waiting = len(scheduler.running), list(scheduler.waiting)
    sheet = Sheet(title, f"Engine: {running} running, {len(waiting)} waiting", caption=caption)
    sheet.heading(f"TokenToKVPool: {cache.token_to_kv_pool.size:,} slots, page_size={cache.token_to_kv_pool.page_size}")
    slots = draw_slot_map(sheet, cache.token_to_kv_pool, owners(engine), engine.radix_cache, None)
    reqs = list(zip(running_labels(engine), scheduler.running, strict=True))
    shown = [(label, req) for label, req in reqs if req.req_pool_idx is not None][:MOST_ROWS]
    sheet.heading(
        f"ReqToTokenPool: {count(cache.req_to_token_pool.size, 'row')}, {cache.req_to_token_pool.available_size()} free"
    )
    rows = draw_request_rows(
        sheet,
        cache.req_to_token_pool,
        {req.req_pool_idx: req.kv_len for _, req in shown if req.req_pool_idx is not None},
        prefix_lens={
            req.req_pool_idx: min(req.tree_len, req.kv_len) for _, req in shown if req.req_pool_idx is not None
        },
        labels=[label for label, _ in shown],
        fetched={
            req.req_pool_idx: req.fetched
            for _, req in shown
            if req.req_pool_idx is not None and req.num_admissions == 1  # at another one, others are fetched
        },
    )
    if len(reqs) > len(shown):
        sheet.caption(f"… and {count(len(reqs) - len(shown), 'more running request')}.")
    if engine.radix_cache.disable:
        sheet.heading("RadixCache: disabled")
        tree = "Radix tree: disabled."
    else:
        sheet.heading(f"RadixCache: {count(engine.radix_cache.total_size(), 'token')}")
        tree = draw_radix_tree(sheet, engine.radix_cache, decoder_of(engine.builder.tokenizer), None)
    names = [
        f"{label} ({count(req.num_tokens, 'token')}{', retracted' if req.num_retractions else ''})"
        for label, req in zip(request_labels(engine, waiting), waiting, strict=True)
    ]
    queue = f"Waiting: {plural_list(names)}." if names else "No request is waiting."
    sheet.caption(queue)
    return sheet.picture(f"{running} running, {len(waiting)} waiting. {slots} {rows} {tree} {queue}")

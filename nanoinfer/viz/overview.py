"""engine, timeline: slots, rows and tree of a live Engine in one picture, and the requests of a trace over steps."""

from typing import Any, Unpack

from nanoinfer.engine.engine import Engine
from nanoinfer.viz.facts import decoder_of, request_labels
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.rows import draw_request_rows
from nanoinfer.viz.sheet import Heading, Sheet
from nanoinfer.viz.slots import draw_slot_map, owners
from nanoinfer.viz.tree import draw_radix_tree
from nanoinfer.viz.words import count, plural_list

MOST_ROWS = 8


def engine(engine: Engine, **heading: Unpack[Heading]) -> Picture:
    """The owner of each slot, the rows of the running requests (the first 8), the tree, and the requests that wait."""
    scheduler, cache = engine.scheduler, engine.cache
    running, waiting = len(scheduler.running), list(scheduler.waiting)
    sheet = Sheet(default_title=f"Engine: {running} running, {len(waiting)} waiting", **heading)
    sheet.heading(f"TokenToKVPool: {cache.token_to_kv_pool.size:,} slots, page_size={cache.token_to_kv_pool.page_size}")
    slots = draw_slot_map(sheet, cache.token_to_kv_pool, owners(engine), engine.radix_cache, None)
    labelled = zip(request_labels(engine, scheduler.running), scheduler.running, strict=True)
    shown = {req.req_pool_idx: (label, req) for label, req in labelled if req.req_pool_idx is not None}
    shown = dict(list(shown.items())[:MOST_ROWS])
    sheet.heading(
        f"ReqToTokenPool: {count(cache.req_to_token_pool.size, 'row')}, {cache.req_to_token_pool.available_size()} free"
    )
    rows = draw_request_rows(
        sheet,
        cache.req_to_token_pool,
        {row: req.kv_len for row, (_, req) in shown.items()},
        prefix_lens={row: min(req.tree_len, req.kv_len) for row, (_, req) in shown.items()},
        labels=[label for label, _ in shown.values()],
        # when admitted again, others are fetched
        fetched={row: req.fetched for row, (_, req) in shown.items() if req.num_admissions == 1},
    )
    if running > len(shown):
        sheet.caption(f"… and {count(running - len(shown), 'more running request')}.")
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


def timeline(trace: Any, **options: Any) -> Picture:
    """When each request of a Trace waited, was extended (with the number of tokens), decoded, was retracted, and ended.

    Options besides `title` and `caption`: `steps`: how many steps wide the axis is, so
    that timelines of different runs can be compared. `labels`: `{number of the request: what its lane is called}`;
    `highlight`: the number of a request to mark; numbers as in `trace.requests`. `occupancy=True`: above the lanes, over
    the same steps, who has the pool's slots after each step, and where requests are retracted, so that the cause is seen.
    At most 32 requests are drawn. Raises ValueError for a trace without steps.
    """
    picture: Picture = trace.timeline(**options)  # pictures know of no traces: a trace knows how it is drawn
    return picture

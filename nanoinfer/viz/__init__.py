"""Pictures of the engine, drawn from its live objects with matplotlib; nothing here changes what it draws.

As the last expression of a notebook cell, `viz.slot_map(pool, {"request 1": slots})` shows a picture, its numbers in words
folded away beneath it; `viz.slot_map(...).save("slots.png")` writes it. Every function returns a `Picture`, and takes a
`title` and a `caption`, one sentence beneath the picture that says what to look at. Colours mean the same in all of them
(palette.py): green the radix tree (dark: locked), orange what is computed in this pass, a colour for each
request (blue is request 0, and nothing else is), white free, grey unused, pink marked.

How to write one: a picture is a function that takes live objects and returns a Picture. It may stand in any file, inside
this package or outside it, and nothing has to know of it:

    from nanoinfer.engine.engine import Engine
    from nanoinfer.viz import Picture, Sheet
    from nanoinfer.viz.facts import request_labels
    from nanoinfer.viz.palette import owner_style
    from nanoinfer.viz.words import count

    def queue(engine: Engine, *, title: str | None = None, caption: str | None = None) -> Picture:
        reqs = list(engine.scheduler.waiting)
        labels = request_labels(engine, reqs)
        sheet = Sheet(title, f"{count(len(reqs), 'request')} in the queue", caption=caption)
        for i, (label, req) in enumerate(zip(labels, reqs, strict=True)):
            sheet.text(sheet.left, sheet.y + 8, label, width=90)
            sheet.rect(sheet.left + 100, sheet.y, 4 * req.num_tokens, 16, owner_style(label, i), name=label)
            sheet.text(sheet.left + 106 + 4 * req.num_tokens, sheet.y + 8, count(req.num_tokens, "token"))
            sheet.y += 20
        waiting = [f"{label} with {count(req.num_tokens, 'token')}" for label, req in zip(labels, reqs, strict=True)]
        return sheet.picture(f"Waiting: {', '.join(waiting) or 'no request'}.")

- It checks what would make a wrong picture, such as a slot outside its pool; a thing of another kind fails by itself.
- A Sheet (sheet.py) is 900 CSS pixels wide and as high as it must be; y goes down, and `sheet.y` is where the next part
  begins. It has shapes, texts, legends and captions. A shape's `name` is what tests find it by.
- Colours come from palette.py: `ROLES` by role, `owner_style` by request. Numbers become text as words.py has them.
- `sheet.picture(alt)` ends it: `alt` says its numbers in a sentence, and is folded away beneath the PNG in a notebook.
- A picture may be a part of another where its drawing is a function of a Sheet that returns its `alt`, as in overview.py.

To be called as `viz.queue`, a file in this folder needs its import below, and its name in `__all__`. (Such a file imports
Picture and Sheet from their files, since this `__init__` is not complete yet when the file is imported.)
"""

try:
    import matplotlib  # noqa: F401
except ImportError:  # traces, the player and the server's page do without

    def __getattr__(name: str) -> object:
        if name in __all__:
            raise ImportError(f"viz.{name} draws with matplotlib: pip install 'matplotlib>=3.9'")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

else:
    from nanoinfer.viz.charts import bars, lines, roofline
    from nanoinfer.viz.engine_map import engine_map
    from nanoinfer.viz.facts import last_input_metadata, last_labels, last_tokens
    from nanoinfer.viz.masks import attention_mask, extend_mask
    from nanoinfer.viz.metadata import input_metadata
    from nanoinfer.viz.number_cells import attention_steps, heat_map, wire
    from nanoinfer.viz.overview import engine, timeline
    from nanoinfer.viz.picture import Picture
    from nanoinfer.viz.rows import request_rows
    from nanoinfer.viz.sheet import Sheet
    from nanoinfer.viz.slots import owners, slot_map
    from nanoinfer.viz.tree import radix_tree

__all__ = [
    "Picture",
    "Sheet",
    "attention_mask",
    "attention_steps",
    "bars",
    "engine",
    "engine_map",
    "extend_mask",
    "heat_map",
    "input_metadata",
    "last_input_metadata",
    "last_labels",
    "last_tokens",
    "lines",
    "owners",
    "radix_tree",
    "request_rows",
    "roofline",
    "slot_map",
    "timeline",
    "wire",
]

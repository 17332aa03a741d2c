"""Pictures of the engine, drawn from its live objects with matplotlib; nothing here changes what it draws.

As the last expression of a notebook cell, `viz.slot_map(pool, {"request 1": slots})` shows a picture and prints its numbers
beneath it; `viz.slot_map(...).save("slots.png")` writes it. Every function returns a `Picture`. Colours mean the same in
all of them (palette.py): green the radix tree, orange what is computed in this pass, a colour of its own for each request.
"""

try:
    import matplotlib  # noqa: F401
except ImportError as error:
    raise ImportError("nanoinfer.viz draws with matplotlib: pip install 'matplotlib>=3.9'") from error

from nanoinfer.viz.charts import bars, lines
from nanoinfer.viz.decoder import decoder
from nanoinfer.viz.facts import last_input_metadata, last_labels, last_tokens
from nanoinfer.viz.given_mask import attention_mask
from nanoinfer.viz.heat_map import heat_map
from nanoinfer.viz.mask import extend_mask
from nanoinfer.viz.metadata import input_metadata
from nanoinfer.viz.overview import engine
from nanoinfer.viz.padding import padded_batch
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.rows import request_rows
from nanoinfer.viz.session_steps import session_steps
from nanoinfer.viz.slots import owners, slot_map
from nanoinfer.viz.timeline import timeline
from nanoinfer.viz.tree import radix_tree

__all__ = [
    "Picture",
    "attention_mask",
    "bars",
    "decoder",
    "engine",
    "extend_mask",
    "heat_map",
    "input_metadata",
    "last_input_metadata",
    "last_labels",
    "last_tokens",
    "lines",
    "owners",
    "padded_batch",
    "radix_tree",
    "request_rows",
    "session_steps",
    "slot_map",
    "timeline",
]

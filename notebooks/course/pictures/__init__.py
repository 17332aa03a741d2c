"""Pictures that one notebook shows: `pictures.session_steps(steps)`. They are written like those of nanoinfer.viz."""

from notebooks.course.pictures.blocks import hashed_blocks, tiers
from notebooks.course.pictures.network import decoder, split_product
from notebooks.course.pictures.passes import adapter_rows, drafted_text, padded_batch, session_steps
from notebooks.course.pictures.small_engine import computed_tokens, small_memory
from notebooks.course.pictures.spans import kernel_times, lanes

__all__ = [
    "adapter_rows",
    "computed_tokens",
    "decoder",
    "drafted_text",
    "hashed_blocks",
    "kernel_times",
    "lanes",
    "padded_batch",
    "session_steps",
    "small_memory",
    "split_product",
    "tiers",
]

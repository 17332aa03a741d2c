"""The explorables of the series by name; `python -m notebooks.course.explore` writes them."""

from collections.abc import Callable

from nanoinfer.frontends.llm import LLM
from nanoinfer.model.random_model import random_model
from notebooks.course.explore.adapter_tiles import adapter_tiles
from notebooks.course.explore.batch_limit import batch_limit
from notebooks.course.explore.chunk_sizes import chunk_sizes
from notebooks.course.explore.decode_bytes import decode_bytes
from notebooks.course.explore.draft_gain import draft_gain
from notebooks.course.explore.eviction import eviction
from notebooks.course.explore.explorable import Page
from notebooks.course.explore.overtaking import overtaking
from notebooks.course.explore.padding import padding
from notebooks.course.explore.page_sizes import page_sizes
from notebooks.course.explore.pool_sizes import pool_sizes
from notebooks.course.explore.product_roof import product_roof
from notebooks.course.explore.roofline import roofline
from notebooks.course.explore.row_pointers import row_pointers
from notebooks.course.explore.sampling import sampling
from notebooks.course.explore.token_life import token_life
from notebooks.course.explore.tree_steps import tree_steps
from notebooks.course.explore.typed_pattern import typed_pattern
from notebooks.course.explore.verify_steps import verify_steps
from notebooks.course.explore.working_set import working_set
from notebooks.course.prompts import FOX

PROMPT = FOX + " One day she found a"

CATALOGUE: dict[str, Callable[[LLM], Page]] = {
    "padding": padding,
    "decode_bytes": decode_bytes,
    "roofline": lambda llm: roofline(random_model(), machine="the CPU that was measured"),
    "sampling": lambda llm: sampling(llm, PROMPT),
    "page_sizes": page_sizes,
    "row_pointers": lambda llm: row_pointers(),
    "pool_sizes": pool_sizes,
    "overtaking": overtaking,
    "chunk_sizes": chunk_sizes,
    "eviction": eviction,
    "tree_steps": tree_steps,
    "token_life": token_life,
    "draft_gain": draft_gain,
    "verify_steps": verify_steps,
    "typed_pattern": typed_pattern,
    "batch_limit": batch_limit,
    "product_roof": lambda llm: product_roof(),
    "adapter_tiles": lambda llm: adapter_tiles(random_model("bfloat16")),
    "working_set": working_set,
}

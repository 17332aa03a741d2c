"""The explorables of the series by name; `python -m notebooks.course.explore` writes them."""

from collections.abc import Callable

from nanoinfer.frontends.llm import LLM
from nanoinfer.model.random_model import random_model
from notebooks.course.explore.chunk_sizes import chunk_sizes
from notebooks.course.explore.eviction import eviction
from notebooks.course.explore.explorable import Explorable
from notebooks.course.explore.padding import padding
from notebooks.course.explore.page_sizes import page_sizes
from notebooks.course.explore.pool_sizes import pool_sizes
from notebooks.course.explore.roofline import roofline
from notebooks.course.explore.sampling import sampling
from notebooks.course.explore.token_life import token_life
from notebooks.course.explore.tree_steps import tree_steps
from notebooks.course.prompts import FOX

PROMPT = FOX + " One day she found a"

CATALOGUE: dict[str, Callable[[LLM], Explorable]] = {
    "padding": padding,
    "roofline": lambda llm: roofline(random_model(), machine="the CPU that was measured"),
    "sampling": lambda llm: sampling(llm, PROMPT),
    "page_sizes": page_sizes,
    "pool_sizes": pool_sizes,
    "chunk_sizes": chunk_sizes,
    "eviction": eviction,
    "tree_steps": tree_steps,
    "token_life": token_life,
}

"""The explorables of the package by name; `python -m nanoinfer.explore` writes them."""

from collections.abc import Callable

from nanoinfer.explore.chunk_sizes import chunk_sizes
from nanoinfer.explore.eviction import eviction
from nanoinfer.explore.explorable import Explorable
from nanoinfer.explore.padding import padding
from nanoinfer.explore.page_sizes import page_sizes
from nanoinfer.explore.pool_sizes import pool_sizes
from nanoinfer.explore.roofline import roofline
from nanoinfer.explore.sampling import sampling
from nanoinfer.explore.token_life import token_life
from nanoinfer.explore.tree_steps import tree_steps
from nanoinfer.frontends.llm import LLM
from nanoinfer.model.random_model import random_model
from nanoinfer.teaching.prompts import FOX

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

"""Pictures of objects whose class was grown in a notebook, cell by cell, from the package's text."""

import inspect

import pytest
import torch

from nanoinfer.cache import radix_cache
from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from nanoinfer.cache.radix_cache import RadixCache

viz = pytest.importorskip("nanoinfer.viz")


def filled(cls: type[RadixCache]) -> RadixCache:
    pool = TokenToKVPool(16, torch.float32, head_num=1, head_dim=1, layer_num=1)
    tree = cls(ReqToTokenPool(1, 16), pool)
    for tokens in ([1, 2, 3], [1, 2, 4, 5]):
        slots = pool.alloc(len(tokens))
        assert slots is not None
        pool.free(slots[: tree.insert(tokens, slots)])
    return tree


def test_a_tree_of_a_class_from_a_notebook_is_drawn_like_the_packages() -> None:
    notebook: dict[str, type[RadixCache]] = {"__name__": "__main__"}  # type: ignore[dict-item]
    exec(inspect.getsource(radix_cache), notebook)
    assert notebook["RadixCache"] is not RadixCache
    mine, theirs = filled(notebook["RadixCache"]), filled(RadixCache)
    matches = [tree.match_prefix([1, 2, 3]) for tree in (mine, theirs)]
    for of in (lambda match: match, lambda match: match.last_node):
        pictures = [
            viz.radix_tree(tree, highlight=of(match)) for tree, match in zip((mine, theirs), matches, strict=True)
        ]
        assert pictures[0].png() == pictures[1].png()
        assert pictures[0].alt == pictures[1].alt
    maps = [viz.slot_map(tree.token_to_kv_pool, radix_cache=tree) for tree in (mine, theirs)]
    assert maps[0].alt == maps[1].alt


def test_anything_else_is_still_refused() -> None:
    with pytest.raises(ValueError, match="radix_cache: must be RadixCache, got dict"):
        viz.radix_tree({})

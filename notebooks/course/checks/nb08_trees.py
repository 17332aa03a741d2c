"""The trees of notebook 08's checks: how to make, fill and read them, and what must hold for them."""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

import torch

from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from nanoinfer.cache.radix_cache import RadixCache
from nanoinfer.cache.tree_node import TreeNode
from notebooks.course.exercises import Given
from notebooks.course.expectations import Hint, expect, expect_equal

SIZE = 400
Prefixes = dict[tuple[int, ...], int]  # every prefix in the tree → the slot of its last token


def empty_tree(cls: Callable[..., RadixCache]) -> RadixCache:
    pool = TokenToKVPool(SIZE, torch.float32, head_num=1, head_dim=1, layer_num=1)
    return cls(ReqToTokenPool(1, SIZE), pool)


def given_class(given: Given, name: str, base: type) -> Any:
    cls = given[name]
    from_base = (
        f"`{name}` must be a class that inherits from the package's {base.__name__}: run the import cell above it"
    )
    expect(isinstance(cls, type) and issubclass(cls, base), from_base)
    return cls


def given_tree(given: Given, name: str) -> Any:
    return empty_tree(given_class(given, name, RadixCache))


def ids(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def text_of(tokens: Iterable[Any]) -> str:
    return "".join(chr(int(token)) for token in tokens)


def put(tree: RadixCache, tokens: Sequence[int]) -> tuple[int, list[int]]:
    """Insert by the package's insert and free duplicates; returns how many tokens were in the tree, and the slots."""
    slots = tree.token_to_kv_pool.alloc(len(tokens))
    assert slots is not None
    known = RadixCache.insert(tree, tokens, slots)
    tree.token_to_kv_pool.free(slots[:known])
    return known, slots.tolist()


def filled(tree: RadixCache, texts: Sequence[str]) -> Prefixes:
    """Insert `texts`; returns the dictionary of all prefixes."""
    prefixes: Prefixes = {}
    for text in texts:
        slots = put(tree, ids(text))[1]
        for end in range(1, len(text) + 1):
            prefixes.setdefault(tuple(ids(text[:end])), slots[end - 1])
    return prefixes


def nodes_of(tree: RadixCache) -> list[TreeNode]:
    nodes = [node for _, node in islice(tree.nodes(), SIZE + 1)]
    expect(len(nodes) <= SIZE, "the tree has a cycle: a node is its own descendant")
    return nodes


def path_text(tree: RadixCache, node: TreeNode) -> str:
    text, steps = "", 0
    while node is not tree.root:
        parent, steps = node.parent, steps + 1
        if parent is None or steps > SIZE:
            raise Hint("the parents of a node don't lead up to the root: check `parent`")
        text = text_of(node.key) + text
        node = parent
    return text


def shape(tree: RadixCache) -> set[str]:
    """The text that each node's path spells."""
    return {path_text(tree, node) for node in nodes_of(tree)}


def node_of(tree: RadixCache, text: str) -> TreeNode:
    return next(node for node in nodes_of(tree) if path_text(tree, node) == text)


def locks(tree: RadixCache) -> dict[str, int]:
    return {path_text(tree, node): node.lock_ref for node in nodes_of(tree)}


def expect_match(tree: RadixCache, known: Prefixes, tokens: list[int], what: str) -> None:
    k = max((end for end in range(1, len(tokens) + 1) if tuple(tokens[:end]) in known), default=0)
    want = [known[tuple(tokens[:end])] for end in range(1, k + 1)]
    sizes = (tree.evictable_size(), tree.protected_size())
    match = tree.match_prefix(tokens)
    prompt = f"{what} (the prompt is {text_of(tokens)!r}, and {k} of its tokens are in the tree)"
    got = match.indices.tolist()
    partly = "Where a node matches only partly, leave out the slots of its other tokens"
    expect(len(got) <= k or got[:k] != want, f"{prompt}: you return {len(got)} slots. {partly}")
    expect_equal(got, want, f"{prompt}: return the slots of these tokens, in order")
    expect_equal(match.indices.dtype, torch.int32, "slots must be int32")
    path = f"{prompt}: the path to last_node must hold exactly these tokens, because the request locks that path"
    expect_equal(path_text(tree, match.last_node), text_of(tokens[:k]), path)
    used = f"{prompt}: mark every node on the path as used now (last_access_time = self._clock), or lru evicts it early"
    node: TreeNode | None = match.last_node
    while node is not tree.root and node is not None:
        expect(node.last_access_time == tree._clock, used)
        node = node.parent
    expect_equal((tree.evictable_size(), tree.protected_size()), sizes, "a match must not change the sizes")
    expect_sound(tree, prompt)


def expect_tree(tree: RadixCache, known: Prefixes, when: str) -> None:
    """The tree's paths are exactly the prefixes in `known`, in their slots."""
    found: Prefixes = {}
    for node in nodes_of(tree):
        expect(len(node) > 0, f"{when}: a node has no tokens")
        text = path_text(tree, node)
        for i in range(len(node)):
            found[tuple(ids(text[: len(text) - len(node) + i + 1]))] = int(node.value[i])
    got, want = ({text_of(prefix): slot for prefix, slot in each.items()} for each in (found, known))
    expect_equal(got, want, f"{when}, the tree must hold these tokens in these slots (prefix → slot of its last token)")
    expect_equal(tree.total_size(), len(known), f"{when}, total_size() must be the number of tokens in the tree")
    expect_sound(tree, when)


def expect_owned(tree: RadixCache, what: str, queue: bool = True) -> None:
    """Every slot is either free or in the tree. `queue=False`: leaves need not be in the eviction queue."""
    free = set(tree.token_to_kv_pool.free_slots().tolist())
    owned = [int(slot) for node in nodes_of(tree) for slot in node.value]
    both = sorted(free & set(owned))
    expect(
        not both,
        f"{what}: slots {both} are both free and in the tree. You freed slots that belong to the tree: the first tree_len, "
        "which the request only used, or those that the tree has just taken over",
    )
    expect_equal(len(set(owned)), len(owned), f"{what}: a slot is in the tree twice")
    lost = sorted(set(range(tree.token_to_kv_pool.size)) - free - set(owned))
    expect(not lost, f"{what}: slots {lost} are neither free nor in the tree: they are lost for good")
    if not queue:
        for node in nodes_of(tree):
            tree._eviction_queue.offer(node)
    expect_sound(tree, what)


def expect_sizes(tree: RadixCache, evictable: int, protected: int, why: str) -> None:
    got = {"evictable": tree.evictable_size(), "protected": tree.protected_size()}
    expect_equal(got, {"evictable": evictable, "protected": protected}, why)


def expect_sound(tree: RadixCache, when: str) -> None:
    nodes_of(tree)
    try:
        tree.check_integrity()
    except RuntimeError as error:
        raise Hint(f"{when}: the tree is inconsistent: {error}") from None

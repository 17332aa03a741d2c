"""Checks of notebook 07, the radix cache: the reader's methods inside the package's tree, against dictionaries."""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch

from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from nanoinfer.cache.radix_cache import MatchResult, RadixCache
from nanoinfer.cache.tree_node import TreeNode
from nanoinfer.teaching.exercises import Given, exercise
from nanoinfer.teaching.expectations import Hint, expect, expect_equal

SIZE = 400
Prefixes = dict[tuple[int, ...], int]  # every prefix in the tree → the slot of its last token


@exercise("7.1", "Match a prefix", points=2)
def _(given: Given) -> str | None:
    tree = _tree(given, "MatchCache")
    match = tree.match_prefix([1, 2, 3])
    expect(isinstance(match, MatchResult), "match_prefix returns a MatchResult(slots, last node)")
    expect_equal(match.indices.tolist(), [], "an empty tree matches nothing, so there are no slots")
    expect(match.last_node is tree.root, "without a match last_node is the root, which the request then locks")

    known = _filled(tree, ["ABCD", "ABEF", "ABEFGH", "X"])
    _expect_match(tree, known, _ids("ABCD"), "the whole prompt is in the tree, in a node and its child")
    _expect_match(tree, known, _ids("ABEFGHI"), "three nodes lie on this path: descend below each that matches in full")
    _expect_match(tree, known, _ids("XYZ"), "the prompt is longer than the path; the tokens of the path are the match")
    _expect_match(tree, known, _ids("QRS"), "no child begins with this token, so nothing matches")
    _expect_match(tree, known, [], "the empty prompt matches nothing")
    nodes = len(_nodes(tree))
    _expect_match(tree, known, _ids("ABEFGQ"), "of the last node only the first token matches")
    expect_equal(len(_nodes(tree)), nodes + 1, "a match inside a node splits it, once: call self._split(child, length)")

    rng = np.random.default_rng(7)
    for _ in range(200):
        _expect_match(tree, known, rng.integers(65, 73, rng.integers(0, 8)).tolist(), "a random prompt")
    random_tree = _tree(given, "MatchCache")
    texts = ["".join(rng.choice(list("AB"), rng.integers(1, 9))) for _ in range(40)]
    known = _filled(random_tree, texts)
    for _ in range(200):
        _expect_match(random_tree, known, rng.integers(65, 67, rng.integers(0, 10)).tolist(), "a random prompt")
    return "412 prompts on two trees match as a dictionary of all prefixes says"


@exercise("7.2", "Split a node", points=2)
def _(given: Given) -> str | None:
    tree = _tree(given, "SplitCache")
    RadixCache.insert(tree, _ids("ABCDEF"), tree.token_to_kv_pool.alloc(6))
    node = _nodes(tree)[0]
    child = TreeNode(tree._edge(np.array(_ids("GH")), None), np.array(_ids("GH")), np.array([6, 7]), node, 0)
    tree.token_to_kv_pool.alloc(2)
    node.children[child.edge] = child
    node.lock_ref, node.hit_count, child.lock_ref = 3, 5, 1
    upper = tree._split(node, 2)
    expect(isinstance(upper, TreeNode), "_split returns the new upper part, a TreeNode")
    expect(
        upper is not node,
        "`node` must become the lower part: a request that has locked it walks from it up to the root and must pass all "
        "nodes of its path",
    )
    expect_equal(_text(upper.key), "AB", "the upper part has the first `length` tokens")
    expect_equal(_text(node.key), "CDEF", "`node` keeps the tokens from `length` on")
    expect_equal(
        [list(map(int, upper.value)), list(map(int, node.value))],
        [[0, 1], [2, 3, 4, 5]],
        "each token keeps its slot: split `value` where `key` is split",
    )
    expect(upper.parent is tree.root, "the upper part's parent is the node's old parent")
    expect(
        tree.root.children.get(upper.edge) is upper,
        "the parent still leads to the lower part: its child under the old edge must now be the upper part",
    )
    expect(node.parent is upper, "the lower part's parent is the upper part")
    expect(
        upper.edge == tree._edge(np.array(_ids("AB")), None),
        "the upper part begins with the same token as the node did, so it has the node's old edge",
    )
    expect(
        node.edge == tree._edge(np.array(_ids("CDEF")), None),
        "the lower part begins with another token now: its edge is self._edge(node.key, ...) of the shortened key",
    )
    expect(list(upper.children.values()) == [node], "the upper part has exactly one child: the lower part")
    expect(upper.children.get(node.edge) is node, "a child is found by its edge: the edge is its key in `children`")
    expect(node.children.get(child.edge) is child, "the node's children stay children of the lower part")
    expect_equal(
        [upper.lock_ref, node.lock_ref],
        [3, 3],
        "requests that locked the node use the upper part as well: with lock_ref=0 it could be evicted while they run",
    )
    expect_equal([upper.hit_count, node.hit_count], [5, 5], "both parts have been used as often as the node")

    tree = _tree(given, "SplitCache")
    known = _filled(tree, ["ABABAB", "ABABBB", "AA", "BABA", "BAA"])
    rng = np.random.default_rng(8)
    for _ in range(100):
        tokens = rng.integers(65, 67, rng.integers(1, 8)).tolist()
        _expect_match(tree, known, tokens, "after your splits, a match of")
    return "links, slots and locks are right, and so are 100 matches that split nodes"


@exercise("7.3", "Insert, and free the duplicates", points=2)
def _(given: Given) -> str | None:
    tree = _tree(given, "InsertCache")
    pool = tree.token_to_kv_pool
    known: Prefixes = {}

    def insert(text: str, want: int, why: str) -> None:
        slots = pool.alloc(len(text))
        expect_equal(
            tree.insert(_ids(text), slots), want, f"insert({text!r}) returns how many tokens were in the tree: {why}"
        )
        pool.free(slots[:want])
        for end in range(want, len(text)):
            known[tuple(_ids(text[: end + 1]))] = int(slots[end])
        _expect_tree(tree, known, f"after insert({text!r})")

    insert("ABCD", 0, "the tree was empty")
    insert("ABEF", 2, "'AB' was in the tree")
    insert("ABEF", 4, "all of it was in the tree, so no leaf is added (not an empty one either)")
    insert("AB", 2, "it is a prefix of a sequence in the tree")
    insert("ABEFGH", 4, "it continues a path that ended in a leaf")
    insert("X", 0, "no child begins with 'X'")
    insert("", 0, "the empty sequence has no tokens")
    expect_equal(
        [tree.evictable_size(), tree.protected_size()],
        [len(known), 0],
        "no request has locked the new tokens: they count in self._evictable_size",
    )
    expect_equal(
        tree.evict(SIZE),
        len(known),
        "everything can be evicted, but a leaf that is not in the queue is never found: self._eviction_queue.offer(leaf)",
    )

    tree = _tree(given, "InsertCache")
    pool = tree.token_to_kv_pool
    _finish(tree, "ABCD", 0, "the first request")
    _finish(tree, "ABEF", 0, "a request that computed 'AB' although it was in the tree: its copies have no owner now")
    twin = pool.alloc(6)
    held = torch.cat((tree.match_prefix(_ids("AB")).indices, pool.alloc(4)))  # matched 2, computed 4
    tree.finish(_ids("ABGHIJ"), twin, 0)
    tree.finish(_ids("ABGHKL"), held, 2)
    _expect_owned(tree, "a request that had matched 'AB', and whose 'GH' another request had inserted before it")
    expect_equal(tree.total_size(), 4 + 2 + 4 + 2, "the tree holds 'ABCD', 'EF', 'GHIJ' and 'KL'")
    _finish(tree, "ABCD", 4, "a request that matched all of its tokens and computed none")
    return "free + tree == N after every request"


@exercise("7.4", "Lock a path", points=2)
def _(given: Given) -> str | None:
    tree = _tree(given, "LockCache")
    _filled(tree, ["ABCD", "ABEFG", "X"])
    leaf, upper = _node(tree, "ABCD"), _node(tree, "AB")
    tree.inc_lock_ref(leaf)
    expect_equal(
        _locks(tree),
        {"AB": 1, "ABCD": 1, "ABEFG": 0, "X": 0},
        "a request needs every node from the root down to its node, and no others",
    )
    expect(tree.root.lock_ref == 0, "the root holds no tokens and cannot be evicted: leave its lock_ref alone")
    _expect_sizes(tree, 4, 4, "the four tokens of 'ABCD' are protected now")
    tree.inc_lock_ref(upper)
    expect_equal(_locks(tree)["AB"], 2, "two requests have locked 'AB'")
    _expect_sizes(tree, 4, 4, "'AB' was protected already: a token counts once, however many requests have locked it")
    tree.dec_lock_ref(leaf)
    expect_equal(
        _locks(tree),
        {"AB": 1, "ABCD": 0, "ABEFG": 0, "X": 0},
        "one request has unlocked 'ABCD', another still locks 'AB'",
    )
    _expect_sizes(tree, 6, 2, "'CD' is unlocked now, 'AB' is still locked")
    tree.inc_lock_ref(tree.root)
    tree.dec_lock_ref(tree.root)
    _expect_sizes(tree, 6, 2, "a request that matched nothing locks the root, which changes no sizes")
    expect_equal(
        RadixCache.evict(tree, SIZE),
        6,
        "unlocked nodes can be evicted again, but only if they are in the queue: self._eviction_queue.offer(node)",
    )
    tree.dec_lock_ref(upper)
    _expect_sizes(tree, 2, 0, "nothing is locked any more")
    expect_equal(
        RadixCache.evict(tree, SIZE), 2, "'AB' is a leaf now and can be evicted as well: offer it to the queue"
    )

    tree, rng = _tree(given, "LockCache"), np.random.default_rng(9)
    held: list[TreeNode] = []
    _filled(tree, ["".join(rng.choice(list("AB"), rng.integers(1, 9))) for _ in range(30)])
    for _ in range(300):
        if held and rng.integers(2):
            tree.dec_lock_ref(held.pop(rng.integers(len(held))))
        else:
            held.append(tree.match_prefix(rng.integers(65, 67, rng.integers(0, 9)).tolist()).last_node)
            tree.inc_lock_ref(held[-1])
        _expect_sound(tree, "after 300 random locks and unlocks")
    return "counts and sizes stay right through 300 random locks and unlocks"


@exercise("7.5", "Evict the least recently used leaves", points=2)
def _(given: Given) -> str | None:
    tree = _tree(given, "EvictCache")
    expect_equal(tree.evict(5), 0, "an empty tree frees nothing, so evict returns 0")
    _filled(tree, ["AB", "ABCD", "X"])
    tree.evict(1)
    expect_equal(
        _shape(tree),
        {"AB", "X"},
        "'AB' and its child 'CD' were used at the same time, before 'X'. 'AB' must not be evicted before its child: "
        "without it 'CD' could never be matched again, and its slots would be lost",
    )
    tree = _tree(given, "EvictCache")
    _filled(tree, ["ABCD", "ABEF", "XYZ"])
    tree.match_prefix(_ids("ABCD"))  # used last; least recently used is 'EF', then 'XYZ'
    expect_equal(tree.evict(0), 0, "evict(0) frees nothing")
    got = tree.evict(1)
    expect(got is not None, "evict returns how many tokens it has freed")
    expect_equal(
        _shape(tree),
        {"AB", "ABCD", "XYZ"},
        "'EF' was used longest ago",
    )
    expect_equal(got, 2, "a leaf is evicted as a whole: two tokens, though one was requested")
    _expect_owned(tree, "after evict(1)", queue=False)
    _expect_sizes(tree, 7, 0, "two evictable tokens fewer")
    expect_equal(tree.evict(4), 5, "'XYZ' alone is not enough for 4: go on with the next leaf")
    expect_equal(_shape(tree), {"AB"}, "'XYZ' was used longest ago, then 'CD'; these free at least 4, so 'AB' stays")
    expect_equal(tree.evict(100), 2, "a node whose last child was evicted is a leaf itself and can be evicted")
    expect_equal(tree.token_to_kv_pool.available_size(), SIZE, "everything is evicted, so every slot must be free")

    tree = _tree(given, "EvictCache")
    _filled(tree, ["ABCD", "ABEF", "X"])
    node = _node(tree, "ABEF")
    tree.inc_lock_ref(node)
    expect_equal(
        tree.evict(100),
        3,
        "'ABEF' is locked, so only 'CD' and 'X' can be evicted; then stop, though 100 were requested",
    )
    expect_equal(_shape(tree), {"AB", "ABEF"}, "a running request reads 'ABEF': without it, it would read wrong K/V")
    _expect_owned(tree, "with a locked path", queue=False)

    mine, package = _tree(given, "EvictCache"), _make(RadixCache)
    rng = np.random.default_rng(10)
    for _ in range(200):
        tokens = rng.integers(65, 68, rng.integers(1, 9)).tolist()
        action, count = rng.integers(3), int(rng.integers(1, 6))
        for tree in (mine, package):
            if action == 0:
                tree.match_prefix(tokens)
            elif action == 1 or tree.total_size() < 20:
                _put(tree, tokens)
        if action == 2:
            expect_equal(
                mine.evict(count), package.evict(count), f"random operations: evict({count}) freed a wrong number"
            )
            expect_equal(_shape(mine), _shape(package), "random operations: another leaf was used less recently")
            _expect_owned(mine, "after random operations", queue=False)
    return "the same leaves as the package's heap, through 200 random operations"


# --- trees and what must hold for them -------------------------------------------------------------------------------


def _make(cls: Callable[..., RadixCache]) -> RadixCache:
    pool = TokenToKVPool(SIZE, torch.float32, head_num=1, head_dim=1, layer_num=1)
    return cls(ReqToTokenPool(1, SIZE), pool)


def _tree(given: Given, name: str) -> Any:
    cls = given[name]
    expect(
        isinstance(cls, type) and issubclass(cls, RadixCache),
        f"`{name}` must be a class that inherits from the package's RadixCache: run the import cell above the exercises",
    )
    return _make(cls)


def _ids(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def _text(tokens: Iterable[Any]) -> str:
    return "".join(chr(int(token)) for token in tokens)


def _put(tree: RadixCache, tokens: Sequence[int]) -> tuple[int, list[int]]:
    """Insert by the package's insert and free duplicates; returns how many tokens were in the tree, and the slots."""
    slots = tree.token_to_kv_pool.alloc(len(tokens))
    assert slots is not None
    known = RadixCache.insert(tree, tokens, slots)
    tree.token_to_kv_pool.free(slots[:known])
    return known, slots.tolist()


def _filled(tree: RadixCache, texts: Sequence[str]) -> Prefixes:
    """Insert `texts`; returns the dictionary of all prefixes."""
    prefixes: Prefixes = {}
    for text in texts:
        slots = _put(tree, _ids(text))[1]
        for end in range(1, len(text) + 1):
            prefixes.setdefault(tuple(_ids(text[:end])), slots[end - 1])
    return prefixes


def _nodes(tree: RadixCache) -> list[TreeNode]:
    nodes = [node for _, node in islice(tree.nodes(), SIZE + 1)]
    expect(len(nodes) <= SIZE, "the tree has a cycle: a node is its own descendant")
    return nodes


def _path_text(tree: RadixCache, node: TreeNode) -> str:
    text, steps = "", 0
    while node is not tree.root:
        parent, steps = node.parent, steps + 1
        if parent is None or steps > SIZE:
            raise Hint("this node's parents do not lead up to the root: look at `parent`")
        text = _text(node.key) + text
        node = parent
    return text


def _shape(tree: RadixCache) -> set[str]:
    """The text that each node's path spells."""
    return {_path_text(tree, node) for node in _nodes(tree)}


def _node(tree: RadixCache, text: str) -> TreeNode:
    return next(node for node in _nodes(tree) if _path_text(tree, node) == text)


def _locks(tree: RadixCache) -> dict[str, int]:
    return {_path_text(tree, node): node.lock_ref for node in _nodes(tree)}


def _expect_match(tree: RadixCache, known: Prefixes, tokens: list[int], what: str) -> None:
    k = max((end for end in range(1, len(tokens) + 1) if tuple(tokens[:end]) in known), default=0)
    want = [known[tuple(tokens[:end])] for end in range(1, k + 1)]
    sizes = (tree.evictable_size(), tree.protected_size())
    match = tree.match_prefix(tokens)
    prompt = f"{what}: {_text(tokens)!r}, of which {k} tokens are in the tree"
    got = match.indices.tolist()
    if len(got) > k and got[:k] == want:
        raise Hint(
            f"{prompt}, but you return {len(got)} slots: of a node that matches only in part, the other slots do not count"
        )
    expect_equal(got, want, f"{prompt}: return their slots, in order")
    expect_equal(match.indices.dtype, torch.int32, "slots are int32")
    expect_equal(
        _path_text(tree, match.last_node),
        _text(tokens[:k]),
        f"{prompt}: the path to last_node must hold exactly these. The request locks that path",
    )
    node: TreeNode | None = match.last_node
    while node is not tree.root and node is not None:
        expect(
            node.last_access_time == tree._clock,
            f"{prompt}: every node on the path counts as used now (last_access_time = self._clock); else lru evicts it",
        )
        node = node.parent
    expect_equal((tree.evictable_size(), tree.protected_size()), sizes, "a match never changes the sizes")
    _expect_sound(tree, prompt)


def _expect_tree(tree: RadixCache, known: Prefixes, when: str) -> None:
    """The tree's paths are exactly the prefixes in `known`, in their slots."""
    found: Prefixes = {}
    for node in _nodes(tree):
        expect(len(node) > 0, f"{when}: a node has no tokens")
        text = _path_text(tree, node)
        for i in range(len(node)):
            found[tuple(_ids(text[: len(text) - len(node) + i + 1]))] = int(node.value[i])
    expect_equal(
        {_text(prefix): slot for prefix, slot in found.items()},
        {_text(prefix): slot for prefix, slot in known.items()},
        f"{when}: prefix → slot of its last token",
    )
    expect_equal(tree.total_size(), len(known), f"{when}: total_size() counts the tokens in the tree")
    _expect_sound(tree, when)


def _finish(tree: Any, text: str, tree_len: int, what: str) -> None:
    pool = tree.token_to_kv_pool
    matched = RadixCache.match_prefix(tree, _ids(text)[:tree_len]).indices
    tree.finish(_ids(text), torch.cat((matched, pool.alloc(len(text) - tree_len))), tree_len)
    _expect_owned(tree, what)


def _expect_owned(tree: RadixCache, what: str, queue: bool = True) -> None:
    """Every slot is either free or in the tree. `queue=False`: leaves need not be in the eviction queue."""
    free = set(tree.token_to_kv_pool.free_slots().tolist())
    owned = [int(slot) for node in _nodes(tree) for slot in node.value]
    both = sorted(free & set(owned))
    expect(
        not both,
        f"{what}: slots {both} are both free and in the tree. You have freed slots that belong to the tree: the first "
        "tree_len, which the request only used, or those that the tree has just taken",
    )
    expect_equal(len(set(owned)), len(owned), f"{what}: a slot is in the tree twice")
    lost = sorted(set(range(tree.token_to_kv_pool.size)) - free - set(owned))
    expect(not lost, f"{what}: slots {lost} are neither free nor in the tree: they are lost for good")
    if not queue:
        for node in _nodes(tree):
            tree._eviction_queue.offer(node)
    _expect_sound(tree, what)


def _expect_sizes(tree: RadixCache, evictable: int, protected: int, why: str) -> None:
    got = {"evictable": tree.evictable_size(), "protected": tree.protected_size()}
    expect_equal(got, {"evictable": evictable, "protected": protected}, why)


def _expect_sound(tree: RadixCache, when: str) -> None:
    _nodes(tree)
    try:
        tree.check_integrity()
    except RuntimeError as error:
        raise Hint(f"{when}: the tree is inconsistent: {error}") from None

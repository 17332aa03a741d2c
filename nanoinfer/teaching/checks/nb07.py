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
Prefixes = dict[tuple[int, ...], int]  # every prefix that is in the tree → the slot of its last token


@exercise("7.1", "Match a prefix", points=2)
def _(given: Given) -> str | None:
    tree = _tree(given, "MatchCache")
    match = tree.match_prefix([1, 2, 3])
    expect(isinstance(match, MatchResult), "match_prefix returns a MatchResult(slots, last node)")
    expect_equal(match.indices.tolist(), [], "an empty tree knows nothing, so there are no slots")
    expect(match.last_node is tree.root, "where nothing matches, the walk ends at the root: a request locks that node")

    known = _filled(tree, ["ABCD", "ABEF", "ABEFGH", "X"])
    _expect_match(tree, known, _ids("ABCD"), "the whole prompt is in the tree, in two nodes below each other")
    _expect_match(tree, known, _ids("ABEFGHI"), "three nodes lie on this path: go on below each that agrees in full")
    _expect_match(tree, known, _ids("XYZ"), "the prompt goes on where the tree ends; what the tree has is the match")
    _expect_match(tree, known, _ids("QRS"), "no child begins with this token, so nothing matches")
    _expect_match(tree, known, [], "the empty prompt matches nothing")
    nodes = len(_nodes(tree))
    _expect_match(tree, known, _ids("ABEFGQ"), "the last node agrees only in its first token")
    expect_equal(len(_nodes(tree)), nodes + 1, "a match inside a node splits it, once: call self._split(child, length)")

    rng = np.random.default_rng(7)
    for _ in range(200):
        _expect_match(tree, known, rng.integers(65, 73, rng.integers(0, 8)).tolist(), "a random prompt")
    random_tree = _tree(given, "MatchCache")
    texts = ["".join(rng.choice(list("AB"), rng.integers(1, 9))) for _ in range(40)]
    known = _filled(random_tree, texts)
    for _ in range(200):
        _expect_match(random_tree, known, rng.integers(65, 67, rng.integers(0, 10)).tolist(), "a random prompt")
    return "412 prompts on two trees match what a dictionary of all prefixes finds"


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
        "`node` must become the lower part: a request that has locked it climbs from it to the root and must meet all "
        "of its path",
    )
    expect_equal(_text(upper.key), "AB", "the upper part has the first `length` tokens")
    expect_equal(_text(node.key), "CDEF", "`node` keeps the tokens from `length` on")
    expect_equal(
        [list(map(int, upper.value)), list(map(int, node.value))],
        [[0, 1], [2, 3, 4, 5]],
        "each token keeps its slot: cut `value` where `key` is cut",
    )
    expect(upper.parent is tree.root, "the upper part's parent is what was the node's parent")
    expect(
        tree.root.children.get(upper.edge) is upper,
        "the parent still leads to the lower part: its entry under the old edge must be the upper part now",
    )
    expect(node.parent is upper, "the way up from the lower part leads to the upper part")
    expect(
        upper.edge == tree._edge(np.array(_ids("AB")), None),
        "the upper part begins with the tokens the node began with, so it has the node's old edge",
    )
    expect(
        node.edge == tree._edge(np.array(_ids("CDEF")), None),
        "the lower part begins with another token now, so its edge is self._edge(node.key, ...) of the shortened key",
    )
    expect(list(upper.children.values()) == [node], "the upper part has exactly one child: the lower part")
    expect(upper.children.get(node.edge) is node, "a child is found by its edge: that is its key in `children`")
    expect(node.children.get(child.edge) is child, "what hung below the node hangs below the lower part as before")
    expect_equal(
        [upper.lock_ref, node.lock_ref],
        [3, 3],
        "who locked the node relies on the upper part as well: with lock_ref=0 it could be evicted under a running request",
    )
    expect_equal([upper.hit_count, node.hit_count], [5, 5], "both parts have been used as often as the node")

    tree = _tree(given, "SplitCache")
    known = _filled(tree, ["ABABAB", "ABABBB", "AA", "BABA", "BAA"])
    rng = np.random.default_rng(8)
    for _ in range(100):
        tokens = rng.integers(65, 67, rng.integers(1, 8)).tolist()
        _expect_match(tree, known, tokens, "after your splits, a match of")
    return "links, slots and locks hold, and 100 matches after it"


@exercise("7.3", "Insert, and free the duplicates", points=2)
def _(given: Given) -> str | None:
    tree = _tree(given, "InsertCache")
    pool = tree.token_to_kv_pool
    known: Prefixes = {}

    def insert(text: str, want: int, why: str) -> None:
        slots = pool.alloc(len(text))
        expect_equal(
            tree.insert(_ids(text), slots), want, f"insert({text!r}) returns how many tokens were known: {why}"
        )
        pool.free(slots[:want])
        for end in range(want, len(text)):
            known[tuple(_ids(text[: end + 1]))] = int(slots[end])
        _expect_tree(tree, known, f"after insert({text!r})")

    insert("ABCD", 0, "the tree was empty")
    insert("ABEF", 2, "'AB' was there")
    insert("ABEF", 4, "all of it was there, so there is no leaf to make (an empty one neither)")
    insert("AB", 2, "a prefix of what is there")
    insert("ABEFGH", 4, "it goes on where the tree ended")
    insert("X", 0, "no child begins with 'X'")
    insert("", 0, "the empty sequence is known")
    expect_equal(
        [tree.evictable_size(), tree.protected_size()],
        [len(known), 0],
        "nobody has locked the new tokens: they belong to self._evictable_size",
    )
    expect_equal(
        tree.evict(SIZE),
        len(known),
        "everything could be evicted, but a leaf that the queue does not know is never found: "
        "self._eviction_queue.offer(leaf)",
    )

    tree = _tree(given, "InsertCache")
    pool = tree.token_to_kv_pool
    _finish(tree, "ABCD", 0, "the first request")
    _finish(tree, "ABEF", 0, "a request that did not look before it computed: its copies of 'AB' are nobody's now")
    twin = pool.alloc(6)
    held = torch.cat((tree.match_prefix(_ids("AB")).indices, pool.alloc(4)))  # matched 2, computed 4
    tree.finish(_ids("ABGHIJ"), twin, 0)
    tree.finish(_ids("ABGHKL"), held, 2)
    _expect_owned(tree, "a request that had matched 'AB', and whose 'GH' another has inserted before it")
    expect_equal(tree.total_size(), 4 + 2 + 4 + 2, "the tree holds 'ABCD', 'EF', 'GHIJ' and 'KL'")
    _finish(tree, "ABCD", 4, "a request that found all of its tokens in the tree and computed nothing")
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
        "a request needs everything from the root down to its node, and nothing beside it",
    )
    expect(tree.root.lock_ref == 0, "the root holds no tokens and cannot be evicted: leave its lock_ref alone")
    _expect_sizes(tree, 4, 4, "the four tokens of 'ABCD' are protected now")
    tree.inc_lock_ref(upper)
    expect_equal(_locks(tree)["AB"], 2, "two requests hold 'AB'")
    _expect_sizes(tree, 4, 4, "'AB' was protected already: a token counts once, however many requests hold it")
    tree.dec_lock_ref(leaf)
    expect_equal(
        _locks(tree), {"AB": 1, "ABCD": 0, "ABEFG": 0, "X": 0}, "one request has let go of 'ABCD', one still holds 'AB'"
    )
    _expect_sizes(tree, 6, 2, "'CD' is nobody's now, 'AB' is still held")
    tree.inc_lock_ref(tree.root)
    tree.dec_lock_ref(tree.root)
    _expect_sizes(tree, 6, 2, "a request that matched nothing locks the root: that changes nothing")
    expect_equal(
        RadixCache.evict(tree, SIZE),
        6,
        "what was let go can be evicted again, but only if the queue is told: self._eviction_queue.offer(node)",
    )
    tree.dec_lock_ref(upper)
    _expect_sizes(tree, 2, 0, "nobody holds anything any more")
    expect_equal(RadixCache.evict(tree, SIZE), 2, "and 'AB', a leaf now, goes as well: offer it to the queue")

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
    return "counts and sizes hold through 300 random locks and unlocks"


@exercise("7.5", "Evict the least recently used leaves", points=2)
def _(given: Given) -> str | None:
    tree = _tree(given, "EvictCache")
    expect_equal(tree.evict(5), 0, "an empty tree frees nothing, and says so")
    _filled(tree, ["AB", "ABCD", "X"])
    tree.evict(1)
    expect_equal(
        _shape(tree),
        {"AB", "X"},
        "'AB' and 'CD' below it were used at the same time, before 'X'. 'AB' may not go before its child: without it 'CD' "
        "could never be matched again, and its slots would be lost",
    )
    tree = _tree(given, "EvictCache")
    _filled(tree, ["ABCD", "ABEF", "XYZ"])
    tree.match_prefix(_ids("ABCD"))  # used last; longest unused is 'EF', then 'XYZ'
    expect_equal(tree.evict(0), 0, "nothing is asked for, so nothing is freed")
    got = tree.evict(1)
    expect(got is not None, "evict returns how many tokens it has freed")
    expect_equal(
        _shape(tree),
        {"AB", "ABCD", "XYZ"},
        "'EF' was used longest ago",
    )
    expect_equal(got, 2, "a leaf goes as a whole: two tokens, though one was asked for")
    _expect_owned(tree, "after evict(1)", queue=False)
    _expect_sizes(tree, 7, 0, "two tokens fewer to evict")
    expect_equal(tree.evict(4), 5, "'XYZ' alone is not enough for 4: go on with the next leaf")
    expect_equal(_shape(tree), {"AB"}, "'XYZ' was used longest ago, then 'CD'; then 4 were free, so 'AB' stays")
    expect_equal(tree.evict(100), 2, "when its last child has gone, a node is a leaf itself, and can go")
    expect_equal(tree.token_to_kv_pool.available_size(), SIZE, "everything evicted: every slot is free")

    tree = _tree(given, "EvictCache")
    _filled(tree, ["ABCD", "ABEF", "X"])
    node = _node(tree, "ABEF")
    tree.inc_lock_ref(node)
    expect_equal(
        tree.evict(100), 3, "'ABEF' is locked, so only 'CD' and 'X' can go; then stop, though 100 were asked for"
    )
    expect_equal(_shape(tree), {"AB", "ABEF"}, "a running request reads 'ABEF': evicting it would give it wrong K/V")
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
                mine.evict(count), package.evict(count), f"random operations: evict({count}) frees another number"
            )
            expect_equal(_shape(mine), _shape(package), "random operations: another leaf was used less recently")
            _expect_owned(mine, "after random operations", queue=False)
    return "the package's heap chooses the same leaves, through 200 random operations"


# --- trees and what must hold of them --------------------------------------------------------------------------------


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
    """Insert by the package's insert, duplicates freed; how many were known and the slots offered."""
    slots = tree.token_to_kv_pool.alloc(len(tokens))
    assert slots is not None
    known = RadixCache.insert(tree, tokens, slots)
    tree.token_to_kv_pool.free(slots[:known])
    return known, slots.tolist()


def _filled(tree: RadixCache, texts: Sequence[str]) -> Prefixes:
    """Insert `texts`; the dictionary of all prefixes."""
    prefixes: Prefixes = {}
    for text in texts:
        slots = _put(tree, _ids(text))[1]
        for end in range(1, len(text) + 1):
            prefixes.setdefault(tuple(_ids(text[:end])), slots[end - 1])
    return prefixes


def _nodes(tree: RadixCache) -> list[TreeNode]:
    nodes = [node for _, node in islice(tree.nodes(), SIZE + 1)]
    expect(len(nodes) <= SIZE, "the tree leads in a circle: a node is its own descendant")
    return nodes


def _path_text(tree: RadixCache, node: TreeNode) -> str:
    text, steps = "", 0
    while node is not tree.root:
        parent, steps = node.parent, steps + 1
        if parent is None or steps > SIZE:
            raise Hint("from this node no way leads up to the root: look at `parent`")
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
    prompt = f"{what}: {_text(tokens)!r}, of which {k} tokens are known"
    got = match.indices.tolist()
    if len(got) > k and got[:k] == want:
        raise Hint(
            f"{prompt}, but there are {len(got)} slots: of a node that agrees only in part, the other slots do not count"
        )
    expect_equal(got, want, f"{prompt}: these are their slots, in order")
    expect_equal(match.indices.dtype, torch.int32, "slots are int32")
    expect_equal(
        _path_text(tree, match.last_node),
        _text(tokens[:k]),
        f"{prompt}: the path to last_node must spell them, no more and no less. The request locks that path",
    )
    node: TreeNode | None = match.last_node
    while node is not tree.root and node is not None:
        expect(
            node.last_access_time == tree._clock,
            f"{prompt}: every node on the way has been used now (last_access_time = self._clock); else lru evicts it",
        )
        node = node.parent
    expect_equal((tree.evictable_size(), tree.protected_size()), sizes, "a match never changes the sizes")
    _expect_sound(tree, prompt)


def _expect_tree(tree: RadixCache, known: Prefixes, when: str) -> None:
    """The tree's paths are exactly the prefixes in `known`, in their slots."""
    found: Prefixes = {}
    for node in _nodes(tree):
        expect(len(node) > 0, f"{when}: there is a node without tokens")
        text = _path_text(tree, node)
        for i in range(len(node)):
            found[tuple(_ids(text[: len(text) - len(node) + i + 1]))] = int(node.value[i])
    told = {_text(prefix): slot for prefix, slot in found.items()}
    expect_equal(
        told, {_text(prefix): slot for prefix, slot in known.items()}, f"{when}: prefix → slot of its last token"
    )
    expect_equal(tree.total_size(), len(known), f"{when}: total_size() counts the tokens in the tree")
    _expect_sound(tree, when)


def _finish(tree: Any, text: str, tree_len: int, what: str) -> None:
    pool = tree.token_to_kv_pool
    matched = RadixCache.match_prefix(tree, _ids(text)[:tree_len]).indices
    tree.finish(_ids(text), torch.cat((matched, pool.alloc(len(text) - tree_len))), tree_len)
    _expect_owned(tree, what)


def _expect_owned(tree: RadixCache, what: str, queue: bool = True) -> None:
    """Every slot is free or in the tree, and in one of them only. `queue=False`: the eviction queue need not know."""
    free = set(tree.token_to_kv_pool.free_slots().tolist())
    owned = [int(slot) for node in _nodes(tree) for slot in node.value]
    both = sorted(free & set(owned))
    expect(
        not both,
        f"{what}: slots {both} are free and in the tree. Some that the request only borrowed from the tree (the first "
        "tree_len), or that the tree has just taken, have been given to the pool",
    )
    expect_equal(len(set(owned)), len(owned), f"{what}: a slot is in the tree twice")
    lost = sorted(set(range(tree.token_to_kv_pool.size)) - free - set(owned))
    expect(not lost, f"{what}: slots {lost} have no owner now, neither free nor in the tree: they are lost for good")
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
        raise Hint(f"{when}: the tree contradicts itself: {error}") from None

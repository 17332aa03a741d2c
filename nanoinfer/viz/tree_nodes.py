"""Which nodes of a radix tree a picture shows, and what it says of those it leaves out."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from nanoinfer.cache.eviction import EVICTION_POLICIES
from nanoinfer.cache.radix_cache import RadixCache
from nanoinfer.cache.tree_node import TreeNode

MOST_CHILDREN = 10  # of one node
MOST_NODES = 28
TOP_LEVELS, LAST_LEVELS = 8, 4  # of a tree deeper than both together


@dataclass
class Box:
    """A node to draw, or (`node` None) one box for all of `left_out`. `depth`: where it is drawn, the root at 0."""

    node: TreeNode | None
    depth: int
    children: "list[Box]" = field(default_factory=list)
    left_out: list[TreeNode] = field(default_factory=list)
    x: float = 0.0
    y: float = 0.0

    @property
    def extra_key(self) -> object:
        """The namespace, shown at the children of the root; None elsewhere, and for those that have none."""
        return self.node.edge[0] if self.node is not None and self.depth == 1 else None

    def everything(self) -> "list[Box]":
        """It and all boxes below, parents before children, upper ones first."""
        found, stack = list[Box](), [self]
        while stack:
            found.append(stack.pop())
            stack += reversed(found[-1].children)
        return found


def next_to_evict(tree: RadixCache) -> TreeNode | None:
    """The unlocked leaf that the tree's policy gives up first; None when there is none."""
    leaves = [node for _, node in tree.nodes() if not node.children and not node.lock_ref]
    return min(leaves, key=EVICTION_POLICIES[tree.policy], default=None)


def path_to(node: TreeNode) -> list[TreeNode]:
    """The nodes from the first level down to `node`."""
    path = []
    while node.parent is not None:
        path.append(node)
        node = node.parent
    return path[::-1]


def boxes(tree: RadixCache, wanted: Iterable[TreeNode]) -> Box:
    """The tree as boxes, level by level as long as there is room; of many children those that lead to `wanted` or are
    locked, then the oldest. Of a very deep tree the upper levels and the end of its deepest path."""
    important = {id(ancestor) for node in wanted for ancestor in path_to(node)}
    depth_below = _depth_below(tree.root)
    root, drawn = Box(tree.root, 0), 0
    level = [root]
    while level:
        following = []
        for box in sorted(level, key=lambda box: id(box.node) not in important):
            assert box.node is not None
            children = list(box.node.children.values())
            if box.depth == TOP_LEVELS and depth_below[id(box.node)] > LAST_LEVELS + 1:
                _end_of_deepest_path(box, depth_below)
                continue
            shown = _most_important(children, min(MOST_CHILDREN, MOST_NODES - drawn), important)
            drawn += len(shown)
            box.children = [Box(child, box.depth + 1) for child in shown]
            following += box.children
            missing = _subtrees([child for child in children if child not in shown])
            if missing:
                box.children = [*box.children, Box(None, box.depth + 1, left_out=missing)]
        level = following
    return root


def _most_important(children: Sequence[TreeNode], room: int, important: Collection[int]) -> list[TreeNode]:
    """As many of `children` as there is room for, in their order."""
    if len(children) <= room:
        return list(children)
    ranked = sorted(children, key=lambda child: (id(child) not in important, not child.lock_ref))
    kept = ranked[: max(room - 1, 0)]
    return [child for child in children if any(child is other for other in kept)]


def _end_of_deepest_path(box: Box, depth_below: dict[int, int]) -> None:
    """Give `box` one child for all that is left out below it, and that one the last nodes of the deepest path."""
    assert box.node is not None
    node, path = box.node, list[TreeNode]()
    while node.children:
        node = max(node.children.values(), key=lambda child: depth_below[id(child)])
        path.append(node)
    ending = path[-LAST_LEVELS:]
    kept = set(map(id, ending))
    below = _subtrees(list(box.node.children.values()))
    parent = Box(None, box.depth + 1, left_out=[node for node in below if id(node) not in kept])
    box.children = [parent]
    for node in ending:
        parent.children = [Box(node, parent.depth + 1)]
        parent = parent.children[0]


def _depth_below(root: TreeNode) -> dict[int, int]:
    """Levels below each node, by its `id`: 0 for a leaf."""
    below: dict[int, int] = {}
    for node in [*reversed(_subtrees([root]))]:  # children before parents
        below[id(node)] = max((below[id(child)] + 1 for child in node.children.values()), default=0)
    return below


def _subtrees(nodes: Sequence[TreeNode]) -> list[TreeNode]:
    """`nodes` and all below them, parents before children."""
    found, stack = list[TreeNode](), list(nodes)
    while stack:
        found.append(stack.pop())
        stack += found[-1].children.values()
    return found

"""radix_tree: the nodes of a RadixCache, what is in them and who needs them."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import cast

from nanoinfer.eviction import EVICTION_POLICIES
from nanoinfer.radix_cache import MatchResult, RadixCache, TreeNode
from nanoinfer.viz.palette import MUTED, ROLES
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.sheet import BODY, SMALL, TINY, Sheet, drawable, shortened, text_width
from nanoinfer.viz.words import count, expect_type, is_a, runs, visible

Decode = Callable[[list[int]], str]
Highlight = TreeNode | MatchResult | Iterable[TreeNode]

MOST_CHILDREN = 10  # of one node; the others are drawn as one box that counts them
MOST_LEVELS = 4  # side by side; deeper trees are drawn as an indented list
MOST_NODES = 40
HEIGHT, GAP = 50.0, 12.0


@dataclass
class Box:
    """A node to draw, or (`node` None) what stands for `left_out` others."""

    node: TreeNode | None
    depth: int
    children: "list[Box]" = field(default_factory=list)
    left_out: list[TreeNode] = field(default_factory=list)
    x: float = 0.0
    y: float = 0.0


def radix_tree(
    radix_cache: RadixCache,
    *,
    decode: Decode | None = None,
    highlight: Highlight | None = None,
    title: str | None = None,
) -> Picture:
    """Every node: its tokens, their slots, `lock_ref`, ticks of the tree's clock at its last use, `hit_count`.

    Colour: evictable or locked; the leaf that the policy would evict next says so. `decode` makes text of token ids.
    `highlight`: a node, some nodes, or a MatchResult (its path), framed. Of wide and deep trees a part is drawn, and
    what is left out is counted.
    """
    sheet = Sheet(title, "RadixCache: tokens → slots")
    return sheet.picture(draw_radix_tree(sheet, radix_cache, decode, highlight))


def draw_radix_tree(sheet: Sheet, tree: RadixCache, decode: Decode | None, highlight: Highlight | None) -> str:
    """`radix_tree` on a sheet; returns its alt text."""
    expect_type("radix_cache", tree, RadixCache)
    if decode is not None and not callable(decode):
        raise ValueError(f"decode: must be a function of token ids, got {type(decode).__name__}")
    marked = _marked(tree, highlight)
    nodes = [node for _, node in tree.nodes()]
    depth = max((depth for depth, _ in tree.nodes()), default=0)
    root, following = _boxes(tree), _next_to_evict(tree)
    pen = _Pen(sheet, decode, marked, following)
    if depth <= MOST_LEVELS:
        _side_by_side(pen, root, max(depth, 2))
    else:
        _indented(pen, root, depth)
    entries = [(ROLES["tree"], f"evictable: {tree.evictable_size():,}")]
    entries.append((ROLES["tree_locked"], f"locked by requests: {tree.protected_size():,}"))
    outline = []
    if marked:
        entries.append((ROLES["highlight"], "marked"))
        outline.append("marked")
    sheet.legend(entries, outline=outline)
    alt = (
        f"Radix tree: {count(len(nodes), 'node')}, depth {depth}, {count(tree.total_size(), 'token')} "
        f"({tree.evictable_size():,} evictable, {tree.protected_size():,} locked)"
    )
    for node in nodes[:8]:
        alt += (
            f"; [{_ids(node)}] in slots {runs(node.value)}, lock_ref {node.lock_ref}, last use {node.last_access_time}"
        )
    return alt + (f"; and {count(len(nodes) - 8, 'more node')}" if len(nodes) > 8 else "") + "."


def _marked(tree: RadixCache, highlight: Highlight | None) -> list[TreeNode]:
    if highlight is None:
        return []
    if is_a(highlight, MatchResult):
        path, node = [], cast(MatchResult, highlight).last_node
        while node.parent is not None:
            path.append(node)
            node = node.parent
        return path
    nodes = [cast(TreeNode, highlight)] if is_a(highlight, TreeNode) else list(cast(Iterable[TreeNode], highlight))
    for i, node in enumerate(nodes):
        expect_type(f"highlight[{i}]", node, TreeNode)
    return nodes


def _next_to_evict(tree: RadixCache) -> TreeNode | None:
    leaves = [node for _, node in tree.nodes() if not node.children and not node.lock_ref]
    return min(leaves, key=EVICTION_POLICIES[tree.policy], default=None)


def _boxes(tree: RadixCache) -> Box:
    """What is drawn of the tree, and what is left out."""
    root, drawn = Box(tree.root, 0), 0
    stack = [root]
    while stack:
        box = stack.pop()
        assert box.node is not None
        children = list(box.node.children.values())
        shown = children if len(children) <= MOST_CHILDREN else children[: MOST_CHILDREN - 1]
        if drawn + len(shown) > MOST_NODES:
            shown = children[: max(0, MOST_NODES - drawn)]
        drawn += len(shown)
        box.children = [Box(child, box.depth + 1) for child in shown]
        left_out = _subtrees(children[len(shown) :])
        if left_out:
            box.children.append(Box(None, box.depth + 1, left_out=left_out))
        stack += [child for child in reversed(box.children) if child.node is not None]
    return root


def _subtrees(nodes: Sequence[TreeNode]) -> list[TreeNode]:
    found, stack = [], list(nodes)
    while stack:
        found.append(stack.pop())
        stack += found[-1].children.values()
    return found


def _ids(node: TreeNode, limit: int = 7) -> str:
    tokens = node.key.tolist()
    if len(tokens) <= limit:
        return " ".join(map(str, tokens))
    return " ".join(map(str, tokens[: limit - 2])) + " … " + str(tokens[-1])


class _Pen:
    """Draws one box at a time, in either layout."""

    def __init__(self, sheet: Sheet, decode: Decode | None, marked: list[TreeNode], following: TreeNode | None):
        self.sheet, self.decode, self.following = sheet, decode, following
        self._marked = set(map(id, marked))

    def text_of(self, node: TreeNode, width: float, size: float) -> str:
        """The node's tokens, first … last where they do not fit."""
        if self.decode is None:
            for limit in range(min(len(node), 24), 2, -1):
                text = _ids(node, limit)
                if text_width(text, size, "bold") <= width:
                    return text
            return shortened(_ids(node, 3), width, size, "bold")
        text = drawable(visible(self.decode(node.key.tolist())))
        if text_width(text, size, "bold") <= width:
            return text
        tail = text[-6:]
        return shortened(text, width - text_width(tail, size, "bold"), size, "bold") + tail

    def box(self, box: Box, width: float, height: float) -> None:
        sheet, node = self.sheet, box.node
        x, y = box.x, box.y
        if node is None:
            tokens = sum(map(len, box.left_out))
            text = f"… {count(len(box.left_out), 'more node')}, {count(tokens, 'token')}"
            sheet.rect(x, y, width, height, ROLES["leftover"], edge="#9a9a9a", dashed=True, name="left out")
            sheet.text(x + 8, y + height / 2, text, size=SMALL, colour=MUTED, width=width - 12)
            return
        if node.parent is None:
            sheet.rect(x, y, width, height, ROLES["free"], edge="#767676", name="root")
            sheet.text(x + width / 2, y + height / 2, "root", size=SMALL, ha="center", colour=MUTED)
            return
        style = ROLES["tree_locked" if node.lock_ref else "tree"]
        sheet.rect(x, y, width, height, style, edge="#4a4a4a", name=f"node {box.depth}")
        if id(node) in self._marked:
            sheet.rect(x - 2, y - 2, width + 4, height + 4, edge=ROLES["highlight"].face, line=2.4, over=True)
        colour = style.text
        slots = f"{count(len(node), 'token')} · slots {runs(node.value, 3)}"
        use = f"lock_ref {node.lock_ref} · last use {node.last_access_time} · hits {node.hit_count}"
        if node is self.following:
            use += " · next to evict"
        if height >= HEIGHT:
            sheet.text(
                x + 7, y + 11, self.text_of(node, width - 14, BODY), weight="bold", colour=colour, width=width - 12
            )
            sheet.text(x + 7, y + 26, slots, size=SMALL, colour=colour, width=width - 12)
            sheet.text(x + 7, y + 40, use, size=TINY, colour=colour, width=width - 12)
            return
        right = sheet.text(
            x + width - 8, y + height / 2, f"{slots} · {use}", size=TINY, colour=colour, ha="right", width=width - 90
        )
        room = width - right - 24
        sheet.text(
            x + 7, y + height / 2, self.text_of(node, room, SMALL), size=SMALL, weight="bold", colour=colour, width=room
        )

    def namespace(self, box: Box, x: float, y: float) -> None:
        """The extra_key of a child of the root, where it has one."""
        key: Hashable = box.node.edge[0] if box.node is not None and box.depth == 1 else None
        if key is not None:
            self.sheet.text(x, y, f"extra_key={key!r}", size=TINY, colour=MUTED, width=180)


def _side_by_side(pen: _Pen, root: Box, levels: int) -> None:
    """Levels from left to right; a parent in the middle of its children. Leaves take a line each, so nothing overlaps."""
    sheet = pen.sheet
    root_width, gap = 46.0, 30.0
    width = min((sheet.right - sheet.left - root_width) / levels - gap, 300)
    bottom = sheet.y

    def place(box: Box, y: float) -> float:
        height = 26 if box.node is None else HEIGHT
        box.x = sheet.left if box.depth == 0 else sheet.left + root_width + gap + (box.depth - 1) * (width + gap)
        end = y
        for child in box.children:
            end = place(
                child,
                end + (12 if child.node is not None and child.node.edge[0] is not None and child.depth == 1 else 0),
            )
        end = max(end, y + height + GAP)
        middles = [child.y + (13 if child.node is None else HEIGHT / 2) for child in box.children]
        middle = (middles[0] + middles[-1]) / 2 if middles else y + height / 2
        box.y = middle - height / 2
        return end

    bottom = place(root, sheet.y)
    stack = [root]
    while stack:
        box = stack.pop()
        own_width, height = (root_width if box.depth == 0 else width), (26 if box.node is None else HEIGHT)
        right, middle = box.x + own_width, box.y + height / 2
        for child in box.children:
            child_middle = child.y + (13 if child.node is None else HEIGHT / 2)
            bend = right + gap / 2
            sheet.line([right, bend, bend, child.x], [middle, middle, child_middle, child_middle], colour=MUTED)
        pen.box(box, own_width, height)
        pen.namespace(box, box.x, box.y - 7)
        stack += box.children
    sheet.y = bottom + 4


def _indented(pen: _Pen, root: Box, depth: int) -> None:
    """One line a node, parents above children, deeper ones further right."""
    sheet, height = pen.sheet, 22.0
    indent = min(26.0, 300 / depth)
    stack, places = [(root, -1.0)], 0
    while stack:
        box, parent_y = stack.pop()
        box.x, box.y = sheet.left + box.depth * indent, sheet.y + places * 27
        places += 1
        if box.depth:
            trunk = box.x - indent / 2
            sheet.line([trunk, trunk, box.x], [parent_y + height, box.y + height / 2, box.y + height / 2], colour=MUTED)
        key_room = 0.0
        if box.node is not None and box.depth == 1 and box.node.edge[0] is not None:
            pen.namespace(box, sheet.right - 150, box.y + height / 2)
            key_room = 160
        width = 46 if box.depth == 0 else sheet.right - box.x - key_room
        pen.box(box, width if box.node is not None else 260, height)
        stack += [(child, box.y) for child in reversed(box.children)]
    sheet.y += places * 27 + 6

"""radix_tree: the nodes of a RadixCache, what is in them and what needs them; and which nodes of a large tree are drawn."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import cast

from nanoinfer.cache.eviction import EVICTION_POLICIES
from nanoinfer.cache.radix_cache import MatchResult, RadixCache
from nanoinfer.cache.tree_node import TreeNode
from nanoinfer.requests.adapter_key import AdapterKey
from nanoinfer.viz.lettering import BODY, SMALL, TINY, drawable, shortened, text_width
from nanoinfer.viz.palette import INK, MUTED, ROLES, Style
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.sheet import Sheet
from nanoinfer.viz.words import ENDS_NOTE, count, is_a, slots, visible_ends

MOST_CHILDREN = 10  # of one node
MOST_NODES = 28


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
    locked, then the oldest."""
    important = {id(ancestor) for node in wanted for ancestor in path_to(node)}
    root, drawn = Box(tree.root, 0), 0
    level = [root]
    while level:
        following = []
        for box in sorted(level, key=lambda box: id(box.node) not in important):
            assert box.node is not None
            children = list(box.node.children.values())
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


def _subtrees(nodes: Sequence[TreeNode]) -> list[TreeNode]:
    """`nodes` and all below them, parents before children."""
    found, stack = list[TreeNode](), list(nodes)
    while stack:
        found.append(stack.pop())
        stack += found[-1].children.values()
    return found


Decode = Callable[[list[int]], str]
Highlight = TreeNode | MatchResult | Iterable[TreeNode]

MOST_LEVELS, MOST_LEAVES = 4, 12  # side by side; larger trees are drawn as an indented list
TALL, GAP, FLAT, PITCH = 50.0, 12.0, 22.0, 27.0  # heights of a node side by side and in a list, and what lies between
ROOT_WIDTH = 46.0
BADGE = "next to evict"


def radix_tree(
    radix_cache: RadixCache,
    *,
    decode: Decode | None = None,
    highlight: Highlight | None = None,
    title: str | None = None,
    tell_next: bool = True,
    caption: str | None = None,
) -> Picture:
    """Every node: its tokens, their slots, `lock_ref`, ticks of the tree's clock at its last use, `hit_count`.

    Colour: evictable or locked; the leaf that the policy would evict next says so, unless `tell_next=False` (so that a
    reader can find it). `decode` makes text of token ids
    (`llm.tokenizer.decode`). `highlight`: a node, some nodes, or a MatchResult (its path), framed. Of wide and deep trees a
    part is drawn, and what is left out is counted.
    """
    sheet = Sheet(title, "RadixCache: tokens → slots", caption=caption)
    return sheet.picture(draw_radix_tree(sheet, radix_cache, decode, highlight, tell_next))


def draw_radix_tree(
    sheet: Sheet, tree: RadixCache, decode: Decode | None, highlight: Highlight | None, tell_next: bool = True
) -> str:
    """`radix_tree` on a sheet; returns its alt text."""
    marked, following = _marked(highlight), next_to_evict(tree) if tell_next else None
    depth = max((depth for depth, _ in tree.nodes()), default=0)
    root = boxes(tree, [*marked, *([following] if following else [])])
    pen = _Pen(sheet, decode, marked, following, root)
    if depth <= MOST_LEVELS and sum(not box.children for box in root.everything()) <= MOST_LEAVES:
        _side_by_side(pen, root, max(depth, 2))
    else:
        _indented(pen, root)
    entries = [
        (ROLES["tree"], f"evictable: {tree.evictable_size():,}"),
        (ROLES["tree_locked"], f"locked by requests: {tree.protected_size():,}"),
    ]
    sheet.legend([*entries, (ROLES["highlight"], "marked")] if marked else entries, outline=["marked"])
    if depth:
        sheet.y -= 3
        shown = " " + ENDS_NOTE if decode is not None else ""
        note = (
            "last use (last_access_time): when it was last needed, on a clock that ticks with each use of the tree. hits "
            "(hit_count): how many look-ups have found it. The width of a box has no meaning."
        )
        sheet.caption(note + shown, size=TINY)
    return _alt(tree, depth, pen, marked)


def _alt(tree: RadixCache, depth: int, pen: "_Pen", marked: list[TreeNode]) -> str:
    nodes = [node for _, node in tree.nodes()]
    parts = [
        f"Radix tree: {count(len(nodes), 'node')}, depth {depth}, {count(tree.total_size(), 'token')} "
        f"({tree.evictable_size():,} evictable, {tree.protected_size():,} locked)"
    ]
    for node in nodes[:8]:
        text = f"{pen.name_of(node)} in {slots(node.value)}, lock_ref {node.lock_ref}, last use {node.last_access_time}"
        parts.append(f"{text}, hits {node.hit_count}{f', {BADGE}' if node is pen.following else ''}")
    if len(nodes) > 8:
        parts.append(f"and {count(len(nodes) - 8, 'more node')}")
    if marked:
        parts.append(f"marked: {count(len(marked), 'node')} of {count(sum(map(len, marked)), 'token')}")
    return "; ".join(parts) + "."


def _marked(highlight: Highlight | None) -> list[TreeNode]:
    if highlight is None:
        return []
    if is_a(highlight, MatchResult):
        return path_to(cast(MatchResult, highlight).last_node)
    if is_a(highlight, TreeNode):
        return [cast(TreeNode, highlight)]
    return list(cast(Iterable[TreeNode], highlight))


def _ids(node: TreeNode, limit: int = 7) -> str:
    """Token ids, the first ones and the last where they are more than `limit`."""
    tokens = list(map(str, node.key.tolist()))
    return " ".join(tokens if len(tokens) <= limit else [*tokens[: limit - 2], "…", tokens[-1]])


class _Pen:
    """Draws one box at a time, in either layout."""

    def __init__(
        self, sheet: Sheet, decode: Decode | None, marked: list[TreeNode], following: TreeNode | None, root: Box
    ):
        self.sheet, self._decode, self.following = sheet, decode, following
        self._marked = set(map(id, marked))
        self._several_namespaces = any(box.extra_key is not None for box in root.children)

    def shows_namespace(self, box: Box) -> bool:
        """Whether the box shows its namespace: a child of the root of a tree in which there are others than None."""
        return self._several_namespaces and box.depth == 1 and box.node is not None

    def box(self, box: Box, width: float, height: float) -> None:
        sheet, node, x, y = self.sheet, box.node, box.x, box.y
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
        sheet.rect(x, y, width, height, style, edge="#4a4a4a", name="node")
        if id(node) in self._marked:
            sheet.rect(x - 2, y - 2, width + 4, height + 4, edge=ROLES["highlight"].face, line=2.4, over=True)
        (self._three_lines if height == TALL else self._one_line)(node, style, x, y, width, height)

    def name_of(self, node: TreeNode) -> str:
        """Its tokens in a sentence: `[1 2 3]`, or `"text"`, its middle left out where it is long."""
        text = self._decode(node.key.tolist()) if self._decode is not None else ""
        if not text:
            return f"[{_ids(node)}]"
        text = text.replace("\n", "⏎")
        return f'"{text}"' if len(text) <= 36 else f'"{text[:24]}…{text[-10:]}"'

    def namespace(self, box: Box, x: float, y: float, width: float) -> None:
        if self.shows_namespace(box):
            self.sheet.text(x, y, _namespace(box.extra_key), size=TINY, colour=MUTED, width=width)

    def _three_lines(self, node: TreeNode, style: Style, x: float, y: float, width: float, height: float) -> None:
        room, colour = width - 14, style.text
        use = f"lock_ref {node.lock_ref} · last use {node.last_access_time} · hits {node.hit_count}"
        self.sheet.text(x + 7, y + 26, self._slots_of(node, room, SMALL), size=SMALL, colour=colour, width=room)
        self.sheet.text(x + 7, y + 40, use, size=TINY, colour=colour, width=room)
        if node is self.following:
            room -= self._badge(x + width - 4, y + 11) + 4
        text = self._text_of(node, room, BODY)
        self.sheet.text(x + 7, y + 11, text, weight="bold", colour=colour, width=room)

    def _one_line(self, node: TreeNode, style: Style, x: float, y: float, width: float, height: float) -> None:
        middle, right, room = y + height / 2, x + width - 8, width - 24
        if node is self.following:
            badge = self._badge(right + 4, middle) + 6
            right, room = right - badge, room - badge
        facts = self._slots_of(node, 150, TINY)
        facts += f" · lock_ref {node.lock_ref} · last use {node.last_access_time} · hits {node.hit_count}"
        room -= self.sheet.text(right, middle, facts, size=TINY, colour=style.text, ha="right", width=room - 60)
        text = self._text_of(node, room, SMALL)
        self.sheet.text(x + 7, middle, text, size=SMALL, weight="bold", colour=style.text, width=room)

    def _badge(self, right: float, y: float) -> float:
        """Marks the node that goes next; returns the badge's width."""
        width = text_width(BADGE, TINY) + 8
        self.sheet.rect(right - width, y - 7, width, 14, ROLES["free"]._replace(face=INK), name=BADGE)
        self.sheet.text(right - width / 2, y, BADGE, size=TINY, colour="#ffffff", ha="center")
        return width

    def _slots_of(self, node: TreeNode, width: float, size: float) -> str:
        """`3 tokens · slots 7-9`, as many runs as fit."""
        texts = [f"{count(len(node), 'token')} · {slots(node.value, limit)}" for limit in range(9, 0, -1)]
        return next((text for text in texts if text_width(text, size) <= width), texts[-1])

    def _text_of(self, node: TreeNode, width: float, size: float) -> str:
        """The node's tokens, first … last where they do not fit."""
        if self._decode is None:
            texts = [_ids(node, limit) for limit in range(min(max(len(node), 3), 40), 2, -1)]
            return next((text for text in texts if text_width(text, size, "bold") <= width), texts[-1])
        text = self._decode(node.key.tolist()) or _ids(node)
        text = drawable(visible_ends(text))
        if text_width(text, size, "bold") <= width:
            return text
        half = next((i for i in range(9, len(text)) if text_width(text[-i - 1 :], size, "bold") > width / 2), 9)
        ending = text[-half:]  # nodes side by side differ in how they end
        start = shortened(text, width - text_width(ending, size, "bold"), size, "bold")
        head, words = start.rpartition(" ")[0], ending.partition(" ")[2]
        return f"{head} … {words}" if head and words else start + ending  # between words: half a token id says nothing


def _side_by_side(pen: _Pen, root: Box, levels: int) -> None:
    """Levels from left to right; a parent in the middle of its children. Each leaf takes a line, so nothing overlaps."""
    sheet, gap = pen.sheet, 30.0
    width = min((sheet.right - sheet.left - ROOT_WIDTH) / levels - gap, 380)

    def height_of(box: Box) -> float:
        return FLAT if box.node is None else TALL

    def place(box: Box, y: float) -> float:
        """Give `box` and all below it a place from `y` on; returns where they end."""
        box.x = sheet.left + (ROOT_WIDTH + gap + (box.depth - 1) * (width + gap) if box.depth else 0)
        end, height = y, height_of(box)
        for child in box.children:
            end = place(child, end + (13 if pen.shows_namespace(child) else 0))
        end = max(end, y + height + GAP)
        middles = [child.y + height_of(child) / 2 for child in box.children]
        box.y = (middles[0] + middles[-1] - height) / 2 if middles else y
        return end

    bottom = place(root, sheet.y)
    for box in root.everything():
        own_width, middle = width if box.depth else ROOT_WIDTH, box.y + height_of(box) / 2
        right = box.x + own_width
        for child in box.children:
            child_middle, bend = child.y + height_of(child) / 2, right + gap / 2
            sheet.line([right, bend, bend, child.x], [middle, middle, child_middle, child_middle], colour=MUTED)
        pen.box(box, own_width, height_of(box))
        pen.namespace(box, box.x, box.y - 7, width)
    sheet.y = bottom + 4


def _indented(pen: _Pen, root: Box) -> None:
    """One line per node, parents above children, deeper ones further right."""
    sheet, all_boxes = pen.sheet, root.everything()
    indent = min(26.0, 300 / max(box.depth for box in all_boxes))
    for place, box in enumerate(all_boxes):
        box.x, box.y = sheet.left + box.depth * indent, sheet.y + place * PITCH
    for box in all_boxes:
        for child in box.children:
            trunk, middle = child.x - indent / 2, child.y + FLAT / 2
            sheet.line([trunk, trunk, child.x], [box.y + FLAT, middle, middle], colour=MUTED)
        room = 160 if pen.shows_namespace(box) else 0
        pen.namespace(box, sheet.right - room + 6, box.y + FLAT / 2, room - 6)
        width = 260 if box.node is None else sheet.right - box.x - room if box.depth else ROOT_WIDTH
        pen.box(box, width, FLAT)
    sheet.y += len(all_boxes) * PITCH + 6


def _namespace(extra_key: object) -> str:
    """What keeps a namespace apart, in one line: an adapter by its name and id, anything else as it is."""
    if not isinstance(extra_key, AdapterKey):
        return f"extra_key={extra_key!r}"
    own = "" if extra_key.extra_key is None else f", extra_key={extra_key.extra_key!r}"
    return f"adapter {extra_key.name}, id {extra_key.id}{own}"

"""radix_tree: the nodes of a RadixCache, what is in them and what needs them."""

from collections.abc import Callable, Collection, Iterable
from typing import Unpack, cast

from nanoinfer.cache.eviction import EVICTION_POLICIES
from nanoinfer.cache.radix_cache import MatchResult, RadixCache
from nanoinfer.cache.tree_node import TreeNode
from nanoinfer.cache.tree_observer import path_to
from nanoinfer.requests.request import AdapterKey
from nanoinfer.viz.lettering import SMALL, TINY, text_width
from nanoinfer.viz.palette import INK, MUTED, ROLES, Style
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.sheet import Heading, Sheet
from nanoinfer.viz.words import ENDS_NOTE, count, is_a, slots, visible_ends

Decode = Callable[[list[int]], str]
Highlight = TreeNode | MatchResult | Iterable[TreeNode]

MOST_NODES, MOST_WORDS = 28, 60
HEIGHT, PITCH = 22.0, 27.0  # of a node; from one to the next
W_SLOTS, W_USE, W_NAMESPACE = 190.0, 178.0, 160.0  # of what stands to the right of the tokens
BADGE = "next to evict"


def radix_tree(
    radix_cache: RadixCache,
    *,
    decode: Decode | None = None,
    highlight: Highlight | None = None,
    tell_next: bool = True,
    **heading: Unpack[Heading],
) -> Picture:
    """Every node on a line, below its parent: its tokens, their slots, `lock_ref`, ticks of the tree's clock at its last
    use, `hit_count`.

    Colour: evictable or locked; the leaf that the policy would evict next says so, unless `tell_next=False` (so that a
    reader can find it). `decode` makes text of token ids (`llm.tokenizer.decode`). `highlight`: a node, some nodes, or a
    MatchResult (its path), framed. Of a large tree 28 nodes are drawn, and what is left out is counted.
    """
    sheet = Sheet(default_title="RadixCache: tokens → slots", **heading)
    return sheet.picture(draw_radix_tree(sheet, radix_cache, decode, highlight, tell_next))


def draw_radix_tree(
    sheet: Sheet, tree: RadixCache, decode: Decode | None, highlight: Highlight | None, tell_next: bool = True
) -> str:
    """`radix_tree` on a sheet; returns its alt text."""
    marked, following = _marked(highlight), next_to_evict(tree) if tell_next else None
    lines = _lines(tree.root, 0, _drawn(tree, [*marked, *([following] if following else [])]))
    indent = min(26.0, 300 / max(1, *(depth for depth, _ in lines)))
    namespaces = any(node.edge[0] is not None for node in tree.root.children.values())
    right, tops = sheet.right - W_NAMESPACE * namespaces, dict[int, float]()
    for depth, what in lines:
        x, middle, tops[depth] = sheet.left + depth * indent, sheet.y + HEIGHT / 2, sheet.y
        if depth:
            trunk = x - indent / 2
            sheet.line([trunk, trunk, x], [tops[depth - 1] + HEIGHT, middle, middle])
        if isinstance(what, list):
            text = f"… {count(len(what), 'more node')}, {count(sum(map(len, what)), 'token')}"
            sheet.rect(x, sheet.y, 260, HEIGHT, ROLES["leftover"], edge="#9a9a9a", dashed=True, name="left out")
            sheet.text(x + 8, middle, text, size=SMALL, colour=MUTED)
        elif not depth:
            sheet.cell(x, sheet.y, 46, HEIGHT, ROLES["free"], "root", edge="#767676", name="root")
        else:
            _node(sheet, what, x, right, decode, badge=what is following)
            if any(what is node for node in marked):
                frame = x - 2, sheet.y - 2, right - x + 4, HEIGHT + 4
                sheet.rect(*frame, edge=ROLES["highlight"].face, line=2.4)
            if namespaces and depth == 1:
                sheet.text(right + 6, middle, _namespace(what.edge[0]), size=TINY, colour=MUTED, width=W_NAMESPACE - 6)
        sheet.y += PITCH
    sheet.y += 6
    unlocked, locked = f"evictable: {tree.evictable_size():,}", f"locked by requests: {tree.protected_size():,}"
    sheet.legend([(ROLES["tree"], unlocked), (ROLES["tree_locked"], locked)], marked="marked" if marked else "")
    if tree.root.children:
        sheet.y -= 3
        note = (
            "last use (last_access_time): when it was last needed, on a clock that ticks with each use of the tree. hits "
            "(hit_count): how many look-ups have found it."
        )
        sheet.caption(f"{note} {ENDS_NOTE if decode is not None else ''}", size=TINY)
    return _alt(tree, decode, marked, following)


def _alt(tree: RadixCache, decode: Decode | None, marked: list[TreeNode], following: TreeNode | None) -> str:
    nodes, depth = [node for _, node in tree.nodes()], max((depth for depth, _ in tree.nodes()), default=0)
    parts = [
        f"Radix tree: {count(len(nodes), 'node')}, depth {depth}, {count(tree.total_size(), 'token')} "
        f"({tree.evictable_size():,} evictable, {tree.protected_size():,} locked)"
    ]
    for node in nodes[:8]:
        tokens = list(map(str, node.key.tolist()))
        name = f"[{' '.join(tokens if len(tokens) <= 7 else [*tokens[:5], '…', tokens[-1]])}]"
        if decode is not None and (text := decode(node.key.tolist()).replace("\n", "⏎")):
            name = f'"{text}"' if len(text) <= 36 else f'"{text[:24]}…{text[-10:]}"'
        text = f"{name} in {slots(node.value)}, lock_ref {node.lock_ref}, last use {node.last_access_time}"
        parts.append(f"{text}, hits {node.hit_count}{f', {BADGE}' if node is following else ''}")
    if len(nodes) > 8:
        parts.append(f"and {count(len(nodes) - 8, 'more node')}")
    if marked:
        parts.append(f"marked: {count(len(marked), 'node')} of {count(sum(map(len, marked)), 'token')}")
    return "; ".join(parts) + "."


def next_to_evict(tree: RadixCache) -> TreeNode | None:
    """The unlocked leaf that the tree's policy gives up first; None when there is none."""
    leaves = [node for _, node in tree.nodes() if not node.children and not node.lock_ref]
    return min(leaves, key=EVICTION_POLICIES[tree.policy], default=None)


def _marked(highlight: Highlight | None) -> list[TreeNode]:
    if highlight is None:
        return []
    if is_a(highlight, MatchResult):
        return path_to(cast(MatchResult, highlight).last_node)
    if is_a(highlight, TreeNode):
        return [cast(TreeNode, highlight)]
    return list(cast(Iterable[TreeNode], highlight))


def _drawn(tree: RadixCache, wanted: Iterable[TreeNode]) -> set[int]:
    """Which nodes there is room for: those that lead to `wanted`, then locked ones, then upper ones; never one without its
    parent."""
    important = {id(ancestor) for node in wanted for ancestor in path_to(node)}
    ranked = sorted(tree.nodes(), key=lambda each: (id(each[1]) not in important, not each[1].lock_ref, each[0]))
    return {id(node) for _, node in ranked[:MOST_NODES]}


def _lines(node: TreeNode, depth: int, drawn: Collection[int]) -> list[tuple[int, TreeNode | list[TreeNode]]]:
    """Depth and node, line by line; behind the children of each, a list of all that are below it and not drawn."""
    lines: list[tuple[int, TreeNode | list[TreeNode]]] = [(depth, node)]
    stack, missing = [child for child in node.children.values() if id(child) not in drawn], list[TreeNode]()
    for child in node.children.values():
        if id(child) in drawn:
            lines += _lines(child, depth + 1, drawn)
    while stack:
        missing.append(stack.pop())
        stack += missing[-1].children.values()
    return [*lines, (depth + 1, missing)] if missing else lines


def _node(sheet: Sheet, node: TreeNode, x: float, right: float, decode: Decode | None, *, badge: bool) -> None:
    style, middle = ROLES["tree_locked" if node.lock_ref else "tree"], sheet.y + HEIGHT / 2
    sheet.rect(x, sheet.y, right - x, HEIGHT, style, edge="#4a4a4a", name="node")
    use = f"lock_ref {node.lock_ref} · last use {node.last_access_time} · hits {node.hit_count}"
    sheet.text(right - 8, middle, use, size=TINY, colour=style.text, ha="right")
    places = [f"{count(len(node), 'token')} · {slots(node.value, limit)}" for limit in range(6, 0, -1)]
    place = next((text for text in places if text_width(text, TINY) <= W_SLOTS), places[-1])
    sheet.text(right - W_USE - W_SLOTS, middle, place, size=TINY, colour=style.text, width=W_SLOTS)
    room = right - W_USE - W_SLOTS - x - 16
    if badge:
        width = text_width(BADGE, TINY) + 8
        room -= width + 4
        at = right - W_USE - W_SLOTS - 6 - width, sheet.y + 4, width, 14
        sheet.cell(*at, Style(INK, "#ffffff"), BADGE, size=TINY, edge=None, name=BADGE)
    text = visible_ends(decode(node.key.tolist())) if decode is not None else ""
    words = text.split(" ") if text else list(map(str, node.key.tolist()))
    sheet.text(x + 7, middle, _fitting(words, room), size=SMALL, weight="bold", colour=style.text, width=room)


def _fitting(words: list[str], width: float) -> str:
    """The first words … the last ones, as many as fit: nodes with the same parent often differ in how they end."""
    text = " ".join(words)
    for shown in range(min(len(words) - 1, MOST_WORDS), 1, -1):
        if text_width(text, SMALL, "bold") <= width:
            break
        text = " ".join([*words[: (shown + 1) // 2], "…", *words[-(shown // 2) :]])
    return text


def _namespace(extra_key: object) -> str:
    """What keeps a namespace apart, in one line: an adapter by its name and id, anything else as it is."""
    if not isinstance(extra_key, AdapterKey):
        return f"extra_key={extra_key!r}"
    own = "" if extra_key.extra_key is None else f", extra_key={extra_key.extra_key!r}"
    return f"adapter {extra_key.name}, id {extra_key.id}{own}"

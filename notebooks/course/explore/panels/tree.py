"""Tree: nodes with text, slots and locks; before and after side by side, with arrows from what was to what became of it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from nanoinfer.viz.palette import MUTED, ROLES
from nanoinfer.viz.sheet import SMALL, Sheet
from notebooks.course.explore.panels.base import LOOKS, Panel

MARKS = ("", "new", "split", "locked", "unlocked", "evicted", "found", "here")


@dataclass(frozen=True)
class Node:
    """`slots`: as text, such as "4..9". `locks`: how many requests rely on it (`lock_ref`). `mark`: what happens to it.
    `key`: its name, once in a tree; `was`: the key of the node in the tree before that it comes from (an arrow)."""

    text: str
    slots: str = ""
    locks: int = 0
    mark: str = ""
    key: str = ""
    was: str = ""
    note: str = ""
    children: Sequence["Node"] = ()

    def walk(self) -> Iterator["Node"]:
        """This node and all below it."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True)
class Tree(Panel):
    """`root`: of the tree (after); `before`: of the tree that it was. The root itself holds no tokens."""

    kind: ClassVar[str] = "tree"
    title: str
    root: Node
    before: Node | None = None
    note: str = ""

    def words(self) -> str:
        after = _words(self.root)
        return f"{self.title}. " + (f"Before: {_words(self.before)}. After: {after}." if self.before else f"{after}.")

    def draw(self, sheet: Sheet) -> None:
        middle = (sheet.left + sheet.right) / 2
        sides = [(self.before, sheet.left, middle - 10)] if self.before else []
        sides.append((self.root, middle + 10 if self.before else sheet.left, sheet.right))
        top, bottoms = sheet.y, []
        ends: dict[str, float] = {}  # of the arrows: how far down each node of the tree before is
        for root, x, right in sides:
            sheet.y = top
            if self.before:
                sheet.text(x, sheet.y + 6, "before" if root is self.before else "after", size=SMALL, colour=MUTED)
                sheet.y += 18
            for node, depth in _levels(root):
                style = LOOKS["locked" if node.locks else "tree"] if depth else LOOKS["free"]
                slots = node.slots and f"slot{'s' * (not node.slots.isdigit())} {node.slots}"
                left, said = x + 24 * depth, " | ".join(filter(None, (node.text or "root", slots, node.mark)))
                sheet.cell(left, sheet.y, right - left, 22, style, said, edge="#767676")
                if root is self.before:
                    ends[node.key] = sheet.y + 11
                elif node.was:
                    y = sheet.y + 11
                    sheet.line([middle - 10, left - 5], [ends[node.was], y], colour=ROLES["highlight"].face, line=1.6)
                    sheet.text(left - 1, y, "▸", ha="right", colour=ROLES["highlight"].face)
                sheet.y += 26
            bottoms.append(sheet.y)
        sheet.y = max(bottoms)


def _levels(root: Node, depth: int = 0) -> Iterator[tuple[Node, int]]:
    yield root, depth
    for child in root.children:
        yield from _levels(child, depth + 1)


def _words(root: Node) -> str:
    said = []
    for node, depth in _levels(root):
        if depth:
            locked = f", locked by {node.locks}" if node.locks else ""
            mark, slots = f", {node.mark}" if node.mark else "", f" in slots {node.slots}" if node.slots else ""
            said.append(f"level {depth} “{node.text}”{slots}{locked}{mark}")
    return "; ".join(said) or "an empty tree"

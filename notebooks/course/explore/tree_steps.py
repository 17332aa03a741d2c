"""How does the radix tree change? Insert, split, lock, unlock and evict, one step at a time, on a real RadixCache."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch

from nanoinfer.cache.tree_node import TreeNode
from nanoinfer.config import EngineConfig
from nanoinfer.llm import LLM, make_engine
from nanoinfer.viz.trace import record
from nanoinfer.viz.trace.state import TraceState
from nanoinfer.viz.words import slots
from notebooks.course.explore import Cells, Control, Frame, InteractiveFigure, Tree
from notebooks.course.explore.runs import NAMES, pool_rows, slot_looks, tree_root
from notebooks.course.prompts import BEAR, FOX, RIVER

SLOTS = 32
LEGEND = [(look, NAMES[look]) for look in ("free", "tree", "locked")]


@dataclass
class TreeStep:
    """One operation on the tree: its `name`, `said` about it, and the tree before and after it, as the trace has them.

    `operations`: what the trace noted ("add", "split", "grow", "remove"). `texts`: of tokens.
    """

    name: str
    said: str
    before: TraceState
    after: TraceState
    operations: list[list[Any]] = field(default_factory=list)
    texts: dict[int, str] = field(default_factory=dict)


class Play:
    """A radix tree, the prompts that go through it, and a recorded step for everything that is done to it."""

    def __init__(self, llm: LLM):
        model = llm.model
        assert model.tokenizer is not None
        self.engine = make_engine(model, EngineConfig(4, SLOTS, SLOTS))
        self.tree, self.pool = self.engine.radix_cache, self.engine.cache.token_to_kv_pool
        self.tokens = {prompt: model.tokenizer.encode(prompt) for prompt in (FOX, BEAR, RIVER)}
        self.steps: list[TreeStep] = []

    def insert(self, prompt: str) -> int:
        """As a request does: what the tree has is used, the rest is computed into new slots and inserted."""
        known = self.tree.match_prefix(self.tokens[prompt]).indices
        new = self.pool.alloc(len(self.tokens[prompt]) - len(known))
        assert new is not None
        self.tree.insert(self.tokens[prompt], torch.cat((known, new)))
        return len(new)

    def leaf(self, prompt: str) -> TreeNode:
        """Where the prompt ends in the tree."""
        return self.tree.match_prefix(self.tokens[prompt], count_hit=False).last_node

    def run(self) -> list[TreeStep]:
        """The whole play, recorded."""
        with record(self.engine) as trace:
            for name, said, change in self.script():
                before, known = deepcopy(trace.state()), len(trace.events)
                result = change()
                operations = [operation for event in trace.events[known:] for operation in event.tree]
                after, texts = deepcopy(trace.state()), dict(trace.texts)
                self.steps.append(TreeStep(name, said.format(result), before, after, operations, texts))
                self.look()
        return self.steps

    def look(self) -> None:
        """After each step: for a test to compare the live tree with what the trace says of it."""

    def script(self) -> list[tuple[str, str, Callable[[], object]]]:
        """What is done: its name, what is said about it ({} is what it returns), and how."""
        return [
            (
                "insert",
                "A request about the fox has computed {} tokens. It gives them to the tree, which owns their slots from "
                "now on. One node is enough: nothing branches yet.",
                lambda: self.insert(FOX),
            ),
            (
                "look up and split",
                "A second prompt, about a bear, is looked up. Its first {} tokens are in the tree, but the match ends in "
                "the middle of the node. So the node is split there. Every slot stays where it is.",
                lambda: len(self.tree.match_prefix(self.tokens[BEAR]).indices),
            ),
            (
                "lock",
                "The bear's request is going to read these slots, so it locks the node in which its match ends. What is "
                "locked can't be evicted. The part below, about the fox, stays unlocked.",
                lambda: self.tree.inc_lock_ref(self.leaf(BEAR)),
            ),
            (
                "insert below",
                "The bear's request has computed the {} tokens that were missing. They become a new leaf: two prompts now "
                "share the upper node.",
                lambda: self.insert(BEAR),
            ),
            (
                "lock the leaf",
                "The request now relies on its new leaf too. It locks the leaf, which locks the path up to the root, and "
                "gives up its first lock.",
                self.lock_leaf_instead,
            ),
            (
                "insert at the end",
                "A prompt that goes on where the fox's ends adds only its last {} tokens, below the node that it extends.",
                lambda: self.insert(RIVER),
            ),
            (
                "evict",
                "Six slots are wanted. Eviction takes whole unlocked leaves: first the river's, and because that isn't "
                "enough, then the fox's, which has become a leaf. {} slots are free again. The locked path isn't touched.",
                lambda: self.tree.evict(6),
            ),
            (
                "unlock",
                "The bear's request ends and gives up its lock. Nothing is freed: its tokens stay, in case another prompt "
                "starts with them, but from now on they may be evicted.",
                lambda: self.tree.dec_lock_ref(self.leaf(BEAR)),
            ),
            (
                "evict again",
                "One slot is wanted. The leaf goes as a whole, so {} slots are freed. The upper node is a leaf now and "
                "would be next.",
                lambda: self.tree.evict(1),
            ),
            (
                "evict the rest",
                "The last {} slots are evicted. The tree is empty, and every slot is free.",
                lambda: self.tree.evict(1),
            ),
        ]

    def lock_leaf_instead(self) -> None:
        """The bear's request goes from a lock on the node above its leaf to one on the leaf."""
        leaf = self.leaf(BEAR)
        assert leaf.parent is not None
        self.tree.inc_lock_ref(leaf)
        self.tree.dec_lock_ref(leaf.parent)


def tree_steps(llm: LLM) -> InteractiveFigure:
    """Step → the tree before and after it, with arrows, the pool's slots, and what happened."""
    steps = Play(llm).run()
    numbers = range(1, len(steps) + 1)
    return InteractiveFigure(
        "How does the radix tree split, grow, lock and evict?",
        "Go through the steps. You see the tree before and after each of them; arrows lead from a node to what became of "
        "it. Below are the slots of the pool: those with a frame have changed hands.",
        [Control("step", "step", numbers, [f"{i} of {len(steps)}: {steps[i - 1].name}" for i in numbers])],
        lambda number: frame_of(steps[number - 1], number),
        height=1010,
        still=(6,),
        runs=1,
    )


def frame_of(step: TreeStep, number: int) -> Frame:
    """The two trees, and the pool after the step with the slots that changed hands."""
    marks_before: dict[int, str] = {}
    marks_after: dict[int, str] = {}
    origin = {node: node for node in step.after.nodes if node in step.before.nodes}
    for what, node, *rest in step.operations:
        if what == "split":
            origin[rest[0]] = origin[node]
            marks_after |= {node: "split", rest[0]: "split"}
        elif what == "remove":
            marks_before[node] = "evicted"
        else:
            marks_after[node] = "new"
    for number_, after in step.after.nodes.items():
        before = step.before.nodes.get(number_)
        if before is not None and number_ and number_ not in marks_after:
            changed = (after.lock_ref > 0) - (before.lock_ref > 0)
            marks_after[number_] = {1: "locked", -1: "unlocked", 0: ""}[changed]
    old, new = slot_looks(step.before), slot_looks(step.after)
    marks = {
        slot: "evicted" if new[slot] == "free" else "written" if old[slot] == "free" else "read"
        for slot in range(SLOTS)
        if old[slot] != new[slot]
    }
    return Frame(
        [
            Tree(
                f"Step {number}: {step.name}",
                tree_root(step.after, step.texts, marks_after, lambda node: str(origin.get(node, ""))),
                tree_root(step.before, step.texts, marks_before),
            ),
            Cells(f"The pool after step {number}", pool_rows(new, marks), LEGEND, note=moved(old, new)),
        ],
        step.said,
    )


def moved(old: Sequence[str], new: Sequence[str]) -> str:
    """Which slots changed hands."""
    names = {"free": "free", "tree": "unlocked", "locked": "locked"}
    found: dict[tuple[str, str], list[int]] = {}
    for slot, (was, now) in enumerate(zip(old, new, strict=True)):
        if was != now:
            found.setdefault((was, now), []).append(slot)
    said = [f"{slots(which).replace('-', '–')}: {names[was]} → {names[now]}" for (was, now), which in found.items()]
    return f"Changed: {'; '.join(said)}." if said else "No slot changes hands."

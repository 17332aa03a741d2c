"""double_free: a slot is freed twice, with three ways to keep free slots. The bookkeeping is that of notebook 01."""

from itertools import product

from nanoinfer.llm import LLM
from notebooks.course.explore import Cell, CellRow, Cells, Control, Frame, InteractiveFigure, padded

SLOTS = [21, 22, 23, 24]
TEXTS = [[".", "She", "lived", "in"], ["bear", "named", "Max", "."], ["frog", "named", "Fred", "."]]
KINDS = ["a list", "a set", "a list, and each slot has an owner"]
ORDERS = {
    "right away": ("cancel", "again", "take 1", "take 2"),
    "after request 1 has started": ("cancel", "take 1", "again", "take 2"),
}
LEGEND = [("r0", "request 0, which is cancelled"), ("r1", "request 1, BEAR"), ("r2", "request 2, FROG")]
STEPS = 6


class Slots:
    """Four slots, who has them, and what was written into them last."""

    def __init__(self, kind: int):
        self.kind, self.free = kind, list[int]()
        self.holds, self.owner = {0: SLOTS}, dict.fromkeys(SLOTS, 0)
        self.written = [Cell("r0", text) for text in TEXTS[0]]

    def do(self, event: str) -> str:
        """Make one event happen, and say what it did."""
        if event == "read":
            texts = " ".join(cell.text for cell in self.written)
            wrong = [cell.text for cell in self.written] != TEXTS[1]
            return f"Request 1 reads “{texts}”" + (", which request 2 wrote." if wrong else ", its own tokens.")
        if event.startswith("take"):
            request = int(event[-1])
            if len(self.free) < len(SLOTS):
                return f"Request {request} finds no free slots, and waits. That is right: all four are in use."
            self.holds[request] = [self.free.pop(0) for _ in SLOTS]
            self.owner |= dict.fromkeys(self.holds[request], request)
            self.written = [Cell(f"r{request}", text) for text in TEXTS[request]]
            both = " They are request 1's, too: it has just lost its K/V." * (len(self.holds) == 2 and request == 2)
            return f"Request {request} takes four slots and writes its tokens.{both}"
        self.holds = {request: slots for request, slots in self.holds.items() if request}
        freed = [slot for slot in SLOTS if self.kind == 0 or slot not in self.free]
        freed = [slot for slot in freed if self.kind < 2 or self.owner[slot] == 0]
        twice = any(slot in self.free for slot in freed)
        self.free += freed
        self.owner |= dict.fromkeys(freed, -1)
        if event == "cancel":
            return "The reader of request 0 leaves: four slots are freed."
        said = "A time limit cancels request 0 once more: "
        if not freed:
            why = "its slots have another owner, so none is freed." if 1 in self.holds else "they are free already."
            return said + why
        return said + ("the same four slots are in the list twice." if twice else "request 1's four slots are freed.")

    def frame(self, sentence: str) -> Frame:
        """The slots as they are."""
        rows = [CellRow("K/V in slots 21–24", self.written)]
        for request, slots in self.holds.items():
            rows.append(CellRow(f"slots of request {request}", [Cell(f"r{request}", str(slot)) for slot in slots]))
        rows.append(CellRow("free", padded([Cell("free", str(slot)) for slot in self.free], 8)))
        return Frame([Cells("Four slots, and who counts on them", rows, LEGEND)], sentence)


def double_free(_: LLM | None = None) -> InteractiveFigure:
    """Kind of free list, when the second `cancel` comes, and step → who has which slots, and what is in them."""
    frames = {}
    for (order, events), kind in product(ORDERS.items(), range(len(KINDS))):
        slots = Slots(kind)
        frames[order, kind, 1] = slots.frame("Request 0 is running. It has slots 21 to 24, and no slot is free.")
        for step, event in enumerate([*events, "read"], 2):
            frames[order, kind, step] = slots.frame(slots.do(event))
    return InteractiveFigure(
        "What does a double free do?",
        "Request 0 is cancelled twice. Step through it, then try a set, and let the second cancel come later: which "
        "mistake can each of the three notice?",
        [
            Control("order", "the second cancel comes", list(ORDERS)),
            Control("kind", "free slots are kept in", range(3), KINDS, slider=False),
            Control("step", "step", list(range(1, STEPS + 1))),
        ],
        lambda *chosen: frames[chosen],
        still=(0, 0, 4),
        height=520,
        source="Computed for each setting, with the bookkeeping of notebook 01.",
    )

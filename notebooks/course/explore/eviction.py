"""Which cached tokens should go first? Eviction policies on a prompt that comes again and again between others."""

from nanoinfer.llm import LLM
from nanoinfer.viz.words import count, percent
from notebooks.course.explore import Bar, Bars, Control, Frame, InteractiveFigure, Number, Numbers, Tree
from notebooks.course.explore.runs import Arrival, Run, moments, serve, tree_root
from notebooks.course.prompts import FOX

POLICIES = {
    "lru": "least recently used (lru)",
    "lfu": "least frequently used (lfu)",
    "fifo": "first in, first out (fifo)",
}
RULES = {
    "lru": "lru evicts what hasn't been used for the longest time",
    "lfu": "lfu evicts what has been used least often",
    "fifo": "fifo evicts what has been in the tree for the longest time, however often it is used",
}
SIZES = (28, 36, 48, 96)
ONCE = (
    "Max the bear had a red ball.",
    "A cat sat on the mat.",
    "Tom likes big trucks.",
    "The sun was hot today.",
    "Anna baked a cake.",
    "One day it rained a lot.",
    "Two birds sang in a tree.",
    "Sam lost his blue hat.",
    "My dog can jump high.",
)
NOTE = (
    "Every prompt begins with <s>, which is nearly always found. The last token of a prompt is never looked up: it is "
    "computed in any case, because the next token follows from it."
)
# The fox's prompt, and how many others come before it comes again.
PROMPTS = (FOX, ONCE[0], FOX, ONCE[1], FOX, *ONCE[2:5], FOX, *ONCE[5:9], FOX)


def record_eviction(llm: LLM) -> dict[tuple[str, int], Run]:
    """The same prompts, one after another, with each policy and each size of the pool."""
    arrivals = [Arrival(10**9, prompt, 1) for prompt in PROMPTS]  # each as soon as the one before it has ended
    return {(policy, size): serve(llm, arrivals, size, eviction_policy=policy) for policy in POLICIES for size in SIZES}


def eviction(llm: LLM) -> InteractiveFigure:
    """Policy and pool size → the tokens that each prompt finds in the tree, and what the tree holds at the end."""
    runs = record_eviction(llm)

    def show(policy: str, size: int) -> Frame:
        run = runs[policy, size]
        state = run.trace.state()
        hits = [req.cached_tokens for req in state.requests.values()]
        lengths = [len(request.prompt) for request in run.trace.requests]
        each = zip(PROMPTS, hits, lengths, strict=True)
        bars = [Bar(name(p), hit, f"{hit} of {length}", before=length, look="tree") for p, hit, length in each]
        share = f"{sum(hits)} of {sum(lengths)} ({percent(sum(hits), sum(lengths))})"
        evicted = sum(moment.evicted for moment in moments(run))
        numbers = [Number("prompt tokens found", share, strong=True), Number("cached tokens evicted", str(evicted))]
        title = f"The tree at the end: {count(len(state.tree_slots()), 'token')} in a pool of {size} slots"
        panels = [
            Numbers("The whole run", numbers),
            Bars("Tokens of each prompt that were in the tree when it came", bars, max(lengths), NOTE),
            Tree(title, tree_root(state, run.trace.texts)),
        ]
        return Frame(panels, sentence(policy, size, hits, evicted))

    return InteractiveFigure(
        "Which cached tokens should be evicted first?",
        "The fox's prompt comes five times; between its visits come one, one, three and four prompts that are never asked "
        "again. Look at the fox's bars: a long one means that its tokens were still in the tree.",
        [
            Control("policy", "eviction policy", list(POLICIES), list(POLICIES.values())),
            Control("slots", "slots in the pool", list(SIZES), start=1),
        ],
        show,
        height=1540,
    )


def name(prompt: str) -> str:
    """The words of a prompt that tell it from the others."""
    return "the fox" if prompt == FOX else " ".join(prompt.rstrip(".").split()[:3]) + " …"


def sentence(policy: str, size: int, hits: list[int], evicted: int) -> str:
    """What there is to see."""
    visits = [hit for prompt, hit in zip(PROMPTS, hits, strict=True) if prompt == FOX][1:]
    whole = sum(hit == max(visits) and hit > 1 for hit in visits)
    if not evicted:
        return f"With {size} slots nothing is ever evicted, so the policy makes no difference."
    gone = [word for word, hit in zip(("second", "third", "fourth", "fifth"), visits, strict=True) if hit < max(visits)]
    said = f"{RULES[policy]}. The fox's tokens are found on {whole} of its 4 later visits"
    if not gone:
        return f"{said}: they stay in the tree, whatever comes between."
    names = " and ".join(filter(None, (", ".join(gone[:-1]), gone[-1])))
    return f"{said}. On its {names} visit they have been evicted for the prompts that came between."

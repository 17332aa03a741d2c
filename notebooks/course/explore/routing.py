"""routing: the same chats and a burst, sent to three replicas by several rules, with late news, and with a death."""

from collections.abc import Callable
from typing import Any

from nanoinfer.cluster import PrefixHash, PrefixRouter, RoundRobin
from nanoinfer.llm import LLM
from nanoinfer.model.random_model import random_model
from notebooks.course import replicas
from notebooks.course.explore import Bars, Control, Flag, Frame, InteractiveFigure, Lane, Lanes, Span, bars_of

# A policy, and why it does as it does.
POLICIES: dict[str, tuple[Callable[[], Any], str]] = {
    "round robin": (RoundRobin, "Every replica is asked for all stories and has room for three of them."),
    "prefix hash": (lambda: PrefixHash(32), "A story has its replica, however long the queue is there."),
    "longest match": (
        lambda: replicas.Informed(replicas.longest_match),
        "It knows only what events have told it: in the burst, too little.",
    ),
    "prefix router": (
        lambda: lambda clock: PrefixRouter(replicas.COSTS, max_running_requests=4, max_imbalance_s=0.3, clock=clock),
        "It weighs waiting against computing, and remembers what it has just sent where.",
    ),
}
ON_EVENTS = ("longest match", "prefix router")  # the others don't listen
DELAYS = (0, 1)  # seconds until the router hears of a change
BURST_AT, DIES_AT = 4.0, 2.0
# What routers do depends on which prompts are equal, not on the answers' words: a tiny model gives the same counts.
TINY: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1}
COLUMN = 0.5  # seconds
PHASES = (("extend", "computes prompts (how many tokens)"), ("decode", "decodes only"))


def record_routing(llm: LLM) -> dict[tuple[str, float, bool], replicas.ClusterRun]:
    """The same traffic under each policy, with each delay (where events count), with and without the death of A."""
    assert llm.tokenizer is not None
    encode = llm.tokenizer.encode
    traffic = replicas.story_chats(encode, seed=1) + replicas.story_burst(encode, BURST_AT)
    model = random_model(**TINY)
    return {
        (name, delay, dies): replicas.serve_chats(
            traffic,
            make(),
            report_seconds=delay,
            dies=("A", DIES_AT) if dies else None,
            model=model,
            max_total_tokens=1000,
        )
        for name, (make, _) in POLICIES.items()
        for delay in (DELAYS if name in ON_EVENTS else DELAYS[:1])
        for dies in (False, True)
    }


def routing(llm: LLM) -> InteractiveFigure:
    """Policy, delay of events, death of A → what each replica computes when, and how the policies compare."""
    runs = record_routing(llm)
    last = 1 + int(max(each.end_at for run in runs.values() for each in run.served))
    most = max(run.computed for run in runs.values())
    slowest = max(run.mean_ttft for run in runs.values())
    widths, scale = [COLUMN] * round(last / COLUMN), ("0 s", f"{last} s")

    def show(name: str, delay: float, death: str) -> Frame:
        dies = death == "dies"
        beside = {each: runs[each, delay if each in ON_EVENTS else 0, dies] for each in POLICIES}
        run = beside[name]
        computed = {each: (run.computed, f"{run.computed:,}") for each, run in beside.items()}
        waited = {each: (run.mean_ttft, f"{run.mean_ttft:.2f} s") for each, run in beside.items()}
        flags = [Flag(int(BURST_AT / COLUMN), f"{BURST_AT:.0f} s: 18 requests for three new stories")]
        flags += [Flag(int(DIES_AT / COLUMN), f"{DIES_AT:.0f} s: A dies")] * dies
        lanes = [Lane(each, spans_of(passes)) for each, passes in run.passes.items()]
        title = "What each replica does in every half second"
        panels = [
            Lanes(title, len(widths), lanes, legend=PHASES, flags=flags, widths=widths, scale=scale),
            Bars("Prompt tokens computed", bars_of(computed, name), most),
            Bars("Mean time to the first token", bars_of(waited, name), slowest),
        ]
        said = (
            f"{POLICIES[name][1]} {run.hit_rate:.0%} of all prompt tokens are found; the first token comes after "
            f"{run.mean_ttft:.2f} s on average, and after {run.ttfts()[-1]:.2f} s at worst."
        )
        return Frame(panels, said)

    return InteractiveFigure(
        "Where should this request go?",
        "24 chats about six stories, and a burst of 18 requests for three new ones. Each of the three replicas has room "
        "for three stories. Under every rule, the same requests come and get the same answers.",
        [
            Control("policy", "policy", list(POLICIES)),
            Control("delay", "news takes", list(DELAYS), [f"{each} s" for each in DELAYS]),
            Control("death", "replica A", ["lives", "dies"]),
        ],
        show,
        height=860,
        runs=len(runs),
    )


def spans_of(passes: list[replicas.ReplicaPass]) -> list[Span]:
    """A span per column in which something was computed; its text: how many prompt tokens."""
    computed = dict[int, int]()
    for each in passes:
        column = int(each.start / COLUMN)
        computed[column] = computed.get(column, 0) + each.computed
    return [
        Span(column, column + 1, "extend" if tokens >= 16 else "decode", str(tokens) if tokens >= 16 else "")
        for column, tokens in computed.items()
    ]

"""How many requests per second can one GPU serve well? Simulated: the engine's scheduler, and the published speed of an 8B
model on an H100. Requests have the lengths and bursts of the Azure conversation trace."""

from collections.abc import Sequence
from typing import Any

from nanoinfer.cluster.costs import kv_slots, published_costs
from nanoinfer.cluster.simulate.cluster import ClusterSettings, Simulation
from nanoinfer.cluster.simulate.traces import make_trace
from nanoinfer.config import EngineConfig
from nanoinfer.llm import LLM
from nanoinfer.scheduler.batch import Batch
from notebooks.course.explore import Bar, Bars, Control, Frame, InteractiveFigure, Number, Numbers, bars_of
from notebooks.course.workloads import Figures, Limits, Timed

RATES = (8, 16, 24, 32, 40, 48)  # requests per second
CHUNKS = (None, 2048, 512, 256)
REQUESTS = 200
DEVICE = "h100-llama-8b"
LIMITS = Limits(ttft=1.0, gap=0.05)
MOST_TTFT, MOST_GAP = 4.0, 0.5  # seconds: longer bars are cut


def simulated(rate: float, chunk: int | None) -> list[Timed]:
    """When the tokens of REQUESTS requests come."""
    config = EngineConfig(
        max_running_requests=256,
        max_total_tokens=kv_slots(DEVICE) // 16 * 16,
        max_context_len=9000,
        page_size=16,
        schedule_policy="fcfs",
        chunked_prefill_size=chunk,
    )
    simulation = Simulation(ClusterSettings(1, "round-robin", published_costs(DEVICE), config))
    times: dict[int, list[float]] = {}
    scheduler = simulation.replicas["replica-0"].scheduler
    process = scheduler.process_batch_result

    def noting(batch: Batch, tokens: Sequence[int], logprobs: Sequence[Any]) -> None:
        for req in batch.sampled_reqs:
            times.setdefault(req.request_id, []).append(simulation.clock.now)
        process(batch, tokens, logprobs)

    scheduler.process_batch_result = noting  # type: ignore[method-assign, assignment]
    outcome = simulation.run(make_trace("azure-conversation-2024", rate), REQUESTS / rate, finish=True)
    return [Timed(each.sent, times[each.id]) for each in outcome.measured]


def record_load() -> dict[tuple[int, int | None], Figures]:
    return {(rate, chunk): Figures.of(simulated(rate, chunk), LIMITS) for rate in RATES for chunk in CHUNKS}


def load(llm: LLM | None = None) -> InteractiveFigure:
    """Requests per second and chunk size → goodput at every rate, and the percentiles that readers notice. The model of
    `llm` plays no part."""
    runs = record_load()

    def bars(title: str, key: str, most: float, rate: int, chunk: int | None) -> Bars:
        found = {name_of(each): getattr(runs[rate, each], key) for each in CHUNKS}
        drawn = {name: (min(value, most), f"{1e3 * value:,.0f} ms") for name, value in found.items()}
        return Bars(title, bars_of(drawn, name_of(chunk)), most)

    def goodputs(rate: int, chunk: int | None) -> Bars:
        found = {each: each * runs[each, chunk].good for each in RATES}
        drawn = [
            Bar(f"{each} arrive", good, f"{good:.1f} good", before=each, look="highlight" if each == rate else "in-use")
            for each, good in found.items()
        ]
        return Bars(f"Goodput: good requests per second, with {name_of(chunk)}", drawn, RATES[-1])

    def show(rate: int, chunk: int | None) -> Frame:
        panels = [
            goodputs(rate, chunk),
            bars(f"Time to first token at {rate} per second, p99", "ttft_p99", MOST_TTFT, rate, chunk),
            bars(f"Gap between two tokens at {rate} per second, p99", "gap_p99", MOST_GAP, rate, chunk),
            Numbers("This run", numbers(rate, runs[rate, chunk])),
        ]
        return Frame(panels, sentence(rate, chunk, runs[rate, chunk]))

    return InteractiveFigure(
        "How many requests per second can one GPU serve well?",
        "One H100 with an 8B model: the engine's own scheduler, passes as long as published speeds say, lengths and bursts "
        f"as in a real service. A request is good if its first token comes within {LIMITS.ttft:g} s and no later gap is "
        f"longer than {1e3 * LIMITS.gap:.0f} ms. Drag the arrivals until goodput falls, then change the chunks.",
        [
            Control("rate", "requests per second", list(RATES), start=2),
            Control("chunk", "chunked_prefill_size", CHUNKS, [*map(name_of, CHUNKS)], start=2),
        ],
        show,
        height=860,
    )


def name_of(chunk: int | None) -> str:
    return "whole prompts" if chunk is None else f"chunks of {chunk:,}"


def numbers(rate: int, figures: Figures) -> list[Number]:
    return [
        Number("good requests per second", f"{rate * figures.good:.1f}", strong=True),
        Number("output tokens per second", f"{figures.throughput:,.0f}"),
        Number("time to first token, p50", f"{1e3 * figures.ttft_p50:,.0f} ms"),
        Number("gap between two tokens, p50", f"{1e3 * figures.gap_p50:,.1f} ms"),
    ]


def sentence(rate: int, chunk: int | None, figures: Figures) -> str:
    """What there is to see."""
    late, stalls = figures.ttft_p99 > LIMITS.ttft, figures.gap_p99 > LIMITS.gap
    said = {
        (False, False): "both percentiles are within their limits.",
        (True, False): "texts flow, but first tokens come too late: requests wait in the queue.",
        (False, True): "first tokens are in time, but texts stop while prompts of others are computed.",
        (True, True): "both percentiles are beyond their limits.",
    }[late, stalls]
    return f"{rate} requests per second and {name_of(chunk)}: {rate * figures.good:.1f} of them are good; {said}"

"""The example trace: a few requests with shared beginnings, in a pool so small that everything happens at least once."""

from typing import Any

from nanoinfer.frontends.llm import LLM
from nanoinfer.requests.sampling_params import SamplingParams
from nanoinfer.trace.recorder import record
from nanoinfer.trace.trace import Trace

OPENING = "Once upon a time, there was a little fox named Ruby. She lived in a small house near the river."
# Each: the number of steps after which the prompt arrives, the prompt, and how many tokens may be generated.
ARRIVALS = (
    (0, OPENING + " One day,", 24),
    (0, OPENING + " Every morning, she", 20),
    (3, "Max was a clever donkey who lived in a barn. He had a big secret: he could not swim. One day, Max met a small "
        "girl named Lily. She had lost", 20),
    (7, OPENING + " One day, she found a map.", 22),
    (10, "Long ago, a shy dragon lived in a cave in the mountains. He was afraid of the dark, and he told nobody.", 14),
    (24, OPENING + " One day,", 8),
)  # fmt: skip
ABORT = (28, 4)  # after 28 steps request 4 is aborted
SETTINGS: dict[str, Any] = {  # of the LLM: so tight that there are chunks, evictions and retractions
    "max_total_tokens": 128,
    "max_running_requests": 4,
    "chunked_prefill_size": 24,
    "schedule_conservativeness": 0.1,
}


def run_example(llm: LLM) -> Trace:
    """Serve the arrivals on `llm`, made with SETTINGS, and return the trace. ValueError if it has no tokenizer."""
    if llm.tokenizer is None:
        raise ValueError("trace: this model has no tokenizer files, but the example's prompts are text")
    engine, arrivals = llm.engine, list(ARRIVALS)
    ids: list[int] = []
    with record(engine) as trace:
        while arrivals or engine.has_unfinished():
            while arrivals and arrivals[0][0] <= len(trace):
                _, prompt, limit = arrivals.pop(0)
                ids.append(engine.add_request(prompt, SamplingParams(max_new_tokens=limit, temperature=0)))
            if len(trace) == ABORT[0] and ABORT[1] < len(ids):
                engine.abort(ids[ABORT[1]])
            engine.step()
    return trace

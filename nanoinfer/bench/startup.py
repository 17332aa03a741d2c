"""How long it takes from starting Python to the first token, with empty caches of compiled code and with full ones."""

import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from nanoinfer.bench.engines import EngineSpec
from nanoinfer.bench.machine import Checkpoint
from nanoinfer.bench.metrics import by_round
from nanoinfer.bench.report import failures, heading, model_title
from nanoinfer.bench.results import Keep, Results, new_results
from nanoinfer.bench.session import Settings, measure_rounds
from nanoinfer.bench.tables import number_cell, ratio_cell, table
from nanoinfer.bench.workloads import Job, Request

COLD, WARM = "cold", "warm"
# Where engines keep what they have compiled. Cold: an empty folder each time. Warm: the folder that an earlier run filled.
CACHES = ("NANOINFER_CACHE", "VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
FIRST = Job([Request([300, 301], 1)], [])
LEGEND = (
    "Seconds since Python was started, medians over rounds. Cold: nothing is compiled; warm: after an earlier start."
)


def measure_startup(path: Path, settings: Settings, keep: Keep = lambda results: None) -> Results:
    """Start every engine in each condition and round, after one start that fills its cache and is not counted."""
    checkpoint = Checkpoint.read(path)
    results = new_results("startup", settings.as_dict(), model=checkpoint.as_dict(), runs=[])
    with tempfile.TemporaryDirectory() as full:

        def one_run(number: int, condition: str, spec: EngineSpec) -> dict[str, Any]:
            with tempfile.TemporaryDirectory() as empty:
                folder = f"{full}/{spec.name.replace('/', '-')}" if condition == WARM else empty
                env = {name: f"{folder}/{name}" for name in CACHES}
                began = time.perf_counter()
                chosen = spec.with_options(tokenizer=True) if spec.is_ours else spec
                with chosen.start(checkpoint.path, checkpoint.dtype, settings.threads, settings.timeout, env) as worker:
                    loaded = time.perf_counter() - began
                    worker.ask(FIRST.as_message())
                    return {"loaded_s": loaded, "first_token_s": time.perf_counter() - began}

        filling = {**results, "runs": []}
        measure_rounds(filling, [WARM], replace(settings, rounds=1), one_run)
        measure_rounds(results, [COLD, WARM], settings, one_run, keep)
    return results


def format_startup(results: Mapping[str, Any]) -> str:
    """One row per condition and engine, and how many times nanoinfer's time it is."""
    rows = []
    names = results["settings"]["engines"]
    for condition in (COLD, WARM):
        first = by_round(results, condition, names[0], "first_token_s")
        for name in names:
            loaded, token = (by_round(results, condition, name, key) for key in ("loaded_s", "first_token_s"))
            cells = [number_cell(median(each.values())) if each else "failed" for each in (loaded, token)]
            ratio = ratio_cell([token[number] / first[number] for number in token if number in first])
            rows.append([condition, name, *cells, "" if name == names[0] else ratio])
    head = ["caches", "engine", "loaded, s", "first token, s", f"time / {names[0]}'s"]
    parts = [heading(results), model_title(results["model"]), table(head, rows), "\n".join(failures(results)), LEGEND]
    return "\n\n".join(part for part in parts if part)

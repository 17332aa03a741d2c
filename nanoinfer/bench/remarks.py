"""What the tables of a session do not show: how close engines come to the machine's limits, differing tokens, failures."""

from collections.abc import Mapping
from statistics import mean, median
from typing import Any

from nanoinfer.bench.metrics import runs_of

Results = Mapping[str, Any]


def remarks(model: Results) -> str:
    """Shares of the memory's speed, whether nanoinfer's settings agree, failures, disturbances."""
    lines = [*_share_of_bandwidth(model)]
    lines += [_agreement(model, engine["name"]) for engine in model["engines"] if _is_compared(model, engine)]
    for engine in model["engines"]:
        messages = {run["error"] for run in model["runs"] if run["engine"] == engine["name"] and "error" in run}
        if "error" in engine:
            lines.append(f"- FAILED: {engine['name']} while loading: {_one_line(engine['error'])}")
            continue
        for message in sorted(messages):
            where = [
                f"{run['workload']} (round {run['round'] + 1})"
                for run in model["runs"]
                if run["engine"] == engine["name"] and run.get("error") == message
            ]
            lines.append(f"- FAILED: {engine['name']} in {', '.join(where)}: {_one_line(message)}")
    quiet = [run for run in model["runs"] if not run.get("busy")]
    disturbed = [run for run in quiet if run.get("cores_elsewhere", 0) > 0.15]
    if disturbed:
        lines.append(f"- {len(disturbed)} of {len(quiet)} runs shared the machine with other work (>0.15 cores).")
    return "\n".join(lines)


def _on_cpu(model: Results) -> list[Results]:
    """The engines that computed on the processor whose bandwidth was measured."""
    return [engine for engine in model["engines"] if engine.get("options", {}).get("device", "cpu") == "cpu"]


def _share_of_bandwidth(model: Results) -> list[str]:
    """Weight bytes read per second in `single`, as a share of the memory's bandwidth, which limits a single stream."""
    shares, bandwidths = [], []
    for engine in _on_cpu(model):
        runs = [run for run in runs_of(model, "single", engine["name"]) if run.get("ms_per_token")]
        if runs:
            size = engine.get("decode_bytes", model["decode_bytes"])
            read = [size / run["ms_per_token"] / 1e6 for run in runs]
            available = [mean(run["bandwidth_gb_s"]) for run in runs]
            bandwidths += available
            shares.append(f"{engine['name']} {median(a / b for a, b in zip(read, available, strict=True)):.2f}")
    if not shares:
        return []
    weights = f"{model['decode_bytes'] / 1e9:.3f} GB of weights per token"
    if any(engine.get("weights") for engine in model["engines"]):
        weights += " (quantized: as if all were, at 8 or 4.5 bits)"
    measured = f"{min(bandwidths):.1f}..{max(bandwidths):.1f} GB/s, measured before and after each run"
    return [f"- single: {weights}; read speed as a share of the memory's speed ({measured}): {', '.join(shares)}"]


def _is_compared(model: Results, engine: Results) -> bool:
    """Whether it is another setting of nanoinfer than the first with this kind of weights."""
    same = [each for each in model["engines"] if each["ours"] and each.get("weights") == engine.get("weights")]
    return bool(engine["ours"]) and engine is not same[0]


def _agreement(model: Results, name: str) -> str:
    compared = [run for run in model["runs"] if run["engine"] == name and "same_requests" in run]
    different = [run for run in compared if run["first_difference"]]
    if not compared:
        return f"- {name}: tokens not compared"
    if not different:
        return f"- {name}: tokens equal to nanoinfer's on every workload ({len(compared)} runs)"
    run = different[0]
    request, position = run["first_difference"]
    return (
        f"- {name}: TOKENS DIFFER from nanoinfer's in {len(different)} of {len(compared)} runs, first in "
        f"{run['workload']}, round {run['round'] + 1}, request {request}, output token {position}"
    )


def _one_line(text: str) -> str:
    return " | ".join(text.splitlines())

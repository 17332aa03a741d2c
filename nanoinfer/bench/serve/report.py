"""The table of `bench serve`."""

from collections.abc import Mapping
from statistics import median
from typing import Any

from nanoinfer.bench.metrics import by_round, runs_of
from nanoinfer.bench.report import cell, failures, heading, model_title
from nanoinfer.bench.tables import number_cell, ratio_cell, table

LEGEND = """\
Figures are medians over rounds. In each round, all servers have the same load and prompts, one after another in
shuffled order, while the others are stopped. Closed loop: so many clients, each of which asks again when it has its
answer. Open loop: requests arrive at random at a fixed rate, a share of the most that nanoinfer served in a closed loop.
TTFT: from the time at which a request was due to its first piece of text. Gap: between two pieces of text, which are
tokens, mostly. Goodput: requests per second that were within the limits. ×: how many times as many tokens per second
nanoinfer makes as this server, by rounds (lowest..highest). 429, errors, too late: requests of all rounds that were
refused, went wrong, or had no answer within twice the time of the measurement; ≥: the percentile is one of the last.
Client: the share of a core that the clients take."""
HEAD = (
    *("load", "server", "tok/s", "×", "req/s", "TTFT p50 ms", "p99 ms", "gap p50 ms", "p99 ms"),
    *("goodput /s", "429", "errors", "too late", "client"),
)
Results = Mapping[str, Any]


def format_serve(results: Results) -> str:
    """The machine, a row for each load and server, and what failed."""
    settings = results["settings"]
    lengths, limits = settings["lengths"], settings["goodput"]
    about = (
        f"Conversations of three turns: a system prompt of about {lengths['system']} tokens, questions of "
        f"{lengths['question']}, answers of {lengths['answer']} in between; {lengths['new_tokens']} tokens asked for, for "
        f"{settings['seconds']:g} s. Goodput: TTFT up to {limits['ttft_ms']:g} ms, then {limits['tpot_ms']:g} ms per token."
    )
    found = [run for run in results["runs"] if run.get("cached_tokens") is not None]
    if found:
        prompt, cached = (median(run[key] for run in found) for key in ("prompt_tokens", "cached_tokens"))
        about += f" A prompt has {prompt:.0f} tokens, of which {cached:.0f} were cached."
    loads = [("closed", level) for level in settings["clients"]] + [("open", level) for level in settings["shares"]]
    rows = [row(results, kind, level, name) for kind, level in loads for name in settings["engines"]]
    wrong = [run for run in results["runs"] if run.get("errors")]
    errors = [f"- errors: {run['engine']}, {run['workload']}: {run['first_error']}" for run in wrong]
    lines = "\n".join([*failures(results), *dict.fromkeys(errors)])
    parts = [heading(results), model_title(results["model"]), about, table(HEAD, rows), lines, LEGEND]
    return "\n\n".join(part for part in parts if part)


def row(results: Results, kind: str, level: float, server: str) -> list[str]:
    """A server's figures under a load."""
    load, title = f"{kind} {level:g}", f"{level:g} client{'s'[: level > 1]}"
    if kind == "open":
        title = f"{level:.0%}: {level * (results['capacity'] or 0):.1f}/s"
    good = [run for run in runs_of(results, load, server) if "error" not in run]
    if not good:
        return [title, server, cell(results, load, server, "tokens_s"), *[""] * (len(HEAD) - 3)]

    def time(key: str, part: str) -> str:
        found = [run[key] for run in good if run[key] is not None]
        bound = any(part in each.get("at_least", ()) for each in found)
        return "≥ " * bound + number_cell(median(each[part] for each in found)) if found else ""

    first = results["settings"]["engines"][0]
    ours, theirs = (by_round(results, load, name, "tokens_s") for name in (first, server))
    ratios = [ours[number] / theirs[number] for number in ours if theirs.get(number)]
    totals = [sum(run[key] for run in good) for key in ("refused", "errors", "unfinished")]
    return [
        *(title, server, cell(results, load, server, "tokens_s"), "" if server == first else ratio_cell(ratios)),
        cell(results, load, server, "requests_s"),
        *(time(key, part) for key in ("ttft_ms", "gap_ms") for part in ("p50", "p99")),
        cell(results, load, server, "goodput"),
        *(str(total) if total else "" for total in totals),
        f"{median(run['client_share'] for run in good):.0%}",
    ]

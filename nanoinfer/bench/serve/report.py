"""The table of `bench serve`."""

from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

from nanoinfer.bench.report import heading, model_title
from nanoinfer.bench.serve.servers import NULL
from nanoinfer.bench.tables import number_cell, ratio_cell, table

LEGEND = f"""\
Figures are medians over rounds. In each round, all servers have the same load and prompts, one after another in
shuffled order, while the others are stopped. Closed loop: so many clients, each of which asks again when it has its
answer. Open loop: requests arrive at random at a fixed rate, a share of the most that nanoinfer served in a closed loop.
TTFT: from the time at which a request was due to its first piece of text. Gap: between two pieces of text, which are
tokens, mostly. Goodput: requests per second that were within the limits. ×: how many times as many tokens per second
nanoinfer makes as this server, by rounds (lowest..highest). 429, errors, too late: requests of all rounds that were
refused, went wrong, or had no answer within twice the time of the measurement; ≥: the percentile is one of the last.
Client: the share of a core that the clients take. `{NULL}` answers at once, without a model: its row is what clients and
connections cost."""
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
        f"{settings['seconds']:g} s. Goodput: TTFT up to {limits['ttft_ms']:g} ms, then "
        f"{limits['tpot_ms']:g} ms per token. {_prompts(results)}"
    )
    loads = [("closed", level) for level in settings["clients"]] + [("open", level) for level in settings["shares"]]
    rows = [row(results, kind, level, name) for kind, level in loads for name in settings["servers"]]
    parts = [heading(results), model_title(results["model"]), about, table(HEAD, rows), _failures(results), LEGEND]
    return "\n\n".join(part for part in parts if part)


def row(results: Results, kind: str, level: float, server: str) -> list[str]:
    """A server's figures under a load."""
    title = f"{level:g} client{'s'[: level > 1]}"
    if kind == "open":
        title = f"{level:.0%}: {level * (results['capacity'] or 0):.1f}/s"
    runs = [run for run in results["runs"] if run["load"] == f"{kind} {level:g}"]
    mine = [run for run in runs if run["server"] == server]
    good = [run for run in mine if "error" not in run]
    if not good:
        return [title, server, "failed" if mine else "–", *[""] * (len(HEAD) - 3)]

    def middle(figure: Callable[[Mapping[str, Any]], float]) -> str:
        return number_cell(median(map(figure, good)))

    def time(key: str, part: str) -> str:
        found = [run[key] for run in good if run[key] is not None]
        bound = any(part in each.get("at_least", ()) for each in found)
        return "≥ " * bound + number_cell(median(each[part] for each in found)) if found else ""

    ours = {
        run["round"]: run["tokens_s"]
        for run in runs
        if run["server"] == results["settings"]["servers"][0] and run.get("tokens_s")
    }
    ratios = [ours[run["round"]] / run["tokens_s"] for run in good if run["round"] in ours and run["tokens_s"]]
    failed = f" ({len(good)} of {len(mine)} rounds)" if len(good) < len(mine) else ""
    totals = [sum(run[key] for run in good) for key in ("refused", "errors", "unfinished")]
    return [
        title,
        server + failed,
        middle(lambda run: run["tokens_s"]),
        "" if server in (results["settings"]["servers"][0], NULL) else ratio_cell(ratios),
        middle(lambda run: run["requests_s"]),
        *(time(key, part) for key in ("ttft_ms", "gap_ms") for part in ("p50", "p99")),
        middle(lambda run: run["goodput"]),
        *(str(total) if total else "" for total in totals),
        f"{median(run['client_share'] for run in good):.0%}",
    ]


def _prompts(results: Results) -> str:
    """How long the prompts were, and how much of them was cached, as nanoinfer counts it."""
    ours = results["settings"]["servers"][0]
    found = [run for run in results["runs"] if run["server"] == ours and run.get("cached_tokens") is not None]
    if not found:
        return ""
    prompt, cached = (median(run[key] for run in found) for key in ("prompt_tokens", "cached_tokens"))
    return f"A prompt has {prompt:.0f} tokens, of which {ours} had {cached:.0f} cached."


def _failures(results: Results) -> str:
    """A line per kind of failure of a server."""
    lines = [f"- FAILED: {name}: {_line(why)}" for name, why in results["failures"].items()]
    for run in results["runs"]:
        problem = run.get("error") or run.get("first_error")
        if problem and problem != "did not start":
            kind = "FAILED" if "error" in run else "errors"
            lines.append(f"- {kind}: {run['server']}, {run['load']}: {_line(problem)}")
    return "\n".join(dict.fromkeys(lines))


def _line(text: str) -> str:
    return " | ".join(text.splitlines())

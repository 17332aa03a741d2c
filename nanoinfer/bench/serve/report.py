"""The tables of `bench serve`."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from nanoinfer.bench.markdown import table
from nanoinfer.bench.report import number_cell, ratio_cell
from nanoinfer.bench.serve.start_commands import NULL

LEGEND = f"""\
Figures are medians over rounds. In each round, all servers have the same load and prompts, one after another in
shuffled order, while the others are stopped. Closed loop: so many clients, each of which asks again when it has its
answer. Open loop: requests arrive at random at a fixed rate, a share of the most that nanoinfer served in a closed loop
of the first round. TTFT: from the time at which a request was due to its first piece of text. Gap: between two pieces
of text, which are tokens, mostly. Goodput: requests per second that were within the limits. tok/s × and TTFT ×: how
many times as good as this server nanoinfer is, by rounds (lowest..highest). 429, errors, too late: requests of all rounds
that were refused, went wrong, or had no answer within twice the time of the measurement; ≥: the percentile is one of
the last. Client: the share of a core that the clients take. `{NULL}` answers at once, without a model: its row is what
clients and connections cost."""
HEAD = (
    *("server", "tok/s", "tok/s ×", "req/s", "TTFT p50 ms", "p99 ms", "TTFT ×", "gap p50 ms", "p99 ms"),
    *("goodput /s", "429", "errors", "too late", "client"),
)
Results = Mapping[str, Any]
Runs = Sequence[Mapping[str, Any]]


def format_serve(results: Results) -> str:
    """The machine, a table for each load, and what failed."""
    machine, model, settings = results["machine"], results["model"], results["settings"]
    lengths = settings["lengths"]
    head = [
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB; {results['threads']} threads per "
        f"server, {results['rounds']} rounds of {settings['seconds']:g} s, {results['date'][:10]}",
        f"Command: `{results['command']}`",
        "Versions: " + ", ".join(f"{name}: {version}" for name, version in results["versions"].items() if name != NULL),
    ]
    parts = ["\n".join(head), f"### {model['name']}: {model['parameters'] / 1e6:.1f} M parameters, {model['dtype']}"]
    parts.append(
        f"Conversations of three turns: a system prompt of about {lengths['system']} tokens, questions of "
        f"{lengths['question']}, answers of {lengths['answer']} in between; {lengths['new_tokens']} tokens asked for. "
        f"{_prompts(results)}"
        f"Goodput: {settings['goodput']}."
    )
    names = settings["servers"]
    for kind, levels in (("closed", settings["clients"]), ("open", settings["shares"])):
        for level in levels:
            rows = [row(results, f"{kind} {level:g}", name) for name in names]
            parts += [_title(results, kind, level), table(HEAD, rows)]
    parts += [_failures(results), LEGEND]
    return "\n\n".join(part for part in parts if part)


def runs_of(results: Results, load: str, server: str) -> Runs:
    """The runs of a server under a load, failed ones included."""
    return [run for run in results["runs"] if run["load"] == load and run["server"] == server]


def over_rounds(results: Results, load: str, server: str, key: str, part: str | None = None) -> float | None:
    """The median over rounds of a figure, or of one of its percentiles."""
    found = [run[key] for run in runs_of(results, load, server) if run.get(key) is not None]
    return median(each if part is None else each[part] for each in found) if found else None


def is_bound(results: Results, load: str, server: str, key: str, part: str) -> bool:
    """Whether a percentile is only a lower bound in some round."""
    return any(part in (run.get(key) or {}).get("at_least", ()) for run in runs_of(results, load, server))


def row(results: Results, load: str, server: str) -> list[str]:
    """A server's figures under a load."""
    runs = runs_of(results, load, server)
    good = [run for run in runs if "error" not in run]
    if not good:
        return [server, "failed" if runs else "–", *[""] * (len(HEAD) - 2)]

    def time(key: str, part: str) -> str:
        return "≥ " * is_bound(results, load, server, key, part) + number_cell(
            over_rounds(results, load, server, key, part)
        )

    def total(key: str) -> str:
        return str(sum(run[key] for run in good)) if sum(run[key] for run in good) else ""

    failed = f" ({len(good)} of {len(runs)} rounds)" if len(good) < len(runs) else ""
    return [
        server + failed,
        number_cell(over_rounds(results, load, server, "tokens_s")),
        _ratios(results, load, server, lambda run: run["tokens_s"], False),
        number_cell(over_rounds(results, load, server, "requests_s")),
        time("ttft_ms", "p50"),
        time("ttft_ms", "p99"),
        _ratios(results, load, server, lambda run: (run["ttft_ms"] or {}).get("p50"), True),
        time("gap_ms", "p50"),
        time("gap_ms", "p99"),
        number_cell(over_rounds(results, load, server, "goodput")),
        total("refused"),
        total("errors"),
        total("unfinished"),
        f"{over_rounds(results, load, server, 'client_share') or 0:.0%}",
    ]


def _ratios(results: Results, load: str, server: str, figure: Any, less_is_better: bool) -> str:
    """How many times as good nanoinfer is, over the rounds that both have."""
    ours = results["settings"]["servers"][0]
    if server in (ours, NULL):
        return ""
    first, second = (
        {run["round"]: figure(run) for run in runs_of(results, load, name) if "error" not in run and figure(run)}
        for name in (ours, server)
    )
    ratios = [first[number] / second[number] for number in first if number in second]
    if not ratios:
        return ""
    at_least = less_is_better and is_bound(results, load, server, "ttft_ms", "p50")
    return "≥ " * at_least + ratio_cell([1 / each if less_is_better else each for each in ratios])


def _title(results: Results, kind: str, level: float) -> str:
    if kind == "closed":
        return f"Closed loop, {level:g} client{'s'[: level > 1]}:"
    rate = f"{level * results['capacity']:.1f}" if results["capacity"] else "no"
    return f"Open loop, {rate} requests per second ({level:.0%} of what nanoinfer served in a closed loop):"


def _prompts(results: Results) -> str:
    """How long the prompts were, and how much of them was cached, as nanoinfer counts it."""
    ours = results["settings"]["servers"][0]
    found = [
        (run["prompt_tokens"], run["cached_tokens"])
        for run in results["runs"]
        if run["server"] == ours and run.get("prompt_tokens") and run.get("cached_tokens") is not None
    ]
    if not found:
        return ""
    prompt, cached = (median(each) for each in zip(*found, strict=True))
    return f"A prompt has {prompt:.0f} tokens, of which {ours} had {cached:.0f} cached. "


def _failures(results: Results) -> str:
    """A line per kind of failure of a server."""
    lines = [f"- FAILED: {name}: {_line(why)}" for name, why in results["failures"].items()]
    for run in results["runs"]:
        problem = run.get("error") or run.get("first_error")
        if problem and problem != "did not start":
            lines.append(
                f"- {'FAILED' if 'error' in run else 'errors'}: {run['server']}, {run['load']}: {_line(problem)}"
            )
        if run.get("attempts"):
            lines.append(f"- {run['server']}, {run['load']}: measured {run['attempts']} times: the client stood still")
    return "\n".join(dict.fromkeys(lines))


def _line(text: str) -> str:
    return " | ".join(text.splitlines())

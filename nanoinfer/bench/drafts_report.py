"""The tables of `bench drafts`."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from nanoinfer.bench.draft_peers import PEER_WORKLOAD
from nanoinfer.bench.draft_settings import ONCE_MORE
from nanoinfer.bench.markdown import table
from nanoinfer.bench.report import ratio_cell

LEGEND = """\
A ratio says how many times as fast an engine with drafts is as the one without, which serves the same requests beside it:
the median over rounds (lowest..highest). Prompts are part of the time. `once more` is another engine without drafts: what
differs from 1 there is noise. A row is a drafter, or several in the order in which they are asked, and the most drafts per
request and pass. On a `second visit`, both engines have served the same requests once before, untimed: the tree knows the
prompts, and what followed."""
Runs = Sequence[Mapping[str, Any]]


def format_drafts(results: Mapping[str, Any]) -> str:
    """The machine; per workload ratios and how drafts fared; the lowest ratio and the noise; differences."""
    machine, model = results["machine"], results["model"]
    head = (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB; {results['threads']} threads, "
        f"{results['rounds']} rounds, {results['date'][:10]}\nCommand: `{results['command']}`"
    )
    always = "; drafts always, whether they pay or not" if results["always"] else ""
    parts = [head, f"### {model['name']}: {model['parameters'] / 1e6:.1f} M parameters, {model['dtype']}{always}"]
    for name, question in results["workloads"].items():
        parts += [f"`{name}`: {question}", _facts(results, name), _ratios(results, name), _fates(results, name)]
        if name == PEER_WORKLOAD:
            parts += _peers(results)
    parts += ["\n".join([*lowest(results), *agreement(results)]), LEGEND]
    return "\n\n".join(part for part in parts if part)


def runs_of(results: Mapping[str, Any], workload: str, row: str | None = None, requests: int | None = None) -> Runs:
    """The runs of a workload, of a row of its table, with so many requests at a time."""
    return [
        run
        for run in results["runs"]
        if run["workload"] == workload and row in (None, run["row"]) and requests in (None, run["requests"])
    ]


def ratios(runs: Runs) -> list[float]:
    """How many times as fast as without drafts each run is."""
    return [run["seconds_without"] / run["seconds"] for run in runs]


def _heads(results: Mapping[str, Any]) -> list[str]:
    return [f"{count} request{'s'[: count > 1]}" for count in results["requests"]]


def _facts(results: Mapping[str, Any], workload: str) -> str:
    """Tokens per second without drafts, and in `copying` how much is copied."""
    speeds = []
    for count in results["requests"]:
        runs = runs_of(results, workload, requests=count)
        speeds.append(f"{median(run['new_tokens'] / run['seconds_without'] for run in runs):.0f} with {count}")
    text = f"Without drafts, tokens per second: {', '.join(speeds)} at a time."
    shares = [run["copied"] for run in runs_of(results, workload)]
    return f"{text} Of the output, {median(shares):.0%} repeats four or more tokens of the prompt."


def _ratios(results: Mapping[str, Any], workload: str) -> str:
    rows = []
    for name in results["rows"][workload]:
        cells = [ratio_cell(ratios(runs_of(results, workload, name, count))) for count in results["requests"]]
        rows.append([name, *cells])
    return "Speed, as a multiple of that without drafts:\n\n" + table(["drafter", *_heads(results)], rows)


def _fates(results: Mapping[str, Any], workload: str) -> str:
    """How many drafts there were, how many were right, and how many tokens a request got per pass."""
    rows = []
    for name in results["rows"][workload]:
        if name != str(ONCE_MORE):
            rows.append([name, *(_fate(runs_of(results, workload, name, count)) for count in results["requests"])])
    title = "Tokens per pass of a request (accepted of all drafts):"
    return f"{title}\n\n" + table(["drafter", *_heads(results)], rows)


def _fate(runs: Runs) -> str:
    drafted, accepted, passes = (sum(run[key] for run in runs) for key in ("drafted", "accepted", "passes"))
    share = f"{accepted / drafted:.0%} of {drafted:,}" if drafted else "no drafts"
    return f"{(passes + accepted) / max(passes, 1):.2f} ({share})"


def _peers(results: Mapping[str, Any]) -> list[str]:
    """Other engines' n-gram drafts: ratios to themselves, tokens per second, whose tokens they give, failures."""
    if not results["peers"]:
        return []
    rows = []
    for name, drafts in dict.fromkeys((run["engine"], run["drafts"]) for run in results["peers"]):
        of_row = [run for run in results["peers"] if (run["engine"], run["drafts"]) == (name, drafts)]
        cells = [_peer([run for run in of_row if run["requests"] == count]) for count in results["requests"]]
        rows.append(
            [
                f"{name}, {drafts}" if drafts else f"{name}, without",
                *cells,
                _same(of_row, "as_without"),
                _same(of_row, "as_ours"),
            ]
        )
    head = ["engine", *_heads(results), "tokens as without", "as nanoinfer's"]
    versions = [
        f"- {name}: {' '.join(f'{package} {version}' for package, version in each.items())}"
        for name, each in results["peer_versions"].items()
    ]
    errors = dict.fromkeys(
        f"- FAILED: {run['engine']}, {run['drafts']} drafts: {' | '.join(run['error'].splitlines())}"
        for run in results["peers"]
        if "error" in run
    )
    title = "Other engines' n-gram drafts, tokens per second and multiples of their own speed without:"
    return [f"{title}\n\n" + table(head, rows), "\n".join([*versions, *errors])]


def _peer(runs: Runs) -> str:
    found = [run for run in runs if "seconds" in run]
    if not found:
        return "failed"
    speed = f"{median(run['new_tokens'] / run['seconds'] for run in found):.0f}"
    compared = [run for run in found if run["drafts"] and "seconds_without" in run]
    return f"{speed}, {ratio_cell(ratios(compared))}" if compared else speed


def _same(runs: Runs, key: str) -> str:
    counts = [run[key] for run in runs if key in run]
    return f"{sum(same for same, _ in counts)}/{sum(total for _, total in counts)}" if counts else ""


def lowest(results: Mapping[str, Any]) -> list[str]:
    """The best ratios with the fewest requests, the lowest ratio of all, and the noise: medians over rounds."""
    cells = {
        (workload, row, count): ratios(runs_of(results, workload, row, count))
        for workload in results["workloads"]
        for row in results["rows"][workload]
        for count in results["requests"]
    }
    noise = {key: found for key, found in cells.items() if key[1] == str(ONCE_MORE)}
    drafted = {key: found for key, found in cells.items() if key not in noise}
    lines, fewest = [], min(results["requests"])
    for workload in results["workloads"]:
        here = {key: found for key, found in drafted.items() if key[0] == workload and key[2] == fewest}
        best = max(here, key=lambda key: median(here[key]))
        lines.append(f"- best of {workload} at {fewest}: {ratio_cell(here[best])}, {best[1]}")
    worst = min(drafted, key=lambda key: median(drafted[key]))
    lines.append(f"- lowest ratio: {ratio_cell(drafted[worst])}, {worst[0]}, {worst[1]}, {worst[2]} at a time")
    medians = [median(found) for found in noise.values()]
    every = [ratio for found in noise.values() for ratio in found]
    lines.append(
        f"- noise, without against without: medians {min(medians):.2f}..{max(medians):.2f}, "
        f"single rounds {min(every):.2f}..{max(every):.2f}"
    )
    return lines


def agreement(results: Mapping[str, Any]) -> list[str]:
    """Whether all tokens are those without drafts; a line for each request that differs."""
    if not results["differences"]:
        return [f"- tokens equal to those without drafts in all {len(results['runs'])} pairs of runs"]
    return [f"- DIFFERENT: {line}" for line in results["differences"]]

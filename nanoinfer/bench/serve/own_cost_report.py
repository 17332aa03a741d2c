"""What `bench serve --own-cost` prints."""

from collections.abc import Sequence
from statistics import median

from nanoinfer.bench.markdown import table
from nanoinfer.bench.serve.own_cost import AGAIN, ENGINE, HTTP
from nanoinfer.bench.serve.settings import Results

AIM = 0.05
CPU = ", cpu"


def costs(results: Results, kind: str = "") -> list[float]:
    """By how much more the server takes, as a share, in each round: of time, or with `, cpu` of processor time."""
    return [
        run[HTTP + kind] / ((run[ENGINE + kind] + run[AGAIN + kind]) / 2) - 1
        for run in results["runs"]
        if run[HTTP + kind] is not None
    ]


def format_own_cost(results: Results) -> str:
    """The machine, tokens per second of both, and what the server costs."""
    machine, model, settings = results["machine"], results["model"], results["settings"]
    tokens, runs = settings["streams"] * settings["new_tokens"], results["runs"]
    rows = []
    for name in (ENGINE, HTTP, AGAIN):
        seconds, cpu = (
            median(run[name] for run in runs),
            [run[name + CPU] for run in runs if run[name + CPU] is not None],
        )
        rows.append([name, *(f"{value:.0f}" for value in (tokens / seconds, 1e6 * seconds / tokens))])
        rows[-1].append(f"{1e6 * median(cpu) / tokens:.0f}" if cpu else "")
    noise = [run[AGAIN] / run[ENGINE] - 1 for run in runs]
    client = median(run["client_s"] / run[HTTP] for run in runs)
    lines = [f"The server takes {_span(costs(results))} more time; the aim is less than {AIM:.0%}."]
    lines.append(f"Noise, AsyncEngine against AsyncEngine: {_span(noise)}.")
    if cpu_costs := costs(results, CPU):
        cpu_noise = [run[AGAIN + CPU] / run[ENGINE + CPU] - 1 for run in runs if run[AGAIN + CPU] is not None]
        lines.append(f"It takes {_span(cpu_costs)} more processor time (noise: {_span(cpu_noise)}).")
    lines.append(f"The clients took {client:.0%} of a core.")
    return "\n\n".join(
        [
            f"{machine['cpu']}, {machine['cores']} cores; {results['threads']} threads, {results['rounds']} rounds, "
            f"{results['date'][:10]}\nCommand: `{results['command']}`",
            f"### {model['name']}: {model['parameters'] / 1e6:.1f} M parameters, {model['dtype']}; {settings['streams']} "
            f"streams of {settings['new_tokens']} tokens",
            table(["", "tok/s", "µs per token", "µs of processor time"], rows),
            " ".join(lines),
        ]
    )


def _span(values: Sequence[float]) -> str:
    """The median, lowest and highest share."""
    return f"{median(values):.1%} ({min(values):.1%}..{max(values):.1%})"

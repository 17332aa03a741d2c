"""The table of `bench tiers`."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from nanoinfer.bench.markdown import table
from nanoinfer.bench.tiers import TOGETHER, WITHOUT

HEAD = (
    "",
    "below the pool",
    "first token",
    "tok/s",
    "cached",
    "first token",
    "ratio",
    "tok/s",
    "cached",
    "same answers",
)
LEGEND = """\
below the pool: where K/V goes that has no room in it. The next three figures are those of later turns in the same process,
the others those of the last turn, in a new process. first token: median seconds from a turn's question to the first token
of its answer. ratio: of these, to nanoinfer's without storeys, in the same round. tok/s: output tokens per second of all
chats. cached: the share of the prompts' tokens that were not computed. same answers: how many have the tokens of nanoinfer
without storeys. Figures are medians over rounds."""


def format_tiers(results: Mapping[str, Any]) -> str:
    """A table for each number of chats, and what failed."""
    model, settings, runs = results["model"], results["settings"], results["runs"]
    parts = [
        f"{model['name']}, {model['dtype']}: {settings['turns']} turns, the first of {settings['first_tokens']} tokens,\n"
        f"later ones of {settings['question_tokens']} more and the last answer; {settings['new_tokens']} per answer.\n"
        f"{TOGETHER} chats at a time, over a pool of {settings['pool']:,} slots. Threads: {settings['threads']}. "
        f"Rounds: {settings['rounds']}."
    ]
    for count in dict.fromkeys(run["conversations"] for run in runs):
        some = [run for run in runs if run["conversations"] == count]
        ways = sorted({run["way"] for run in some}, key=lambda way: _place(some, way))
        parts += ["", f"{count} chats", "", table(HEAD, [_row(some, way, results["below"][way]) for way in ways])]
    parts += ["", LEGEND]
    failures = dict.fromkeys((run["way"], run["error"]) for run in runs if "error" in run)
    parts += [f"- FAILED: {way}: {' | '.join(error.splitlines())}" for way, error in failures]
    return "\n".join(parts)


def differences(results: Mapping[str, Any], ours: Sequence[str]) -> list[str]:
    """Runs of our own ways whose answers are not all those of the way without storeys."""
    found = []
    for run in results["runs"]:
        same, total = run.get("same_answers", (0, 0))
        if run["way"] in ours and same != total:
            found.append(
                f"{run['way']}, {run['conversations']} chats, round {run['round']}: {total - same} of {total} answers"
            )
    return found


def _place(runs: Sequence[Mapping[str, Any]], way: str) -> tuple[int, str]:
    order = (WITHOUT, "host memory", "files")
    return (order.index(way) if way in order else len(order), way)


def _row(runs: Sequence[Mapping[str, Any]], way: str, below: str) -> list[str]:
    mine = [run for run in runs if run["way"] == way and "error" not in run]
    if not mine:
        return [way, below, "failed", *[""] * (len(HEAD) - 3)]
    base = {run["round"]: run["after"]["ttft_s"] for run in runs if run["way"] == WITHOUT and "error" not in run}
    ratios = [run["after"]["ttft_s"] / base[run["round"]] for run in mine if run["round"] in base]
    same = [run["same_answers"] for run in mine if "same_answers" in run]
    ttft, speed, cached = _three([run["before"] for run in mine if run["before"] is not None])
    ttft_after, speed_after, cached_after = _three([run["after"] for run in mine])
    equal = f"{sum(each[0] for each in same)} of {sum(each[1] for each in same)}" if same else ""
    ratio = f"{median(ratios):.2f}" if ratios else ""
    return [way, below, ttft, speed, cached, ttft_after, ratio, speed_after, cached_after, equal]


def _three(parts: Sequence[Mapping[str, Any]]) -> tuple[str, str, str]:
    """Seconds to the first token, tokens per second, and the share that was cached."""
    if not parts:
        return "", "", ""
    cached = [part["cached"] for part in parts if part["cached"] is not None]
    return (
        f"{median(part['ttft_s'] for part in parts):.3f} s",
        f"{median(part['output_tok_s'] for part in parts):.0f}",
        f"{median(cached):.0%}" if cached else "",
    )

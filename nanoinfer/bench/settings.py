"""What a session is to measure, and the results file: begun, read, or continued after the run was stopped."""

import datetime
import json
import re
import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanoinfer.bench.engines import EngineSpec
from nanoinfer.bench.machine import describe_machine
from nanoinfer.bench.workloads import Workload

FORMAT = 1


@dataclass(frozen=True)
class Settings:
    """What to measure. Engines named in `once` run only in the first of the `rounds`.

    `gap`: mean seconds between staggered arrivals; None: depends on the model's size. `timeout`: how many seconds an engine
    may take for one answer. `busy`: how many other processes keep the cores busy in the workloads that want this.
    """

    workloads: Sequence[Workload]
    engines: Sequence[EngineSpec]
    rounds: int = 3
    once: Collection[str] = ()
    threads: int = 1
    seed: int = 0
    gap: float | None = None
    timeout: float = 600.0
    busy: int = 0
    bandwidth_bytes: int = 2**30  # read to measure the memory's bandwidth; far larger than any cache

    def as_dict(self) -> dict[str, Any]:
        """What a results file says of them, and what must be the same when a stopped run continues (except `rounds`)."""
        return {
            "workloads": [workload.name for workload in self.workloads],
            "engines": [engine.name for engine in self.engines],
            "once": sorted(self.once),
            "rounds": self.rounds,
            "threads": self.threads,
            "seed": self.seed,
            "gap": self.gap,
            "busy": self.busy,
        }


def new_results(settings: Settings) -> dict[str, Any]:
    """A results file without measurements; each measured model is appended to its `models`."""
    return {
        "format": FORMAT,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", "-m", "nanoinfer", *map(_without_folders, sys.argv[1:])]),
        "machine": describe_machine(),
        "threads": settings.threads,
        "rounds": settings.rounds,
        "seed": settings.seed,
        "settings": settings.as_dict(),
        "models": [],
    }


def _without_folders(argument: str) -> str:
    """Absolute paths shortened to their last part, because this machine's folders mean nothing elsewhere."""
    return re.sub(r"(?<![\w.~])/[^=,]*/([^/=,]+)", r"\1", argument)


def read_results(file: str) -> dict[str, Any]:
    """A results file. ValueError if it is none."""
    try:
        results = json.loads(Path(file).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file}: this is not JSON: {error}") from error
    if not isinstance(results, dict) or results.get("format") != FORMAT:
        raise ValueError(f"{file}: not written by bench run --json (format {FORMAT})")
    return results


def _check_whole(results: dict[str, Any]) -> None:
    """ValueError naming what is missing in a results file or has another form than a run can be continued from."""
    entry = {"name": str, "dtype": str, "bandwidth_gb_s": list, "engines": list, "runs": list}

    def check(where: str, value: Any, keys: Mapping[str, type]) -> None:
        for key, kind in keys.items():
            if not isinstance(value, dict) or not isinstance(value.get(key), kind):
                raise ValueError(f"{where}: is damaged; {key} is missing or of another kind")

    check("the file", results, {"machine": dict, "settings": dict, "models": list})
    check("machine", results["machine"], {"cpu": str, "cores": int})
    check("settings", results["settings"], {"rounds": int})
    for number, model in enumerate(results["models"]):
        check(f"models[{number}]", model, entry)
        for engine in model["engines"]:
            check(f"models[{number}].engines", engine, {"name": str})
        for run in model["runs"]:
            check(f"models[{number}].runs", run, {"round": int, "workload": str, "engine": str})


def resumed_results(file: str, settings: Settings) -> dict[str, Any]:
    """The results in `file`, to be continued with `settings`; new ones if there is no such file or it is empty.

    ValueError naming a setting that differs. There may be more rounds now than at first, and other models.
    """
    if not Path(file).exists() or not Path(file).stat().st_size:
        return new_results(settings)
    results, now = read_results(file), settings.as_dict()
    if results.get("settings") is None:
        raise ValueError(f"--resume {file}: does not say with which settings it was measured")
    try:
        _check_whole(results)
    except ValueError as error:
        raise ValueError(f"--resume {file}: {error}") from None
    before = results["settings"]
    for name, value in now.items():
        if name != "rounds" and before.get(name) != value:
            raise ValueError(f"--resume {file}: {name} is {value!r}, but {before.get(name)!r} in the file")
    if before["rounds"] > settings.rounds:
        raise ValueError(f"--resume {file}: rounds is {settings.rounds}, but {before['rounds']} in the file")
    machine = describe_machine()
    for name in ("cpu", "cores"):
        if results["machine"][name] != machine[name]:
            raise ValueError(f"--resume {file}: {name} is {machine[name]}, but {results['machine'][name]} in the file")
    return {**results, "rounds": settings.rounds, "settings": now}


def find_model(results: dict[str, Any], name: str, dtype: str) -> dict[str, Any] | None:
    """The results' entry for the model `name` in `dtype`."""
    return next((model for model in results["models"] if (model["name"], model["dtype"]) == (name, dtype)), None)


def put_model(results: dict[str, Any], model: dict[str, Any]) -> None:
    """Add a model's entry to the results, in the place of an earlier one if there is one."""
    earlier = find_model(results, model["name"], model["dtype"])
    if earlier is None:
        results["models"].append(model)
    else:
        results["models"][results["models"].index(earlier)] = model


def write_results(file: str, results: Any) -> None:
    """Write JSON to `file`, which at every moment holds either the old results or the new ones."""
    target, text = Path(file), json.dumps(results, indent=1, ensure_ascii=False) + "\n"
    if target.exists() and not target.is_file():  # a device, which cannot be replaced
        target.write_text(text)
        return
    part = target.with_name(f"{target.name}.part")
    part.write_text(text)
    part.replace(target)

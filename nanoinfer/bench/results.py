"""Results files: begun, written after every step, read, and continued after a run was stopped."""

import datetime
import json
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nanoinfer.bench.machine import describe_machine

RUN_FORMAT = 1
Results = dict[str, Any]
Keep = Callable[[Results], None]


def new_results(kind: str | int, settings: Mapping[str, Any], **more: Any) -> Results:
    """Results without measurements. `kind`: who writes them. `settings`: what must be the same when a stopped run continues
    (but there may be more rounds)."""
    return {
        "format": kind,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", "-m", "nanoinfer", *map(without_folders, sys.argv[1:])]),
        "machine": describe_machine(),
        "threads": settings["threads"],
        "rounds": settings["rounds"],
        "settings": json.loads(json.dumps(settings)),  # as the file has them
        **more,
    }


def without_folders(text: str) -> str:
    """Absolute paths shortened to their last part, because this machine's folders mean nothing elsewhere."""
    return re.sub(r"(?<![\w.~/:])(?:/[^/\s'\",:=]+)+/([^/\s'\",:=]+)", r"\1", text)


def read_results(file: str) -> Results:
    """What `bench run` has written. ValueError if it is something else."""
    try:
        results = json.loads(Path(file).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file}: not JSON: {error}") from error
    if not isinstance(results, dict) or results.get("format") != RUN_FORMAT:
        raise ValueError(f"{file}: not written by bench run --json")
    return results


def continued(file: str, fresh: Results) -> Results:
    """The results in `file`, to be continued as `fresh` was begun; `fresh` if there are none yet. ValueError naming what
    differs."""
    if not Path(file).exists() or not Path(file).stat().st_size:
        return fresh
    try:
        before = json.loads(Path(file).read_text(encoding="utf-8"))
        was = {**before["settings"], **{name: before["machine"][name] for name in ("cpu", "cores")}}
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(f"--resume {file}: not a results file") from error
    now = {"format": fresh["format"], **fresh["settings"], **{n: fresh["machine"][n] for n in ("cpu", "cores")}}
    for name, value in now.items():
        old = before["format"] if name == "format" else was.get(name)
        if old > value if name == "rounds" else old != value:
            raise ValueError(f"--resume {file}: {name} is {value!r}, but {old!r} in the file")
    return {**before, "rounds": fresh["rounds"], "settings": fresh["settings"]}


def keeper(file: str | None) -> Callable[[Any], None]:
    """Writes results to `file`, if there is one. OSError at once if it cannot be written."""
    if file:
        Path(file).touch()
    return lambda results: write_results(file, results) if file else None


def write_results(file: str, results: Any) -> None:
    """Write JSON to `file`, which at every moment holds either the old results or the new ones."""
    target, text = Path(file), json.dumps(results, indent=1, ensure_ascii=False) + "\n"
    part = target.with_name(f"{target.name}.part")
    part.write_text(text)
    part.replace(target)

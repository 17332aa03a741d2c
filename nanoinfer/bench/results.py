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


def read_results(file: str, kind: str | int) -> Results:
    """What a command has written with --json. ValueError if it is something else."""
    try:
        results = json.loads(Path(file).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file}: not JSON: {error}") from error
    if not isinstance(results, dict) or results.get("format") != kind or "settings" not in results:
        raise ValueError(f"{file}: not a results file of this command")
    return results


def continued(file: str, fresh: Results) -> Results:
    """The results in `file`, to be continued as `fresh` was begun; `fresh` if there are none yet. ValueError naming what
    differs."""
    if not Path(file).exists() or not Path(file).stat().st_size:
        return fresh
    before = read_results(file, fresh["format"])
    was, now = ({**each["settings"], "cpu": each["machine"]["cpu"]} for each in (before, fresh))
    for name, value in now.items():
        old = was.get(name)
        if old > value if name == "rounds" else old != value:
            raise ValueError(f"--resume {file}: {name} is {value!r}, but {old!r} in the file")
    return {**before, "rounds": fresh["rounds"], "settings": fresh["settings"]}


def keeper(file: str | None) -> Callable[[Any], None]:
    """Writes results to `file`, if there is one, which at every moment holds either the old results or the new ones.
    OSError at once if it cannot be written."""
    if not file:
        return lambda results: None
    target = Path(file)
    target.touch()
    part = target.with_name(f"{target.name}.part")

    def keep(results: Any) -> None:
        part.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
        part.replace(target)

    return keep

"""Files of results: JSON that is written after every run, so that a run that was stopped can be continued."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

FORMAT = "nanoinfer simulate 1"


class Results:
    """Runs by name, in a file (or only in memory, with None).

    `settings`: what the runs have in common. With `resume`, what the file holds is kept. ValueError if its settings differ.
    """

    def __init__(self, path: str | Path | None, settings: dict[str, Any], resume: bool = False):
        self._path = None if path is None else Path(path)
        self.settings: dict[str, Any] = json.loads(json.dumps(settings))
        self.runs: dict[str, Any] = {}
        if resume and self._path is not None and self._path.exists() and self._path.stat().st_size:
            self.runs = self._read(self._path)
        self._write()

    def once(self, name: str, run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The result of this name: the file's, or else that of `run`, which is written."""
        if name not in self.runs:
            self.runs[name] = run()
            self._write()
        found: dict[str, Any] = self.runs[name]
        return found

    def _read(self, path: Path) -> dict[str, Any]:
        content = read_results(path)
        for name in sorted(self.settings.keys() | content["settings"].keys()):
            theirs, ours = content["settings"].get(name), self.settings.get(name)
            if not _agree(theirs, ours):
                raise ValueError(f"{path}: was made with {name}={theirs!r}, now it is {ours!r}")
        runs: dict[str, Any] = content["runs"]
        return runs

    def _write(self) -> None:
        if self._path is not None:
            content = {"format": FORMAT, "settings": self.settings, "runs": self.runs}
            self._path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _agree(theirs: Any, ours: Any) -> bool:
    """Whether two settings are equal, but for the last digits of what was fitted: these differ from machine to machine."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        return theirs.keys() == ours.keys() and all(_agree(theirs[name], ours[name]) for name in ours)
    if isinstance(theirs, float) and isinstance(ours, float):
        return math.isclose(theirs, ours)
    return bool(theirs == ours)


def read_results(path: str | Path) -> dict[str, Any]:
    """The content of a file of results. ValueError if it is something else."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: is no JSON ({error})") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{path}: has no format={FORMAT!r}")
    return content

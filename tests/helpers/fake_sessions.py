"""Benchmark sessions of engines that need no model."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nanoinfer.bench.engines import EngineSpec
from nanoinfer.bench.results import RUN_FORMAT, Keep, Results, new_results
from nanoinfer.bench.session import Settings, measure_model
from nanoinfer.bench.workloads import WORKLOADS

FAKE = Path(__file__).parent / "fake_peer.py"


def fake_settings(engines: Mapping[str, Mapping[str, Any]], rounds: int = 1, **more: Any) -> Settings:
    """Settings for fake engines, given as name → options; those called ours* are ours."""
    specs = [EngineSpec(name, FAKE, options=o, is_ours=name.startswith("ours")) for name, o in engines.items()]
    return Settings(specs, rounds, **more)


def fake_model(
    path: Path,
    workloads: list[str],
    settings: Settings,
    earlier: Results | None = None,
    keep: Keep = lambda model: None,
) -> Results:
    """The entry of one model."""
    return measure_model(path, None, [WORKLOADS[name] for name in workloads], settings, earlier, keep)


def fake_session(path: Path, workloads: list[str], rounds: int, **engines: dict[str, Any]) -> Results:
    """The results of a session of fake engines, as a file has them."""
    settings = fake_settings(engines, rounds)
    model = fake_model(path, workloads, settings)
    results = new_results(RUN_FORMAT, {"workloads": workloads, **settings.as_dict()}, models=[model])
    return json.loads(json.dumps(results))


def table_after(text: str, title: str = "") -> dict[str, list[str]]:
    """The first table after the line that begins with `title`: first cell of a row → its other cells."""
    lines = f"\n{text}"[f"\n{text}".index(f"\n{title}") :].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("|"))
    rows = {}
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        first, *others = (cell.strip() for cell in line.strip("|").split("|"))
        rows[first] = others
    return rows

"""Benchmark sessions of engines that need no model."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nanoinfer.bench.engines import EngineSpec
from nanoinfer.bench.session import measure_model
from nanoinfer.bench.settings import Settings, new_results
from nanoinfer.bench.workloads import WORKLOADS

FAKE = Path(__file__).parent / "fake_peer.py"


def fake_settings(workloads: list[str], rounds: int, engines: Mapping[str, Mapping[str, Any]], **more: Any) -> Settings:
    """Settings for fake engines, given as name → options; those called ours* are ours."""
    specs = [EngineSpec(name, FAKE, options=o, is_ours=name.startswith("ours")) for name, o in engines.items()]
    chosen = [WORKLOADS[name] for name in workloads]
    return Settings(chosen, specs, rounds, gap=0.001, bandwidth_bytes=2**20, **more)


def fake_session(
    path: Path, workloads: list[str], rounds: int, once: tuple[str, ...] = (), **engines: dict[str, Any]
) -> dict[str, Any]:
    """The results of a session of fake engines."""
    settings = fake_settings(workloads, rounds, engines, once=once)
    results = new_results(settings)
    results["models"].append(measure_model(path, None, settings))
    return json.loads(json.dumps(results))  # as a file has it


def table_after(text: str, title: str) -> dict[str, list[str]]:
    """The first table after the line that begins with `title`: first cell of a row → its other cells."""
    lines = text[text.index(f"\n{title}") :].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("|"))
    rows = {}
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        first, *others = (cell.strip() for cell in line.strip("|").split("|"))
        rows[first] = others
    return rows

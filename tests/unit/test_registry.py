"""Registries: alternatives by name, from files that are imported when somebody asks."""

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nanoinfer.registry
from nanoinfer.registry import REGISTRIES, Registry
from tests.helpers.waiting import HANG_S, Worker

ROOT = Path(__file__).parent.parent.parent


def test_a_registry_imports_its_files_when_it_is_first_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    imported: list[str] = []

    def load(name: str) -> None:
        imported.append(name)
        registry[name.rpartition(".")[2]] = len(imported)

    monkeypatch.setattr("nanoinfer.registry.import_module", load)
    registry: Registry[int] = Registry("COLOURS", "colour", "paints.red", "paints.blue")
    registry["mine"] = 0
    assert not imported, "adding one needs no other"
    assert registry["red"] > 0
    assert sorted(imported) == ["nanoinfer.paints.blue", "nanoinfer.paints.red"]
    assert set(registry) == {"mine", "red", "blue"}
    assert len(registry) == len(imported) + 1 == 3
    del registry["mine"]
    assert "mine" not in registry
    with pytest.raises(KeyError):
        registry["green"]


def test_what_was_registered_before_the_built_in_ones_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    registry: Registry[str] = Registry("COLOURS", "colour", "paints")
    monkeypatch.setattr("nanoinfer.registry.import_module", lambda _: registry.update(red="built in", blue="built in"))
    registry["red"] = "mine"
    assert dict(registry) == {"red": "mine", "blue": "built in"}


def test_an_import_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    registry: Registry[str] = Registry("COLOURS", "colour", "paints")
    outcomes = iter([KeyboardInterrupt(), None])

    def load(name: str) -> None:
        if (error := next(outcomes)) is not None:
            raise error
        registry["red"] = name

    monkeypatch.setattr("nanoinfer.registry.import_module", load)
    with pytest.raises(KeyboardInterrupt):
        registry.check("red")
    registry.check("red")


def test_threads_that_ask_first_at_the_same_time_all_get_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    registry: Registry[str] = Registry("COLOURS", "colour", "paints")
    importing, go_on = threading.Event(), threading.Event()

    def load(name: str) -> None:
        importing.set()
        assert go_on.wait(HANG_S)
        registry["red"] = name

    monkeypatch.setattr("nanoinfer.registry.import_module", load)
    first = Worker(lambda: list(registry))
    assert importing.wait(HANG_S)
    second = Worker(lambda: list(registry))
    go_on.set()
    assert first.result() == second.result() == ["red"]


@pytest.mark.parametrize("name", ["green", None, 3, ["red"], np.array([1, 2])])
def test_what_is_no_alternative_is_refused_with_those_that_there_are(name: object) -> None:
    registry: Registry[int] = Registry("COLOURS", "colour", hint="; mix it yourself")
    registry.update({"red": 1, 7: 2})
    with pytest.raises(ValueError, match=r"^colour=.*: must be one of red, 7; mix it yourself$"):
        registry.check(name)
    registry.check("red")


def test_every_registry_has_its_own_option_and_built_in_alternatives() -> None:
    assert len({registry.option for registry in REGISTRIES}) == len(REGISTRIES)
    assert all(len(registry) > 1 for registry in REGISTRIES)


@pytest.mark.parametrize("registry", REGISTRIES, ids=lambda registry: registry.name)
def test_the_built_in_names_are_read_from_the_files_that_register_them(registry: Registry[Any]) -> None:
    assert getattr(nanoinfer.registry, registry.name) is registry
    ours = [
        name
        for name, value in registry.items()
        if name is not None
        and (isinstance(value, str) or getattr(value, "__module__", "").removeprefix("nanoinfer.") in registry.files)
    ]
    assert sorted(registry.built_in()) == sorted(ours)


@pytest.mark.slow
def test_settings_can_be_made_before_anything_else_is_imported() -> None:
    code = "from nanoinfer.config import EngineConfig; print(EngineConfig(1, 16, 16).schedule_policy)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "lpm\n"

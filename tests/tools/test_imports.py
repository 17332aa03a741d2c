"""Which file imports which: no circles, nothing upwards, nothing heavy before it is used.

The table below is the order of the rooms, and the place to look at before one of them imports another.
"""

import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path

import pytest

from notebooks.tools.intact import is_left_out
from tests.helpers.imports import Imports, circles, loaded_by, read_imports

ROOT = Path(__file__).parent.parent.parent

# A room is a folder of nanoinfer/ or a file directly in it; `nanoinfer` is its __init__. Lowest first: a room may import
# those of the rows above its own in this table and its neighbours in the same row, never those of a row below.
ROOMS = (
    ("errors device registry threads version", "what needs nothing else of the package"),
    ("kernels", "a model's arithmetic"),
    ("requests config", "what is asked for: requests and their texts, and the engine's settings"),
    ("cache", "slots, rows and the radix tree"),
    ("model", "from token ids to logits"),
    ("adapters", "what fine-tunes add to a model's projections"),
    ("ops", "operators with Ascend's interfaces"),
    ("parallel", "a model that is split over several processes"),
    ("grammars", "which tokens a request's grammar allows"),
    ("sampling", "from logits to tokens"),
    ("scheduling", "which requests are in the next pass, and their batch"),
    ("drafting", "several tokens per request from one pass"),
    ("engine", "the step: schedule, forward, sample, process; signals, deadlines and failures around it"),
    ("paged sessions", "other ways to use a model: forward_tensor, and the first engines of the series"),
    ("viz", "pictures: they draw what they are given"),
    ("trace", "watches an engine; pictures of a run"),
    ("frontends", "a model and its engine in one object: for any thread, and for coroutines"),
    ("nanoinfer", "the public names"),
    ("server", "an engine behind HTTP"),
    ("cluster", "more than one engine"),
    ("terminal", "tables for a terminal"),
    ("bench", "measurements"),
    ("cli __main__", "the command line"),
)
# What using the public names must not load: it loads when it is used. (torch itself loads tqdm.)
LATER = (
    *("transformers", "tokenizers", "huggingface_hub", "jinja2", "llguidance", "tqdm", "matplotlib", "PIL", "IPython"),
    *("nanoinfer.kernels.cpp", "nanoinfer.kernels.onednn", "nanoinfer.kernels.build", "nanoinfer.model.attention.cpp"),
    *("nanoinfer.model.mistral", "nanoinfer.model.qwen", "nanoinfer.model.gemma3", "nanoinfer.model.phi3"),
    *("nanoinfer.parallel", "nanoinfer.viz", "nanoinfer.trace"),
    *("nanoinfer.bench", "nanoinfer.cli", "nanoinfer.server", "nanoinfer.cluster"),
    *("fastapi", "uvicorn", "prometheus_client"),
)


# --- the rules: what breaks them, a line each -----------------------------------------------------------------------


def circles_of_files(imports: Imports) -> list[str]:
    return circles(imports.graph())


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else module


def rooms_of(imports: Imports) -> dict[str, set[str]]:
    """Room → the rooms that it imports."""
    rooms: dict[str, set[str]] = {}
    for importer, imported in imports.graph().items():
        rooms.setdefault(room_of(importer), set()).update({room_of(each) for each in imported} - {room_of(importer)})
    return rooms


def circles_of_rooms(imports: Imports) -> list[str]:
    return circles(rooms_of(imports))


def floors_of(imports: Imports) -> dict[str, int]:
    """Room → its floor: 1 if it imports no other room, and else one above the highest that it imports."""
    rooms, floors = rooms_of(imports), {}
    while len(floors) < len(rooms):
        floors |= {
            room: 1 + max((floors[each] for each in below), default=0)
            for room, below in rooms.items()
            if room not in floors and below <= floors.keys()
        }
    return floors


def arrows_upwards(imports: Imports) -> list[str]:
    level = {room: i for i, (rooms, _) in enumerate(ROOMS) for room in rooms.split()}
    found = []
    for arrow in imports.arrows:
        importer, imported = room_of(arrow.importer), room_of(arrow.imported)
        if arrow.imported in imports.modules and level.get(imported, 0) > level.get(importer, len(ROOMS)):
            found.append(f"{arrow}, which is above it")
    return found


def rooms_and_table_apart(imports: Imports) -> list[str]:
    rooms, table = {room_of(module) for module in imports.modules}, " ".join(rooms for rooms, _ in ROOMS).split()
    return [
        *(f"{room}: is not in the table ROOMS" for room in sorted(rooms - set(table))),
        *(f"{room}: in the table ROOMS, but there is no such room" for room in table if room not in rooms),
    ]


def config_on_models(imports: Imports) -> list[str]:
    reached = imports.reached_from("nanoinfer.config")
    unwanted = [module for module in reached if {"attention", "kernels"} & set(module.split("."))]
    return [f"nanoinfer.config needs {module}" for module in sorted(unwanted)]


def checks_on_what_graders_leave_out(imports: Imports) -> list[str]:
    checks = [module for module in imports.modules if f"{module}.".startswith("notebooks.course.checks.")]
    reached = {each for module in checks for each in imports.reached_from(module)}
    return [f"notebooks.course.checks needs {module}" for module in sorted(reached) if is_left_out(module)]


def imports_of_tests(imports: Imports) -> list[str]:
    return [str(arrow) for arrow in imports.arrows if arrow.imported.split(".")[0] == "tests"]


def facades_of_others(imports: Imports) -> list[str]:
    """A folder's `__init__` shows files of its folder, and files of the folder do not ask it for them."""
    found = []
    for arrow in imports.arrows:
        inside = arrow.imported.startswith(arrow.importer + ".")
        if (
            arrow.importer in imports.packages
            and "." in arrow.importer
            and arrow.imported in imports.modules
            and not inside
        ):
            found.append(f"{arrow}, which is not in its folder")
    for arrow in imports.facades:
        if arrow.importer.startswith(arrow.imported + ".") and "." in arrow.imported:
            found.append(f"{arrow}, the __init__ of its own folder")
    return found


def loaded_too_early(loaded: Iterable[str]) -> list[str]:
    return sorted(module for module in loaded if any(f"{module}.".startswith(f"{later}.") for later in LATER))


# --- the package keeps them -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def package() -> Imports:
    return read_imports(ROOT, "nanoinfer")


@pytest.mark.parametrize(
    "rule",
    [
        circles_of_files,
        circles_of_rooms,
        rooms_and_table_apart,
        arrows_upwards,
        config_on_models,
        imports_of_tests,
        facades_of_others,
    ],
)
def test_the_package_keeps_the_rule(package: Imports, rule: Callable[[Imports], list[str]]) -> None:
    broken = rule(package)
    assert not broken, "\n".join(broken)


def test_the_package_has_at_most_30_rooms_on_16_floors(package: Imports) -> None:
    floors = floors_of(package)
    assert len(floors) <= 30
    assert max(floors.values()) <= 16, " → ".join(sorted(floors, key=floors.__getitem__))


@pytest.fixture(scope="module")
def package_and_notebooks() -> Imports:
    return read_imports(ROOT, "nanoinfer", "notebooks")


@pytest.mark.slow
@pytest.mark.parametrize("rule", [circles_of_files, checks_on_what_graders_leave_out, imports_of_tests])
def test_the_tools_of_the_notebooks_keep_the_rule(
    package_and_notebooks: Imports, rule: Callable[[Imports], list[str]]
) -> None:
    broken = rule(package_and_notebooks)
    assert not broken, "\n".join(broken)


@pytest.mark.slow
def test_the_public_names_load_nothing_heavy() -> None:
    loaded = loaded_by("nanoinfer.frontends.llm, nanoinfer.frontends.async_engine", ROOT, after="torch")
    assert {"nanoinfer.engine.engine", "nanoinfer.model.loader"} <= loaded
    early = loaded_too_early(loaded)
    assert not early, f"import nanoinfer loads {', '.join(early)}"


@pytest.mark.slow
def test_a_first_answer_loads_neither_torchs_compiler_nor_the_model_classes_of_transformers() -> None:
    """Each takes about a second: torch's when something is defined for it, transformers' with a configuration's class."""
    code = "nanoinfer as n\nn.LLM('story').generate('x', n.SamplingParams(max_new_tokens=3))"
    loaded = loaded_by(code, ROOT, after="torch")
    assert "nanoinfer.model.captured_passes" in loaded
    assert not {"torch._dynamo", "torch.distributed.tensor", "transformers.models.auto"} & loaded


def test_importing_the_package_loads_only_its_version() -> None:
    loaded = loaded_by("nanoinfer", ROOT)
    assert "torch" not in loaded
    assert sorted(module for module in loaded if module.startswith("nanoinfer")) == ["nanoinfer", "nanoinfer.version"]


def test_serve_says_that_it_loads_before_it_loads_anything_heavy() -> None:
    code = "nanoinfer.cli.main as m\nargs = m.build_parser().parse_args(['serve'])\nargs.begin(args)"
    assert not {"torch", "transformers", "uvicorn"} & loaded_by(code, ROOT)


@pytest.mark.slow
def test_every_public_name_is_there_and_no_other() -> None:
    names = set(import_module("nanoinfer").__all__)
    found = subprocess.run(
        [sys.executable, "-c", "from nanoinfer import *\nimport nanoinfer\nprint(*dir(nanoinfer))\nnanoinfer.Nothing"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "AttributeError: module 'nanoinfer' has no attribute 'Nothing'" in found.stderr
    assert names <= set(found.stdout.split())
    for name in names:
        assert getattr(import_module("nanoinfer"), name).__module__.startswith("nanoinfer.")


# --- and the rules find what breaks them ----------------------------------------------------------------------------


def made_up(root: Path, files: Mapping[str, str]) -> Imports:
    """A package of these files (text by path), with an empty `__init__` in each folder that has none."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for path in [*root.rglob("*.py")]:
        for folder in (folder for folder in path.parents if folder.is_relative_to(root) and folder != root):
            (folder / "__init__.py").touch()
    return read_imports(root, *sorted(path.name for path in root.iterdir() if path.is_dir() and path.name != "tests"))


POOL = "class Pool: ..."


@pytest.mark.parametrize(
    ("rule", "files", "found"),
    [
        (
            circles_of_files,
            {
                "nanoinfer/cache/pool.py": "from nanoinfer.cache.tree import Tree\nclass Pool: ...",
                "nanoinfer/cache/tree.py": "def f():\n    import nanoinfer.cache.pool\nclass Tree: ...",
            },
            ["nanoinfer.cache.pool → nanoinfer.cache.tree → nanoinfer.cache.pool"],
        ),
        (
            circles_of_files,
            {
                "nanoinfer/trace/trace.py": "from typing import TYPE_CHECKING\n"
                "if TYPE_CHECKING:\n    from nanoinfer.trace.player import Player",
                "nanoinfer/trace/player.py": "from .trace import Trace",
            },
            ["nanoinfer.trace.player → nanoinfer.trace.trace → nanoinfer.trace.player"],
        ),
        (  # through names that an __init__ passes on, however often
            circles_of_files,
            {
                "nanoinfer/cache/pool.py": "import importlib\nimportlib.import_module('nanoinfer.batch')\nclass Pool: ...",
                "nanoinfer/cache/__init__.py": "from nanoinfer.cache.pool import Pool",
                "nanoinfer/__init__.py": "from nanoinfer.cache import Pool as ThePool",
                "nanoinfer/batch.py": "from nanoinfer import ThePool",
            },
            ["nanoinfer.cache.pool → nanoinfer.batch → nanoinfer.cache.pool"],
        ),
        (
            circles_of_rooms,
            {
                "nanoinfer/cache/pool.py": POOL,
                "nanoinfer/cache/tree.py": "from nanoinfer.model import llama",
                "nanoinfer/model/llama.py": "",
                "nanoinfer/model/runner.py": "from nanoinfer.cache.pool import Pool",
            },
            ["cache → model → cache"],
        ),
        (
            arrows_upwards,
            {"nanoinfer/viz/slots.py": "\nimport nanoinfer.trace.events", "nanoinfer/trace/events.py": ""},
            ["nanoinfer.viz.slots:2 imports nanoinfer.trace.events, which is above it"],
        ),
        (
            arrows_upwards,
            {
                "nanoinfer/__init__.py": "from nanoinfer.frontends.llm import LLM",
                "nanoinfer/frontends/llm.py": "class LLM: ...",
                "nanoinfer/scheduling/batch.py": "def f():\n    from nanoinfer import LLM",
            },
            ["nanoinfer.scheduling.batch:2 imports nanoinfer.frontends.llm, which is above it"],
        ),
        (
            config_on_models,
            {
                "nanoinfer/config.py": "import nanoinfer.registry",
                "nanoinfer/registry.py": "from nanoinfer.model.attention import base",
                "nanoinfer/model/attention/base.py": "",
            },
            ["nanoinfer.config needs nanoinfer.model.attention.base"],
        ),
        (
            checks_on_what_graders_leave_out,
            {
                "notebooks/course/checks/nb12.py": "def f():\n    from nanoinfer.bench.engines import SPEC",
                "nanoinfer/bench/engines.py": "SPEC = 1",
            },
            ["notebooks.course.checks needs nanoinfer.bench.engines"],
        ),
        (
            imports_of_tests,
            {"notebooks/build.py": "from tests.sync import sync", "tests/sync.py": "def sync(): ..."},
            ["notebooks.build:1 imports tests.sync"],
        ),
        (
            facades_of_others,
            {
                "nanoinfer/viz/__init__.py": "from nanoinfer.trace.recorder import record",
                "nanoinfer/trace/recorder.py": "def record(): ...",
            },
            ["nanoinfer.viz:1 imports nanoinfer.trace.recorder, which is not in its folder"],
        ),
        (
            facades_of_others,
            {
                "nanoinfer/trace/__init__.py": "from nanoinfer.trace.trace import Trace",
                "nanoinfer/trace/trace.py": "class Trace: ...",
                "nanoinfer/trace/final.py": "from nanoinfer.trace import Trace",
            },
            ["nanoinfer.trace.final:1 imports nanoinfer.trace, the __init__ of its own folder"],
        ),
    ],
)
def test_a_rule_finds_what_breaks_it(
    rule: Callable[[Imports], list[str]], files: dict[str, str], found: list[str], tmp_path: Path
) -> None:
    assert rule(made_up(tmp_path, files)) == found


def test_a_room_without_a_place_in_the_table_is_found(tmp_path: Path) -> None:
    imports = made_up(tmp_path, {"nanoinfer/garage/car.py": "", "nanoinfer/cli/main.py": ""})
    found = rooms_and_table_apart(imports)
    assert "garage: is not in the table ROOMS" in found
    assert "cache: in the table ROOMS, but there is no such room" in found
    assert not [line for line in found if line.startswith("cli:")]


def test_imports_downwards_and_side_by_side_break_no_rule(tmp_path: Path) -> None:
    files = {
        "nanoinfer/__init__.py": "from nanoinfer.engine.engine import Engine\nimport nanoinfer.device",
        "nanoinfer/device.py": "import os, torch",
        "nanoinfer/engine/stats.py": "class Meter: ...",
        "nanoinfer/engine/engine.py": "from .stats import Meter\nfrom ..cache import Pool\nclass Engine: ...",
        "nanoinfer/cache/__init__.py": "from .pool import Pool",
        "nanoinfer/cache/pool.py": POOL,
        "nanoinfer/cache/tree.py": "from .pool import Pool\nfrom . import pool",
    }
    imports = made_up(tmp_path, files)
    assert [str(arrow) for arrow in imports.arrows if arrow.importer == "nanoinfer.engine.engine"] == [
        "nanoinfer.engine.engine:1 imports nanoinfer.engine.stats",
        "nanoinfer.engine.engine:2 imports nanoinfer.cache.pool",
    ]
    for rule in (circles_of_files, circles_of_rooms, arrows_upwards, imports_of_tests, facades_of_others):
        assert not rule(imports)


def test_a_room_is_one_floor_above_the_highest_that_it_imports(tmp_path: Path) -> None:
    files = {
        "nanoinfer/cli/main.py": "import nanoinfer.bench.run, nanoinfer.cache.pool",
        "nanoinfer/bench/run.py": "def f():\n    import nanoinfer.cache.pool",
        "nanoinfer/cache/pool.py": POOL,
    }
    floors = floors_of(made_up(tmp_path, files))
    assert [floors[room] for room in ("cache", "bench", "cli")] == [1, 2, 3]


def test_what_a_package_loads_too_early_is_found(tmp_path: Path) -> None:
    files = {
        "nanoinfer/__init__.py": "import nanoinfer.frontends.llm",
        "nanoinfer/frontends/llm.py": "import tqdm.auto\nfrom ..kernels import cpp\ndef f():\n    import transformers",
        "nanoinfer/kernels/cpp.py": "",
        "tqdm/auto.py": "",
        "transformers/auto.py": "",
    }
    made_up(tmp_path, files)
    assert loaded_too_early(loaded_by("nanoinfer", tmp_path)) == ["nanoinfer.kernels.cpp", "tqdm", "tqdm.auto"]

"""Which file imports which: no circles, nothing upwards, nothing heavy before it is used.

The table below is the order of the packages: look at it before one of them imports another.
"""

import subprocess
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path

import pytest

from notebooks.tools.intact import is_left_out
from tests.helpers.imports import Imports, circles, loaded_by, read_imports

ROOT = Path(__file__).parent.parent.parent

# A package is a folder of nanoinfer/ or a module directly in it; `nanoinfer` is its __init__. Lowest first: a package may
# import those of the layers above its own in this table and its neighbours in the same layer, never those of a layer below.
LAYERS = (
    ("errors outputs device registry version", "what needs nothing else of the package"),
    ("keywords", "other engines' names for arguments"),
    ("config sampling_params", "what is asked for: the engine's settings, and a request's"),
    ("requests", "requests and their texts"),
    ("cache", "slots, rows, the radix tree and its tiers"),
    ("model", "from token ids to logits: kernels, layers, families, LoRA, tensor parallelism"),
    ("ascend sampling scheduler", "Ascend's interfaces; from logits to tokens; which requests are in the next pass"),
    ("speculative sessions", "several tokens per request from one pass; the first engines of the series"),
    ("engine", "the step: schedule, forward, sample, process; threads, deadlines and failures around it"),
    ("viz", "pictures, and what records a run"),
    ("llm", "a model and its engine in one object"),
    ("async_llm", "the same, for coroutines"),
    ("nanoinfer", "the public names"),
    ("server", "an engine behind HTTP"),
    ("cluster", "more than one engine"),
    ("bench", "measurements"),
    ("cli __main__", "the command line"),
)
# What using the public names must not load: it loads when it is used. (torch itself loads tqdm.)
LATER = (
    *("transformers", "tokenizers", "huggingface_hub", "jinja2", "llguidance", "tqdm", "matplotlib", "PIL", "IPython"),
    *("nanoinfer.model.kernels.cpp", "nanoinfer.model.kernels.build", "nanoinfer.model.attention.cpp"),
    *("nanoinfer.model.mistral", "nanoinfer.model.qwen", "nanoinfer.model.gemma3", "nanoinfer.model.phi3"),
    *("nanoinfer.model.parallel", "nanoinfer.viz", "nanoinfer.viz.trace"),
    *("nanoinfer.bench", "nanoinfer.cli", "nanoinfer.server", "nanoinfer.cluster"),
    *("fastapi", "uvicorn", "prometheus_client"),
)


# --- the rules: what breaks them, a line each -----------------------------------------------------------------------


def circles_of_files(imports: Imports) -> list[str]:
    return circles(imports.graph())


def package_of(module: str) -> str:
    return module.split(".")[1] if "." in module else module


def packages_of(imports: Imports) -> dict[str, set[str]]:
    """Package → the packages that it imports."""
    packages: dict[str, set[str]] = {}
    for importer, imported in imports.graph().items():
        packages.setdefault(package_of(importer), set()).update(
            {package_of(each) for each in imported} - {package_of(importer)}
        )
    return packages


def circles_of_packages(imports: Imports) -> list[str]:
    return circles(packages_of(imports))


def arrows_upwards(imports: Imports) -> list[str]:
    level = {package: i for i, (packages, _) in enumerate(LAYERS) for package in packages.split()}
    found = []
    for arrow in imports.arrows:
        importer, imported = package_of(arrow.importer), package_of(arrow.imported)
        if arrow.imported in imports.modules and level.get(imported, 0) > level.get(importer, len(LAYERS)):
            found.append(f"{arrow}, which is above it")
    return found


def packages_and_table_apart(imports: Imports) -> list[str]:
    packages, table = (
        {package_of(module) for module in imports.modules},
        " ".join(packages for packages, _ in LAYERS).split(),
    )
    return [
        *(f"{package}: is not in the table LAYERS" for package in sorted(packages - set(table))),
        *(
            f"{package}: in the table LAYERS, but there is no such package"
            for package in table
            if package not in packages
        ),
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
        circles_of_packages,
        packages_and_table_apart,
        arrows_upwards,
        config_on_models,
        imports_of_tests,
    ],
)
def test_the_package_keeps_the_rule(package: Imports, rule: Callable[[Imports], list[str]]) -> None:
    broken = rule(package)
    assert not broken, "\n".join(broken)


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
    loaded = loaded_by("nanoinfer.llm, nanoinfer.async_llm", ROOT, after="torch")
    assert {"nanoinfer.engine.engine", "nanoinfer.model.loader"} <= loaded
    early = loaded_too_early(loaded)
    assert not early, f"import nanoinfer loads {', '.join(early)}"


@pytest.mark.slow
def test_a_first_answer_loads_neither_torchs_compiler_nor_the_model_classes_of_transformers() -> None:
    """Each takes about a second: torch's when something is defined for it, transformers' with a configuration's class."""
    code = "nanoinfer as n\nn.LLM('story').generate('x', n.SamplingParams(max_new_tokens=3))"
    loaded = loaded_by(code, ROOT, after="torch")
    assert "nanoinfer.model.graph_runner" in loaded
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

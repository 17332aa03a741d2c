"""Does the quick tests notice when a line of the engine is wrong? `python -m tests.mutations --count 60`.

Each trial changes one place of one file (a comparison, a sum, a condition, a number, a call that is left out) in a copy of
the repository and runs the quick tests there until the first failure: the unit tests first, since they find most. The tests
of the notebooks are left out, because they compare the package's text, which any change changes. What survives is printed
with its line; some of it cannot be noticed, because the changed line means the same. The trials follow from `--seed`;
`--state FILE` keeps what is known, so that the same command goes on where it was stopped.
"""

import argparse
import ast
import contextlib
import copy
import importlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FILES = ("nanoinfer/engine", "nanoinfer/scheduler", "nanoinfer/cache", "nanoinfer/sampling")
COPIED = (
    "nanoinfer",
    "notebooks",
    "tests",
    "data",
    "pyproject.toml",
    "requirements.txt",
    "README.md",
    "LICENSE",
    ".ci",
)
# What is most likely to notice comes first: the unit tests of the changed folder, then these, and then all that is left.
UNITS = [f"tests/unit/{name}" for name in ("engine", "scheduler", "cache", "sampling")]
WHOLE = ["tests/property", "tests/threads", "tests/families", "tests/numerics"]
REST = ["tests", *(f"--ignore={place}" for place in (*UNITS, *WHOLE, "tests/notebooks"))]
LOADED = (
    "pytest",
    "hypothesis",
    "torch",
    "transformers",
    "peft",
    "safetensors.torch",
    "llguidance",
    "jsonschema",
    "matplotlib",
)
UNCHANGED = "nothing"
HANG_S = 1200.0  # a mutant that loops for ever is noticed by this
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult, ast.Mod: ast.Add,
}  # fmt: skip


class Mutation(NamedTuple):
    """One changed place: the file, the line's number, the line as it was and the text of the whole changed file."""

    file: str
    line: int
    what: str
    text: str


def mutants_of(node: ast.AST) -> Iterator[ast.AST]:
    """What could stand in the place of a node, each wrong in one thing."""
    changed = copy.deepcopy(node)
    if isinstance(changed, ast.Compare) and type(changed.ops[0]) in COMPARISONS:
        changed.ops[0] = COMPARISONS[type(changed.ops[0])]()
        yield changed
    elif isinstance(changed, ast.BinOp | ast.AugAssign) and type(changed.op) in OPERATORS:
        changed.op = OPERATORS[type(changed.op)]()
        yield changed
    elif isinstance(changed, ast.BoolOp):
        changed.op = ast.Or() if isinstance(changed.op, ast.And) else ast.And()
        yield changed
    elif isinstance(changed, ast.If | ast.IfExp | ast.While):
        changed.test = ast.UnaryOp(ast.Not(), changed.test)
        yield changed
    elif isinstance(changed, ast.Constant) and type(changed.value) in (int, bool):
        changed.value = not changed.value if isinstance(changed.value, bool) else changed.value + 1
        yield changed
    elif isinstance(changed, ast.Expr) and isinstance(changed.value, ast.Call):
        yield ast.Pass()


def mutations_of(path: Path) -> list[Mutation]:
    """All single-place mutations of what the functions of a file do."""
    source = path.read_text()
    lines, found = source.splitlines(keepends=True), []
    tree = ast.parse(source)
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for statement in function.body:
            for node in ast.walk(statement):
                end = getattr(node, "end_lineno", None)
                if end is None or (node.lineno != end and not isinstance(node, ast.If | ast.While)):
                    continue
                for mutant in mutants_of(node):
                    target = (node.test, mutant.test) if isinstance(mutant, ast.If | ast.While) else (node, mutant)
                    if target[0].lineno != target[0].end_lineno:
                        continue
                    row, text = _replaced(lines, target[0], ast.unparse(ast.fix_missing_locations(target[1])))
                    what = f"{lines[row].strip()}  ->  {text.strip()}"
                    changed = "".join([*lines[:row], text, *lines[row + 1 :]])
                    found.append(Mutation(str(path.relative_to(ROOT)), row + 1, what, changed))
    return list({(mutation.line, mutation.text): mutation for mutation in found}.values())


def _replaced(lines: list[str], node: ast.AST, text: str) -> tuple[int, str]:
    """The row of a node and the line with `text` in its place. Offsets of syntax trees count bytes."""
    row = node.lineno - 1
    line = lines[row].encode()
    parenthesized = text if isinstance(node, ast.Expr | ast.Constant | ast.AugAssign) else f"({text})"
    return row, (line[: node.col_offset] + parenthesized.encode() + line[node.end_col_offset :]).decode()


def chosen(count: int, seed: int, paths: list[str]) -> list[Mutation]:
    """So many mutations, spread over the files by how many each allows."""
    files = [file for path in paths for file in (sorted((ROOT / path).rglob("*.py")) or [ROOT / path])]
    return random.Random(seed).sample([mutation for file in files for mutation in mutations_of(file)], count)


def killed_by(mutation: Mutation, copied: Path) -> str | None:
    """What failed first with this mutation; None when the quick tests passes."""
    target = copied / mutation.file
    kept = target.read_text()
    target.write_text(mutation.text)
    folder = f"tests/unit/{Path(mutation.file).parts[1]}"
    try:
        for paths in ([folder], [unit for unit in UNITS if unit != folder], WHOLE, REST):
            if (noticed := failure(paths, copied)) is not None:
                return noticed
        return None
    finally:
        target.write_text(kept)


def failure(places: list[str], copied: Path) -> str | None:
    """The first failure of these tests in a process of its own; None when all pass."""
    said = copied / "said.txt"
    child = os.fork()
    if child == 0:
        os.setsid()
        with said.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            _enter(copied)
            code = 70
            with contextlib.suppress(BaseException):
                import pytest

                code = int(pytest.main(["-x", "-p", "no:cacheprovider", "--tb=no", *places]))
            sys.stdout.flush()
            os._exit(code)
    end = time.monotonic() + HANG_S
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > end:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "it hangs"
        time.sleep(0.05)
    status = ended[1]
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what it may have started
    if status == 0:
        return None
    lines = said.read_text(errors="replace").splitlines()
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return (failed or [f"ended with {status}: {' '.join(lines[-1:])}"])[0][:140]


def _enter(copied: Path) -> None:
    """From now on, what this process and those that it starts import of ours comes from the copy."""
    os.chdir(copied)
    os.environ["PYTHONPATH"] = str(copied)
    sys.path[:] = [str(copied), *(path for path in sys.path if Path(path or copied).resolve() != ROOT)]
    for name in [name for name in sys.modules if name.split(".")[0] in ("nanoinfer", "notebooks", "tests")]:
        del sys.modules[name]


def try_out(job: tuple[str, Mutation | None, Path]) -> tuple[str, str | None]:
    """In a process of the pool, which has a copy of its own below the folder: the name, and what noticed the mutation. For
    None, what fails in the copy as it is."""
    name, mutation, folder = job
    copied = folder / str(os.getpid())
    if not copied.is_dir():
        copied.mkdir()
        for part in COPIED:
            source, target = ROOT / part, copied / part
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, target, ignore=ignored) if source.is_dir() else shutil.copy(source, target)
    return name, failure(UNITS, copied) if mutation is None else killed_by(mutation, copied)


def main(argv: list[str] | None = None) -> int:
    """Try the mutations; 1 when fewer than `--at-least` of them were noticed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=60, help="of mutations")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument("--places", nargs="+", default=list(FILES), help="files and folders to change")
    parser.add_argument("--processes", type=int, default=2, help="trials at a time")
    parser.add_argument("--at-least", type=float, default=0.92, help="share that must be noticed")
    parser.add_argument("--state", type=Path, help="file to keep what is known in")
    args = parser.parse_args(argv)
    known: dict[str, str | None] = json.loads(args.state.read_text()) if args.state and args.state.is_file() else {}
    for module in LOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    mutations = {f"{each.file}:{each.line}: {each.what}": each for each in chosen(args.count, args.seed, args.places)}
    with (
        tempfile.TemporaryDirectory(prefix="mutations-", ignore_cleanup_errors=True) as folder,
        multiprocessing.get_context("fork").Pool(args.processes) as pool,
    ):
        jobs: list[Any] = [(UNCHANGED, None, Path(folder))]
        jobs += [(name, mutation, Path(folder)) for name, mutation in mutations.items() if name not in known]
        for number, (name, verdict) in enumerate(pool.imap_unordered(try_out, jobs)):
            if name == UNCHANGED:
                if verdict is not None:
                    print(f"tests fail although nothing is changed: {verdict}")
                    return 2
                continue
            known[name] = verdict
            if args.state:
                args.state.write_text(json.dumps(known, indent=1))
            print(f"{number:3} {'noticed ' if verdict else 'SURVIVED'} {name}\n      {verdict or ''}", flush=True)
    noticed = sum(verdict is not None for verdict in known.values())
    print(f"{noticed} of {len(known)} noticed: {noticed / len(known):.0%}")
    return 0 if noticed >= args.at_least * len(known) else 1


if __name__ == "__main__":
    sys.exit(main())

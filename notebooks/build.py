"""Make the notebooks from their sources: `python -m notebooks.build [05 08_radix_cache demos/...]`, without names all.

A notebook with exercises is written in `solutions/`; one without is its own source. A build refreshes the package cells,
clears the solutions into the student's notebook, runs that in a fresh kernel and keeps the outputs, in a form in which a
second build changes nothing but the outputs of cells tagged `nbval-ignore-output`.

`--text` runs nothing and takes seconds: it refreshes the package cells in the source and in the student's notebook, and
keeps their outputs. It is enough after a change to the package that changes no output, such as a docstring or a new method.
"""

import argparse
import ast
import copy
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from notebooks.sync import REFRESH, sync
from notebooks.tools.files import ROOT, as_text, read, source_of, sources, tags, write
from notebooks.tools.package_cells import marked_path
from notebooks.tools.student import NotebookError, student_notebook
from notebooks.tools.tidy import clear_outputs, output_problems, tidy, tidy_outputs

RUN = "python -m notebooks.build"
CELL_SECONDS = 120  # for one cell; a whole notebook should take less than 60


def built_path(source: Path, root: Path = ROOT) -> Path:
    """Where the notebook made from `source` lies: for one without exercises, that is `source`."""
    return root / "notebooks" / source.name if source.parent.name == "solutions" else source


def build(source: Path, root: Path = ROOT, *, timeout: int = CELL_SECONDS) -> Path:
    """Build one notebook from `source`; refreshes the package cells of `source`, too. Returns the path that was written.

    Raises NotebookError, with nothing written but refreshed package cells, when the notebook is inconsistent, a cell
    fails or an output must not be committed.
    """
    name, target = source.stem, built_path(source, root)
    notebook = _student(source, root)
    clear_outputs(notebook)
    notebook = execute(notebook, name, target.parent, root, timeout)
    tidy_outputs(notebook)
    if problems := output_problems(notebook, name):
        raise NotebookError("\n".join(problems))
    write(target, notebook)
    return target


def refresh_text(source: Path, root: Path = ROOT) -> tuple[Path, bool, list[str]]:
    """Bring the text of one notebook up to date in `source` and in what is built from it, running nothing.

    Outputs stay where they are, those of package cells that changed included. Returns the path that was built, whether
    anything was written, and a message per cell that has to be run: one whose code is another than its output came from.
    Raises NotebookError, with at most package cells refreshed, when the notebook is inconsistent.
    """
    target = built_path(source, root)
    before = [path.read_bytes() if path.is_file() else b"" for path in (source, target)]
    notebook = _student(source, root)
    old = read(target)["cells"] if target.is_file() else []
    stale = []
    for number, cell in enumerate(notebook["cells"], 1):
        if cell["cell_type"] != "code":
            continue
        there = old[number - 1] if number <= len(old) else {}
        if same_code(there, cell):
            cell.update(outputs=there["outputs"], execution_count=there["execution_count"])
        else:
            cell.update(outputs=[], execution_count=None)
            stale.append(f"{target.name}, cell {number}: its code is new; run it: {RUN} {source.stem}")
    write(target, notebook)
    return target, before != [path.read_bytes() for path in (source, target)], stale


def same_code(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Whether a cell prints what another did: package cells do, which only define things, and code that differs in comments
    and layout alone."""
    if old.get("cell_type") != "code":
        return False
    first, second = source_of(old), source_of(new)
    marks = [marked_path(source) is not None for source in (first, second)]
    try:
        return all(marks) if any(marks) else ast.dump(ast.parse(first)) == ast.dump(ast.parse(second))
    except SyntaxError:  # not Python alone: `%timeit`, `!ls`
        return first == second


def _student(source: Path, root: Path) -> dict[str, Any]:
    """The notebook built from `source`, whose package cells are refreshed on the way, without new outputs."""
    old_text, name = source.read_text(encoding="utf-8"), source.stem
    notebook = read(source)
    broken = sync(notebook, name, root).broken
    tidy(notebook)
    if broken:
        if as_text(notebook) != old_text:
            write(source, notebook)
        raise NotebookError("\n".join(broken))
    if built_path(source, root) != source:
        clear_outputs(notebook)
        if as_text(notebook) != old_text:
            write(source, notebook)
        notebook = student_notebook(notebook, name)
    return notebook


def check(source: Path, root: Path = ROOT) -> list[str]:
    """What is out of date in the notebook built from `source`, and the command that mends it; nothing is run."""
    target, again = built_path(source, root), f"{RUN} {source.stem}"
    if not target.is_file():
        return [f"{target.name}: has not been built from {source.parent.name}/{source.name}: {again}"]
    notebook = read(source)
    sync(notebook, source.stem, root)
    tidy(notebook)
    if target != source:
        notebook = student_notebook(notebook, source.stem)
    there, wanted = read(target)["cells"], notebook["cells"]
    if len(there) != len(wanted):
        return [f"{target.name}: has {len(there)} cells instead of {len(wanted)}: {again}"]
    return [
        f"{target.name}, cell {i}: is not what its source gives: {REFRESH if same_code(mine, theirs) else again}"
        for i, (mine, theirs) in enumerate(zip(there, wanted, strict=True), 1)
        if any(of(mine) != of(theirs) for of in (lambda cell: cell["cell_type"], source_of, tags))
    ]


def execute(notebook: dict[str, Any], name: str, folder: Path, root: Path, timeout: int) -> dict[str, Any]:
    """Run a notebook in a fresh kernel with working directory `folder`; the notebook with its outputs.

    Raises NotebookError that names the cell when one raises without the tag `raises-exception`, or takes too long.
    """
    import nbformat
    from jupyter_client.kernelspec import KernelSpecManager
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    executed = nbformat.reads(as_text(notebook), as_version=4)
    client = NotebookClient(executed, timeout=timeout, kernel_name="python3", resources={"metadata": {"path": folder}})
    client.startup_timeout = max(timeout, client.startup_timeout)  # a busy machine may need as long to start a kernel
    client.iopub_timeout = max(timeout, client.iopub_timeout)  # and to pass on its last output
    # This Python's kernel, whatever else is installed as "python3".
    client.create_kernel_manager().kernel_spec_manager = KernelSpecManager(kernel_dirs=[])
    client.extra_arguments = ["--log-level=ERROR"]  # of the kernel, whose log goes to this process's stderr
    running = 0

    def note(cell: Any, cell_index: int) -> None:
        nonlocal running
        running = cell_index + 1

    client.on_cell_start = note
    try:
        with tempfile.TemporaryDirectory(prefix="kernel-", ignore_cleanup_errors=True) as settings:
            client.execute(env=kernel_environment(root, settings))
    except CellExecutionError as error:
        raise NotebookError(
            f"{name}, cell {running}: raises {error.ename}: {error.evalue}\n{error.traceback}"
        ) from None
    except CellTimeoutError:
        raise NotebookError(f"{name}, cell {running}: took more than {timeout} s") from None
    except DeadKernelError:
        raise NotebookError(f"{name}, cell {running}: its kernel died") from None
    result: dict[str, Any] = copy.deepcopy(notebook)
    for cell, done in zip(result["cells"], executed["cells"], strict=True):
        if cell["cell_type"] == "code":
            cell["outputs"] = json.loads(json.dumps(done["outputs"]))  # as plain dictionaries
    return result


def kernel_environment(root: Path, folder: str) -> dict[str, str]:
    """This process's environment, with nanoinfer from the checkout and nothing from the network; with `folder`, which may
    be empty, in place of the user's configuration of IPython and Jupyter and their kernels.

    Without ipywidgets, importing transformers warns that progress bars will be plain text: that is not for the reader.
    """
    path = os.pathsep.join(part for part in (str(root), os.environ.get("PYTHONPATH")) if part)
    environment = {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore:IProgress not found"}
    folders = dict.fromkeys(("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_PATH"), folder)
    return {**os.environ, **environment, **folders}


def selected(names: list[str], root: Path = ROOT) -> list[Path]:
    """The sources that `names` mean: "05", "05_memory_pools", "demos/few_shot" or a path. ValueError for others."""
    everything = sources(root)
    if not names:
        return everything
    chosen = []
    for name in names:
        stem = Path(name).stem
        found = [path for path in everything if path.stem == stem or path.stem.partition("_")[0] == stem]
        if not found:
            there = ", ".join(path.stem for path in everything) or "none"
            raise ValueError(f"there is no notebook {name!r}: there are {there}")
        chosen += [path for path in found if path not in chosen]
    return chosen


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m notebooks.build", description=__doc__.split("\n", 1)[0])
    parser.add_argument("names", nargs="*", help="05, 05_memory_pools, demos/few_shot; without any: all")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--text", action="store_true", help="run nothing: refresh the text, keep the outputs (seconds)")
    what.add_argument("--check", action="store_true", help="change nothing; fail when a notebook is out of date")
    parser.add_argument("--timeout", type=int, default=CELL_SECONDS, metavar="S", help="seconds per cell (%(default)s)")
    options = parser.parse_args(arguments)
    try:
        chosen = selected(options.names)
    except ValueError as error:
        parser.error(str(error))
    failed = False
    for source in chosen:
        begin, problems = time.monotonic(), list[str]()
        try:
            if options.check:
                problems = check(source)
            elif options.text:
                target, changed, problems = refresh_text(source)
                print(f"{target.relative_to(ROOT)}: {'refreshed' if changed else 'up to date'}")
            else:
                target = build(source, timeout=options.timeout)
                print(f"{target.relative_to(ROOT)}: {time.monotonic() - begin:.0f} s")
        except (NotebookError, ValueError) as error:
            problems = [str(error)]
        for problem in problems:
            print(problem, file=sys.stderr)
        failed |= bool(problems)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

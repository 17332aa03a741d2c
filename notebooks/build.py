"""Make the notebooks from their sources: `python -m notebooks.build [04 07_radix_cache demos/...]`, without names all.

A notebook with exercises is written in `solutions/`; one without is its own source. A build refreshes the package cells,
clears the solutions into the student's notebook, runs that in a fresh kernel and keeps the outputs, in a form in which a
second build changes nothing but the outputs of cells tagged `nbval-ignore-output`.
"""

import argparse
import copy
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from notebooks.tools.student import NotebookError, student_notebook, tags
from notebooks.tools.tidy import clear_outputs, output_problems, tidy, tidy_outputs
from tests.notebook_sync import ROOT, as_text, read, source_of, sources, sync, write

CELL_SECONDS = 120  # for one cell; a whole notebook should take less than 60


def built_path(source: Path, root: Path = ROOT) -> Path:
    """Where the notebook made from `source` lies: for one without exercises, that is `source`."""
    return root / "notebooks" / source.name if source.parent.name == "solutions" else source


def build(source: Path, root: Path = ROOT, *, run: bool = True, timeout: int = CELL_SECONDS) -> Path:
    """Build one notebook from `source`; refreshes the package cells of `source`, too. Returns the path that was written.

    With `run=False` cells whose text is as it was keep their outputs. Raises NotebookError, with nothing written but
    refreshed package cells, when the notebook is inconsistent, a cell fails or an output must not be committed.
    """
    name = source.stem
    old_text = source.read_text(encoding="utf-8")
    target = built_path(source, root)
    notebook = read(source)
    problems = [problem for problem in sync(notebook, name, root)[0] if "\n" not in problem]
    if problems:
        raise NotebookError("\n".join(problems))
    tidy(notebook)
    if target != source:
        clear_outputs(notebook)
        if as_text(notebook) != old_text:
            write(source, notebook)
        notebook = student_notebook(notebook, name)
    if run:
        clear_outputs(notebook)
        notebook = execute(notebook, name, target.parent, root, timeout)
        tidy_outputs(notebook)
        if problems := output_problems(notebook, name):
            raise NotebookError("\n".join(problems))
    elif target.is_file():
        _keep_outputs(notebook, read(target))
    write(target, notebook)
    return target


def expected(source: Path, root: Path = ROOT) -> list[tuple[str, str, list[str]]]:
    """Kind, text and tags of every cell that the notebook built from `source` must have."""
    notebook = read(source)
    sync(notebook, source.stem, root)
    tidy(notebook)
    if built_path(source, root) != source:
        notebook = student_notebook(notebook, source.stem)
    return cells_of(notebook)


def cells_of(notebook: dict[str, Any]) -> list[tuple[str, str, list[str]]]:
    """Kind, text and tags of every cell."""
    return [(cell["cell_type"], source_of(cell), tags(cell)) for cell in notebook["cells"]]


def check(source: Path, root: Path = ROOT) -> list[str]:
    """What is out of date in the notebook built from `source`; nothing is run."""
    target = built_path(source, root)
    if not target.is_file():
        return [f"{target.name}: has not been built from {source.parent.name}/{source.name}"]
    there, wanted = cells_of(read(target)), expected(source, root)
    if len(there) != len(wanted):
        return [f"{target.name}: has {len(there)} cells instead of {len(wanted)}: build it again"]
    return [
        f"{target.name}, cell {i}: is not what its source gives: build it again"
        for i, (mine, theirs) in enumerate(zip(there, wanted, strict=True), 1)
        if mine != theirs
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
    # This Python's kernel, whatever else is installed as "python3".
    client.create_kernel_manager().kernel_spec_manager = KernelSpecManager(kernel_dirs=[])
    client.extra_arguments = ["--log-level=ERROR"]  # of the kernel, whose log goes to this process's stderr
    running = 0

    def note(cell: Any, cell_index: int) -> None:
        nonlocal running
        running = cell_index + 1

    client.on_cell_start = note
    try:
        with tempfile.TemporaryDirectory(prefix="kernel-", ignore_cleanup_errors=True) as own:
            client.execute(env=kernel_environment(root, own))
    except CellExecutionError as error:
        raise NotebookError(
            f"{name}, cell {running}: raises {error.ename}: {error.evalue}\n{error.traceback}"
        ) from None
    except CellTimeoutError:
        raise NotebookError(f"{name}, cell {running}: took more than {timeout} s") from None
    except DeadKernelError:
        raise NotebookError(f"{name}, cell {running}: its kernel died") from None
    result: dict[str, Any] = copy.deepcopy(dict(notebook))
    for cell, done in zip(result["cells"], executed["cells"], strict=True):
        if cell["cell_type"] == "code":
            cell["outputs"] = [_plain(output) for output in done["outputs"]]
    return result


def kernel_environment(root: Path, folder: str | None = None) -> dict[str, str]:
    """This process's environment, with nanoinfer from the checkout and nothing from the network; with `folder`, which may
    be empty, in place of the user's configuration of IPython and Jupyter and their kernels.

    Without ipywidgets, importing transformers warns that progress bars will be plain text: that is not for the reader.
    """
    path = os.pathsep.join(part for part in (str(root), os.environ.get("PYTHONPATH")) if part)
    own = {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore:IProgress not found"}
    if folder is not None:
        own |= dict.fromkeys(("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_PATH"), folder)
    return {**os.environ, **own}


def selected(names: list[str], root: Path = ROOT) -> list[Path]:
    """The sources that `names` mean: "04", "04_memory_pools", "demos/few_shot" or a path. ValueError for others."""
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


def _plain(value: Any) -> Any:
    """nbformat's dictionaries as plain ones."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _keep_outputs(notebook: dict[str, Any], old: dict[str, Any]) -> None:
    outputs = {source_of(cell): cell for cell in old["cells"] if cell["cell_type"] == "code"}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            before = outputs.get(source_of(cell), {"outputs": [], "execution_count": None})
            cell.update(outputs=before["outputs"], execution_count=before["execution_count"])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m notebooks.build", description=__doc__.split("\n", 1)[0])
    parser.add_argument("names", nargs="*", help="04, 04_memory_pools, demos/few_shot; without any: all")
    parser.add_argument("--no-run", action="store_true", help="make the files, run nothing")
    parser.add_argument("--check", action="store_true", help="change nothing; fail when a notebook is out of date")
    parser.add_argument(
        "--timeout", type=int, default=CELL_SECONDS, metavar="S", help="seconds for a cell (%(default)s)"
    )
    options = parser.parse_args(arguments)
    try:
        chosen = selected(options.names)
    except ValueError as error:
        parser.error(str(error))
    failed = False
    for source in chosen:
        begin = time.monotonic()
        try:
            if options.check:
                problems = check(source)
                print("\n".join(problems), file=sys.stderr, end="\n" * bool(problems))
                failed |= bool(problems)
            else:
                target = build(source, run=not options.no_run, timeout=options.timeout)
                print(f"{target.relative_to(ROOT)}: {time.monotonic() - begin:.0f} s")
        except (NotebookError, ValueError) as error:
            print(error, file=sys.stderr)
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

"""Package cells of the notebooks are the package's text: `python -m notebooks.sync [--write] [--coverage] [files]`.

A cell whose first line is `# in nanoinfer/cache/radix_cache.py` holds definitions of that file, letter for letter:
functions, classes, constants, calls like `SCHEDULE_POLICIES.update(...)`, or methods under `@extend(RadixCache)`. A class
may be shown with some of its methods only. A cell that shows all of `Name` carries the tag `whole-Name`, which this tool
adds: methods that the class gains later then appear in the cell by themselves. The file may also be one of the course:
`# in notebooks/course/regular_expression.py`.

Without options: fails on drift, with a diff. `--write` fills in the text of the sources; the names alone are enough, and
bodies may be `...` (`class Name: ...` is the whole class; a class with nothing but a docstring is its header, docstring and
fields). `python -m notebooks.build --text` does the same and carries it on into the students' notebooks.
`--coverage`: every public definition of CORE is shown somewhere, or NOT_TAUGHT says why not.
"""

import argparse
import difflib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from notebooks.tools.files import ROOT, add_tag, read, set_source, source_of, sources, tags, write
from notebooks.tools.moved import files_defining, files_with_method, follow_imports
from notebooks.tools.package_cells import Cell, CellError, Module, marked_path, package_cell

# What the notebooks show between them: files, and folders with all their files.
CORE = [
    "nanoinfer/cache",
    "nanoinfer/model/attention/base.py",
    "nanoinfer/model/attention/torch_native.py",
    "nanoinfer/model/input_metadata.py",
    "nanoinfer/model/metadata_checks.py",
    "nanoinfer/model/layers/radix_attention.py",
    "nanoinfer/model/model_runner.py",
    "nanoinfer/scheduling",
    "nanoinfer/sessions/inference.py",
    "nanoinfer/sessions/offline_scheduler.py",
]

# Why no notebook shows a file ("nanoinfer/cache/kv_storage.py"), a class with its methods
# ("nanoinfer/cache/radix_cache.py:RadixCache") or a definition ("nanoinfer/cache/radix_cache.py:RadixCache.reset").
NOT_TAUGHT: dict[str, str] = {
    "nanoinfer/scheduling/batch.py:only_likeliest": "lets a captured pass leave out logits that no request looks at",
    "nanoinfer/cache/block_events.py": "for other machines: what they are told of a tree",
    "nanoinfer/cache/block_feed.py": "for other machines: what they are told of a tree, numbered",
    "nanoinfer/cache/kv_storage.py:Int8KVStorage": "another KVStorage: 12 shows what 8 bits cost, with weights",
    "nanoinfer/cache/memory_pool.py:TokenToKVPool.hand_to_tree": "passes on to SlotAllocator.hand_to_tree, which 09 shows",
    "nanoinfer/cache/radix_cache.py:RadixCache.evict_keys": "an eviction whose order does not matter",
    "nanoinfer/model/model_runner.py:ModelRunner.broken": "only a runner whose model is split over processes can break",
    "nanoinfer/model/model_runner.py:ModelRunner.close": "the same: only such a runner has something to end",
    "nanoinfer/cache/checks.py:first_wrong": "finds the words of an error message",
    "nanoinfer/sessions/inference.py:InferenceSession.params": "makes SamplingParams of a session's own settings",
    "nanoinfer/scheduling/adapter_turns.py:FetchTurns": "AdapterTurns, which 13 shows, for K/V that is read from files",
    "nanoinfer/scheduling/multi_step.py": "an option: several decode passes between two visits to the scheduler",
    "nanoinfer/cache/tree_blocks.py": "for other machines: cuts the tree into blocks of equal size",
    "nanoinfer/cache/tree_observer.py": "for whoever listens: the tree is the same without it",
}

REFRESH = "python -m notebooks.build --text"


@dataclass
class Synced:
    """What came of syncing one notebook: `refreshed`, a message with a diff per cell that differed from the package and
    has been changed; `broken`, a message per cell that a person has to change; `shown`, what its cells show."""

    refreshed: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    shown: set[str] = field(default_factory=set)


def sync(notebook: dict[str, Any], name: str, root: Path) -> Synced:
    """Refresh the package cells of `notebook`, in place, and say what differed.

    A cell whose definitions have all moved to one other file gets that file's mark, and imports follow what they import.
    A cell that asks for something the package does not have stays as it is.
    """
    result = Synced()
    for number, cell in enumerate(notebook["cells"], 1):
        if cell["cell_type"] != "code":
            continue
        source, here = source_of(cell), f"{name}, cell {number}"
        whole = {tag.removeprefix("whole-") for tag in tags(cell) if tag.startswith("whole-")}
        try:
            wanted = _wanted(source, root, whole)
        except CellError as error:
            result.broken.append(f"{here}: {error}")
            continue
        if wanted is None:
            text, problems = follow_imports(source, "nanoinfer", root)
            result.broken += [f"{here}: {problem}" for problem in problems]
            if text != source:
                result.refreshed.append(
                    f"{here}: imports from where definitions were\n" + _diff(source, text, here, "now")
                )
                set_source(cell, text)
            continue
        for shown in sorted(wanted.whole):
            add_tag(cell, f"whole-{shown}")
        result.shown |= {f"{wanted.path}:{definition}" for definition in wanted.shown}
        if wanted.text != source:
            what = ", ".join(sorted(wanted.shown)) or "text"
            diff = _diff(source, wanted.text, here, wanted.path)
            result.refreshed.append(f"{here}: {what} differs from {wanted.path}\n{diff}")
            set_source(cell, wanted.text)
    return result


def _diff(old: str, new: str, old_name: str, new_name: str) -> str:
    return "\n".join(difflib.unified_diff(old.splitlines(), new.splitlines(), old_name, new_name, n=2, lineterm=""))


def _wanted(source: str, root: Path, whole: set[str]) -> Cell | None:
    """What a cell should be, marked with another file if everything it shows has moved there. CellError where the
    package does not have it, saying what to do."""
    try:
        return package_cell(source, root, whole)
    except CellError as error:
        path = marked_path(source)
        if path is None or error.missing is None:
            raise
        package = path.partition("/")[0]
        cls, _, method = error.missing.partition(".")
        if method:
            files = files_with_method(method, package, root)
            other = f", and {' and '.join(files)} a method {method}" if files else ""
            there = ", ".join(name.partition(".")[2] for name in sorted(Module.of(path, root).methods(cls)))
            raise CellError(f"{error}: take it out, or show another in its place ({cls} has {there}{other})") from None
        elsewhere = [file for file in files_defining(error.missing, package, root) if file != path]
        moved = []
        for file in elsewhere:
            try:
                moved.append(package_cell(source.replace(path, file, 1), root, whole))
            except CellError:
                continue
        if len(moved) == 1:
            return moved[0]
        if not elsewhere:
            hint = f"no file of {package}/ defines {error.missing}: rename it in the cell, or take it out"
        elif moved:
            hint = f"it is in {' and '.join(elsewhere)}: mark the cell with the one you mean"
        else:
            hint = f"it is in {' and '.join(elsewhere)}, and the rest of the cell is not: make that a cell of its own"
        raise CellError(f"{error}; {hint}") from None


def files_of(path: str, root: Path) -> list[str]:
    """`path` itself, or the files of a folder; none where it is not there."""
    place = root / path
    files = sorted(place.glob("*.py")) if place.is_dir() else [place] if place.is_file() else []
    return [str(file.relative_to(root)) for file in files]


def public_names(path: str, root: Path) -> set[str]:
    """Public functions, classes and methods of a file, as "RadixCache" and "RadixCache.match_prefix"."""
    return Module.of(path, root).public()


def coverage(shown: set[str], core: Sequence[str], not_taught: dict[str, str], root: Path) -> list[str]:
    """What is neither shown nor excused, and excuses that are none: one message each, which says what to do."""
    files = [file for path in core for file in files_of(path, root)]
    public = {f"{path}:{name}" for path in files for name in public_names(path, root)}
    excused = set(not_taught)
    unshown = {name for name in public - shown if not _parents(name) & excused}
    return (
        [f"{path}: no such file, but CORE in notebooks/sync.py names it" for path in core if not (root / path).exists()]
        + [f"{name}: {_how_to_show(name)}" for name in sorted(unshown)]
        + [f"{name}: NOT_TAUGHT excuses it, but a notebook shows it" for name in sorted(excused & shown)]
        + [
            f"{name}: NOT_TAUGHT excuses it, but it is no public definition"
            for name in sorted(excused - public - set(files))
        ]
        + [f"{name}: NOT_TAUGHT gives no reason" for name in sorted(excused) if not not_taught[name].strip()]
    )


def _parents(name: str) -> set[str]:
    """ "a.py:Box.add" → itself, "a.py:Box" and "a.py"."""
    path, _, definition = name.partition(":")
    return {name, f"{path}:{definition.partition('.')[0]}", path}


def _how_to_show(name: str) -> str:
    path, _, definition = name.partition(":")
    cls, dot, method = definition.partition(".")
    if dot:
        line = f"`@extend({cls})` and `def {method}(self): ...` (or name it in the cell that shows class {cls})"
    else:
        line = f"`class {definition}: ...`" if definition[0].isupper() else f"`def {definition}(): ...`"
    return (
        f"no notebook shows it. Either add a cell with the first line `# in {path}`, below it {line}, and run "
        f"`{REFRESH}`; or say in NOT_TAUGHT (notebooks/sync.py) why no notebook needs to"
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m notebooks.sync", description=__doc__.split("\n", 1)[0])
    parser.add_argument("files", nargs="*", type=Path, help="notebooks; without any: all that people write")
    parser.add_argument("--write", action="store_true", help="fill in the package's text instead of failing")
    parser.add_argument("--coverage", action="store_true", help="also: every public definition is shown or excused")
    options = parser.parse_args(arguments)
    problems, shown, drift = list[str](), set[str](), False
    for path in options.files or sources(ROOT):
        name = str(path.resolve().relative_to(ROOT)) if path.resolve().is_relative_to(ROOT) else str(path)
        try:
            notebook = read(path)
        except (OSError, ValueError) as error:
            problems.append(str(error))
            continue
        result = sync(notebook, name, ROOT)
        shown |= result.shown
        problems += result.broken
        if options.write and result.refreshed:
            write(path, notebook)
            print(f"{name}: {len(result.refreshed)} cells refreshed")
        else:
            problems += result.refreshed
            drift |= bool(result.refreshed)
    if options.coverage:
        problems += coverage(shown, CORE, NOT_TAUGHT, ROOT)
    if drift:
        problems.append(f"To refresh these cells, in seconds and without running any: {REFRESH}")
    for problem in problems:
        print(problem, file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())

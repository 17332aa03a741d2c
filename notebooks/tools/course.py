"""What each notebook of the series has to have, and where a link leads: one message for each thing that is missing."""

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from notebooks.tools.files import source_of
from notebooks.tools.series import (
    MOST_IMPORTS,
    SKIP,
    anchors,
    begins_folded_part,
    code_blocks,
    free_code,
    has_folded_imports,
    headings,
    import_lines,
    links,
    markdown_texts,
    sections,
    slug,
)

TOP = 8  # cells: where a notebook's opening is
LINES = range(6, 17)  # of the first engine, shown where a notebook replaces them: about ten
MAP = re.compile(r"\bviz\.engine_map\(\s*here=")
IMPORTS = "# Imports:"  # how the first line of folded imports begins, the only one that is seen
QUESTION = re.compile(r"<details\b[^>]*>\s*<summary\b")
_OUTSIDE = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)  # https:, mailto:, data:
# What no output says, unless the cell is there to show it and so has the tag `raises-exception`.
NOISE = ("Traceback (most recent call last)", "Warning: ", "UserWarning", "DeprecationWarning")


def broken_links(path: Path, texts: list[str]) -> list[str]:
    """Links of a file to files and headings that are not there; those to elsewhere are not followed."""
    problems = []
    for link in (link for text in texts for link in links(text)):
        if _OUTSIDE.match(link):
            continue
        name, _, anchor = unquote(link).partition("#")
        target = (path.parent / name).resolve() if name else path
        if not target.exists():
            problems.append(f"{path.name}: link to {link}: there is no such file")
        elif anchor and target.suffix in (".md", ".ipynb") and anchor not in anchors(target):
            problems.append(f"{path.name}: link to {link}: {target.name} has no such heading")
    return problems


def opening_problems(notebook: dict[str, Any], first_engine: dict[str, Any]) -> list[str]:
    """Near its top, a notebook shows the lines of the first engine that it replaces, letter for letter, and the map."""
    top = notebook["cells"][:TOP]
    blocks = [block for text in markdown_texts({"cells": top}) for block in code_blocks(text)]
    engine = [source_of(cell).split("\n") for cell in first_engine["cells"] if cell["cell_type"] == "code"]
    shown = [block for block in blocks if any(_is_part(block, lines) for lines in engine)]
    problems = []
    if not shown:
        there = f"the {len(blocks)} ```python blocks there are not" if blocks else "there is no ```python block"
        problems.append(f"its first {TOP} cells show no lines of the first engine, letter for letter: {there}")
    elif not any(len(block) in LINES for block in shown):
        problems.append(
            f"shows {len(shown[0])} lines of the first engine: {LINES.start} to {LINES.stop - 1} are enough"
        )
    if not any(MAP.search(text) for text in free_code({"cells": top})):
        problems.append(f"its first {TOP} cells have no viz.engine_map(here=...)")
    return problems


def ending_problems(notebook: dict[str, Any]) -> list[str]:
    """The last section is `## References`, with two links or more."""
    last = sections(notebook)[-1]
    if last.title != "References":
        return [f"ends with the section {last.title!r}: must be References"]
    found = {link for link in links(last.text) if link.startswith("http")}
    return [] if len(found) > 1 else [f"References: has {len(found)} links: must have at least 2"]


def question_problems(notebook: dict[str, Any]) -> list[str]:
    """Questions whose answers unfold (`<details><summary>`): one for every two sections of the main line, and two at its
    end, which may be in the last section or in the summary."""
    parts = sections(notebook)[1:]  # without the opening
    main = [i for i, part in enumerate(parts) if part.main]
    counts = [len(QUESTION.findall(part.text)) for part in parts]
    problems = []
    if 2 * sum(counts) < len(main):
        problems.append(f"{sum(counts)} questions with folded answers in {len(main)} sections: must be half as many")
    if main:
        end = [i for i, part in enumerate(parts) if i == main[-1] or part.title.lower().startswith("summary")]
        if sum(counts[i] for i in end) < 2:
            titles = " and ".join(repr(parts[i].title) for i in end)
            problems.append(
                f"{sum(counts[i] for i in end)} questions with folded answers in {titles}: must be 2 at the end"
            )
    return problems


def folding_problems(notebook: dict[str, Any]) -> list[str]:
    """A heading `May be skipped: ...` is the first line of its cell, of level 2 or lower: else it does not fold."""
    return [
        f"cell {number}: the heading {title!r} must be the first line of its cell, as in `## {SKIP}: ...`"
        for number, cell in enumerate(notebook["cells"], 1)
        if cell["cell_type"] == "markdown"
        for i, (level, title) in enumerate(headings(source_of(cell)))
        if title.startswith(SKIP) and (i or level < 2 or not begins_folded_part(cell))
    ]


def import_problems(notebook: dict[str, Any]) -> list[str]:
    """No cell shows more than MOST_IMPORTS lines of imports: more are in a cell of their own, which is folded, and whose
    first line says what it is."""
    problems = []
    for number, cell in enumerate(notebook["cells"], 1):
        if has_folded_imports(cell):
            if not source_of(cell).startswith(IMPORTS):
                problems.append(f"cell {number}: is folded, so its first line must say what it is: {IMPORTS} ...")
            if not cell["metadata"].get("jupyter", {}).get("source_hidden"):
                problems.append(
                    f"cell {number}: is nothing but imports and not folded: python -m notebooks.build --text"
                )
        elif cell["cell_type"] == "code" and (lines := import_lines(source_of(cell))) > MOST_IMPORTS:
            problems.append(
                f"cell {number}: has {lines} lines of imports: put them into a cell of their own, which is folded"
            )
    return problems


def noise(notebook: dict[str, Any]) -> list[str]:
    """Tracebacks and warnings in the outputs of cells that are not there to show them."""
    return [
        f"cell {number}: the output says {words!r}"
        for number, cell in enumerate(notebook["cells"], 1)
        if cell["cell_type"] == "code" and "raises-exception" not in cell["metadata"].get("tags", [])
        for words in NOISE
        if words in json.dumps([_plain(output) for output in cell["outputs"]], ensure_ascii=False)
    ]


def all_problems(path: Path, notebook: dict[str, Any], first_engine: dict[str, Any] | None) -> list[str]:
    """All of the above but links, for a notebook of the series. The opening is checked where there is a `first_engine`,
    from the notebook after it on; questions and references are not for the very first notebook."""
    problems = noise(notebook) + folding_problems(notebook) + import_problems(notebook)
    if slug(path) != "start_here":
        problems += ending_problems(notebook) + question_problems(notebook)
        if first_engine is not None and slug(path) != "an_engine_in_150_lines":
            problems += opening_problems(notebook, first_engine)
    return [f"{path.name}: {problem}" for problem in problems]


def _is_part(block: list[str], lines: list[str]) -> bool:
    return any(lines[i : i + len(block)] == block for i in range(len(lines) - len(block) + 1))


def _plain(output: dict[str, Any]) -> object:
    data = {mime: value for mime, value in output.get("data", {}).items() if not mime.startswith("image/")}
    return [data, output.get("text", ""), output.get("evalue", "")]

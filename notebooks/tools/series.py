"""The notebooks of the series in order, and what the tests ask of one: its headings, captions, sections and links.

A notebook is known by its file name without the number, `memory_pools`, so that it may be given another number.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from notebooks.tools.files import read, source_of
from notebooks.tools.needed import gives_and_uses
from notebooks.tools.package_cells import marked_path

MOST_IMPORTS = 6  # lines of imports that a cell may show
SKIP = "May be skipped"  # `## May be skipped: ...` begins a part that is folded where the notebook is opened
# Headings of sections that are no part of the main line.
NO_MAIN_SECTIONS = ("the question", "summary", "exercises", "references", "try it", SKIP.lower())
_HEADING = re.compile(r"(#{1,6})\s+(.+?)\s*#*")
_FENCE = re.compile(r" {0,3}(```+|~~~+)")
_LINK = re.compile(
    r"(?<!!)\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)|\bhref=[\"']([^\"']+)[\"']"
)
_IMAGE = re.compile(r"!\[[^\]]*\]\(\s*<?([^)\s>]+)>?[^)]*\)|\bsrc=[\"']([^\"']+)[\"']")
_NUMBERED = re.compile(r"(\d\d)_(\w+)")


@dataclass
class Section:
    """The markdown text under one heading of level 1 or 2, that heading included; code cells are left out."""

    title: str
    text: str

    @property
    def main(self) -> bool:
        """Whether it is part of the main line."""
        return not self.title.lower().startswith(NO_MAIN_SECTIONS)


def series(folder: Path) -> list[Path]:
    """The notebooks NN_*.ipynb of a folder, in order."""
    return sorted(path for path in folder.glob("*.ipynb") if _NUMBERED.fullmatch(path.stem))


def slug(path: Path) -> str:
    """`memory_pools` of notebooks/05_memory_pools.ipynb, `few_shot` of notebooks/demos/few_shot.ipynb."""
    match = _NUMBERED.fullmatch(path.stem)
    return match[2] if match else path.stem


def markdown_texts(notebook: dict[str, Any]) -> list[str]:
    """The texts of the markdown cells."""
    return [source_of(cell) for cell in notebook["cells"] if cell["cell_type"] == "markdown"]


def headings(text: str) -> list[tuple[int, str]]:
    """Level and text of the headings of a markdown text, those in code blocks left out."""
    lines = [line for line, is_code in _lines(text) if not is_code]
    return [(len(match[1]), match[2]) for line in lines if (match := _HEADING.fullmatch(line))]


def sections(notebook: dict[str, Any]) -> list[Section]:
    """A notebook's text, divided at its headings of level 1 and 2; the first begins with the notebook's title."""
    found = [Section("", "")]
    for text in markdown_texts(notebook):
        for line, is_code in _lines(text):
            match = None if is_code else _HEADING.fullmatch(line)
            if match and len(match[1]) <= 2:
                found.append(Section(match[2], ""))
            found[-1].text += line + "\n"
    return found if found[0].text.strip() else found[1:]


def begins_folded_part(cell: dict[str, Any]) -> bool:
    """Whether a cell begins a part that JupyterLab opens folded: its first line is a heading `## May be skipped: ...`."""
    match = _HEADING.fullmatch(source_of(cell).split("\n", 1)[0])
    return cell["cell_type"] == "markdown" and match is not None and len(match[1]) > 1 and match[2].startswith(SKIP)


def folded(notebook: dict[str, Any]) -> list[bool]:
    """Of each cell: whether it is in a folded part, which ends at the next heading of its level or of a higher one."""
    found, level = list[bool](), 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            levels = [each for each, _ in headings(source_of(cell))]
            if level and levels and min(levels) <= level:
                level = 0
            if begins_folded_part(cell):
                level = min(levels)
        found.append(level > 0)
    return found


def import_lines(source: str) -> int:
    """How many lines of a code cell are imports, those inside functions left out; 0 for one that is not Python alone."""
    try:
        statements = ast.parse(source).body
    except SyntaxError:
        return 0
    imports = [statement for statement in statements if isinstance(statement, ast.Import | ast.ImportFrom)]
    return sum((statement.end_lineno or 0) - statement.lineno + 1 for statement in imports)


def has_folded_imports(cell: dict[str, Any]) -> bool:
    """Whether JupyterLab opens a cell folded, as its first line alone: it has more than MOST_IMPORTS, and nothing else."""
    source = source_of(cell)
    if cell["cell_type"] != "code" or marked_path(source) is not None or import_lines(source) <= MOST_IMPORTS:
        return False
    return all(isinstance(statement, ast.Import | ast.ImportFrom) for statement in ast.parse(source).body)


def needed_from_folded_parts(notebook: dict[str, Any]) -> list[str]:
    """A message for each name that only a folded part gives a value to, and that another cell uses: a reader who skips the
    part could not go on."""
    is_folded = folded(notebook)
    given: tuple[set[str], set[str]] = set(), set()  # outside, and in folded parts
    problems = []
    for number, (cell, inside) in enumerate(zip(notebook["cells"], is_folded, strict=True), 1):
        names = gives_and_uses(source_of(cell)) if cell["cell_type"] == "code" else None
        if names is None:
            continue
        if not inside:
            missing = sorted((names[1] & given[1]) - given[0] - names[0])
            problems += [f"cell {number} uses `{name}`, which only a folded part defines" for name in missing]
        given[inside].update(names[0])
    return problems


def captions(notebook: dict[str, Any]) -> Iterator[str]:
    """Every `title="..."` of a call in the free code cells; of an f-string the parts that are text."""
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code" or marked_path(source_of(cell)) is not None:
            continue
        try:
            tree = ast.parse(source_of(cell))
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.keyword) and node.arg == "title":
                yield from filter(None, map(_text, _strings(node.value)))


def links(text: str) -> list[str]:
    """Where the links and pictures of a markdown text lead, those in code left out."""
    plain = re.sub(r"`[^`\n]*`", "", "\n".join(line for line, is_code in _lines(text) if not is_code))
    return [next(filter(None, match.groups())) for pattern in (_LINK, _IMAGE) for match in pattern.finditer(plain)]


def anchors(path: Path) -> set[str]:
    """What may follow `#` after the name of a notebook or a markdown file: a heading as Jupyter or as GitHub names it."""
    if path.suffix == ".ipynb":
        texts = [title for text in markdown_texts(read(path)) for _, title in headings(text)]
        return {re.sub(r"\s", "-", _plain(title)) for title in texts}
    found = dict[str, int]()
    for _, title in headings(path.read_text(encoding="utf-8")):
        name = re.sub(r"[^\w\- ]", "", _plain(title).lower()).replace(" ", "-")
        found[name] = found.get(name, -1) + 1
    return {name if i == 0 else f"{name}-{i}" for name, last in found.items() for i in range(last + 1)}


def code_blocks(text: str) -> list[list[str]]:
    """The lines of each ```python block of a markdown text."""
    blocks = re.findall(r"^```python[ \t]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [block.rstrip("\n").split("\n") for block in blocks]


def free_code(notebook: dict[str, Any]) -> list[str]:
    """The texts of code cells that are no package cells."""
    return [
        source_of(cell)
        for cell in notebook["cells"]
        if cell["cell_type"] == "code" and marked_path(source_of(cell)) is None
    ]


def _lines(text: str) -> list[tuple[str, bool]]:
    """The lines of a markdown text, and of each whether it belongs to a code block."""
    found, fence = list[tuple[str, bool]](), ""
    for line in text.split("\n"):
        match = _FENCE.match(line)
        inside = bool(fence)
        if match and not fence:
            fence, inside = match[1], True
        elif match and line.strip().startswith(fence) and not line.strip().strip(fence[0]):
            fence = ""
        found.append((line, inside))
    return found


def _plain(title: str) -> str:
    """A heading without its markup."""
    title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
    return re.sub(r"[`*]", "", title)


def _strings(node: ast.expr) -> list[ast.expr]:
    """The texts that an expression may be: both of `a if x else b`."""
    if isinstance(node, ast.IfExp):
        return [*_strings(node.body), *_strings(node.orelse)]
    return [node]


def _text(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(_text(value) or "…" for value in values)
    return ""

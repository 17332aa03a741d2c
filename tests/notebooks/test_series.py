"""Links in the notebooks and their pages lead to files and headings that are there."""

import re
from pathlib import Path
from urllib.parse import unquote

import pytest

from notebooks.tools.files import ROOT, read, source_of

FOLDER = ROOT / "notebooks"
NOTEBOOKS = [*sorted(FOLDER.glob("*.ipynb")), *sorted((FOLDER / "demos").glob("*.ipynb"))]
PAGES = [ROOT / "README.md", FOLDER / "README.md", FOLDER / "glossary.md", FOLDER / "explorables" / "README.md"]
FENCED = re.compile(r"^ {0,3}(```+|~~~+).*?^ {0,3}\1\s*$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)|\b(?:href|src)=[\"']([^\"']+)[\"']")
OUTSIDE = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)  # https:, mailto:, data:


def text_of(path: Path) -> str:
    """A page, or the markdown cells of a notebook, without blocks of code."""
    if path.suffix != ".ipynb":
        return FENCED.sub("", path.read_text(encoding="utf-8"))
    cells = [source_of(cell) for cell in read(path)["cells"] if cell["cell_type"] == "markdown"]
    return FENCED.sub("", "\n\n".join(cells))


def anchors(path: Path) -> set[str]:
    """What may follow `#` after a file's name: a heading as Jupyter or as GitHub names it."""
    titles = [re.sub(r"\[([^\]]*)\]\([^)]*\)|[`*]", r"\1", title) for title in HEADING.findall(text_of(path))]
    if path.suffix == ".ipynb":
        return {re.sub(r"\s", "-", title) for title in titles}
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken_links(path: Path, text: str) -> list[str]:
    broken = []
    for match in LINK.finditer(re.sub(r"`[^`\n]*`", "", text)):
        link = match[1] or match[2]
        name, _, anchor = unquote(link).partition("#")
        target = (path.parent / name).resolve() if name else path
        there = target.exists() and (not anchor or target.suffix not in (".md", ".ipynb") or anchor in anchors(target))
        if not OUTSIDE.match(link) and not there:
            broken.append(link)
    return broken


@pytest.mark.parametrize("path", [*NOTEBOOKS, *PAGES], ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    assert broken_links(path, text_of(path)) == []


def test_links_that_lead_nowhere_are_found() -> None:
    path = FOLDER / "README.md"
    text = "[a](README.md#the-series) [b](#To-grade) [c](https://no.where) [d](no.md) `[e](no.md)` ![f](g.png)"
    assert broken_links(path, text) == ["#To-grade", "no.md", "g.png"]

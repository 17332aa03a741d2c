"""Slides of a notebook, from its own pictures and questions: `python -m notebooks.slides 08 [--out FOLDER]`.

A slide is what a cell prints or draws, a short package cell, or a question, whose answer comes with the next key. The text
around it is in the speaker's notes (key S). The page needs no network: reveal.js is inside.
"""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from notebooks.build import built_path, selected
from notebooks.tools.files import ROOT, as_text, read, source_of

REVEAL = "reveal.js@5.2.1"  # .ci/run installs what stands here
FOLDER = ROOT / "node_modules" / "reveal.js"
PARTS = re.compile(r"\n+(?=##+ |<details>)|(?<=</details>)\n+|\n\n(?=(?:.+\n)*.*\*\*Predict)")
END = re.compile(r"## (Exercises?|References)\b")
ANSWER = "with answer("
MOST_CODE = 24  # lines of a package cell that can be read from a distance
STYLE = """
.reveal { --jp-cell-prompt-width: 0px; font-size: 26px; background: #fff; }
.reveal .slides section { max-height: 100%; overflow: hidden auto; text-align: left; }
.reveal img { width: 1100px; height: auto; max-height: 560px; object-fit: contain; }
"""
TEMPLATE = """{% extends "index.html.j2" %}
{% block html_head_js %}{% endblock %}
{% block html_head_js_mathjax %}<style>{{ resources.reveal.css }}</style>{% endblock %}
{% block footer_js %}<script>{{ resources.reveal.script }}</script>
<script>Reveal.initialize({ hash: true, width: 1200, height: 800, slideNumber: "c/t", plugins: [RevealNotes] });</script>
{% endblock %}"""


def slide_cells(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The cells of the slides, each with nbconvert's `slide_type`: "slide" begins one, "fragment" waits for a key."""
    slides, notes, heading, asked = list[dict[str, Any]](), list[str](), "", False

    def add(slide_type: str, cell: dict[str, Any]) -> None:
        slides.append({**cell, "id": f"slide-{len(slides)}", "metadata": {"slideshow": {"slide_type": slide_type}}})

    def begin(text: str = "") -> None:
        add("slide", _markdown(f"{heading}\n\n{text.strip()}"))
        add_notes()

    def add_notes() -> None:
        if notes and slides:
            add("notes", _markdown("\n\n".join(notes)))
        notes.clear()

    for cell, later in zip(cells, [*cells[1:], {"source": ""}], strict=True):
        source = source_of(cell)
        if cell["cell_type"] == "code":
            if cell["outputs"] or _is_short_package_cell(source):
                if not asked:
                    begin()
                is_answer = asked and ANSWER not in source_of(later)
                add("fragment" if is_answer else "-", _shown(cell))
                asked = asked and not is_answer
            continue
        for part in PARTS.split(source):
            if part.startswith("#"):
                add_notes()
                if END.match(part):
                    return slides
                heading, _, part = part.partition("\n")
            is_question = "**Predict" in part
            if heading.startswith("# ") or heading == "## Summary" or is_question or part.startswith("<details>"):
                begin(part)
                asked = is_question
            elif part.strip():
                notes.append(part.strip())
    add_notes()
    return slides


def _is_short_package_cell(source: str) -> bool:
    return source.startswith("# in ") and source.count("\n") < MOST_CODE


def _shown(cell: dict[str, Any]) -> dict[str, Any]:
    """What a cell has put out, with an answer unfolded; or its code, when it has put out nothing."""
    if not cell["outputs"]:
        return _markdown(f"```python\n{source_of(cell)}\n```")
    outputs = json.dumps(cell["outputs"])
    if ANSWER in source_of(cell):
        outputs = outputs.replace("<details>", "<details open>", 1)
    return {**cell, "outputs": json.loads(outputs)}


def _markdown(text: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "source": text.strip()}


def slides(notebook: dict[str, Any], name: str) -> str:
    """The page. FileNotFoundError when reveal.js is not installed."""
    import nbformat
    from nbconvert import SlidesExporter

    if not FOLDER.is_dir():
        raise FileNotFoundError(f"reveal.js is not installed: run npm install --prefix . --no-save {REVEAL}")
    exporter = SlidesExporter(raw_template=TEMPLATE, exclude_input=True, exclude_output_prompt=True)
    script = [(FOLDER / path).read_text(encoding="utf-8") for path in ("dist/reveal.js", "plugin/notes/notes.js")]
    reveal = {"css": (FOLDER / "dist/reveal.css").read_text(encoding="utf-8") + STYLE, "script": "\n".join(script)}
    content = nbformat.reads(as_text({**notebook, "cells": slide_cells(notebook["cells"])}), as_version=4)
    page, _ = exporter.from_notebook_node(content, {"reveal": reveal, "metadata": {"name": name}})
    return re.sub(r'<link [^>]*href="http[^>]*>', "", page)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m notebooks.slides", description=__doc__.split("\n", 1)[0])
    parser.add_argument("names", nargs="+", help="08, 08_radix_cache, demos/few_shot")
    parser.add_argument("--out", type=Path, default=Path(), metavar="FOLDER", help="where the pages go (here)")
    options = parser.parse_args(arguments)
    try:
        for path in map(built_path, selected(options.names)):
            target = options.out / f"{path.stem}.html"
            target.write_text(slides(read(path), path.stem), encoding="utf-8")
            print(target)
    except (FileNotFoundError, ValueError) as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())

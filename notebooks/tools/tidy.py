"""What a committed notebook looks like: nothing in it changes from run to run or reveals the machine it ran on."""

import ast
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from notebooks.tools.files import ROOT, set_source, source_of
from notebooks.tools.package_cells import marked_path

METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {
        "file_extension": ".py",
        "mimetype": "text/x-python",
        "name": "python",
        "pygments_lexer": "ipython3",
    },
}
IGNORED = "nbval-ignore-output"  # the tag of cells whose output cannot be the same twice
NOT_HERE = "Not on this machine"  # how a line begins that `if_compiled` prints in place of a block
_ADDRESS = re.compile(r"\bat 0x[0-9a-f]{6,}")
WIDGET = "application/vnd.jupyter.widget-view+json"
MOST_IMPORTS = 6  # lines: a cell of nothing but imports that has more is opened folded, as its first line alone
_DATA = re.compile(r"data:image/[\w+.-]+;base64,[\w+/=]+")  # a picture inside HTML: no text


def tidy(notebook: dict[str, Any]) -> None:
    """Bring cells and metadata into the committed form, in place; outputs are not touched (`tidy_outputs` does that).
    Long lists of imports open folded."""
    notebook.update(nbformat=4, nbformat_minor=5, metadata=METADATA)
    for position, cell in enumerate(notebook["cells"], 1):
        cell["id"] = f"cell-{position:03d}"
        tags = cell["metadata"].get("tags")
        cell["metadata"] = {"tags": list(tags)} if tags else {}
        set_source(cell, source_of(cell).strip("\n"))
        if cell["cell_type"] == "code" and _is_many_imports(source_of(cell)):
            cell["metadata"]["jupyter"] = {"source_hidden": True}
        cell.pop("attachments", None)


def _is_many_imports(source: str) -> bool:
    if marked_path(source) is not None:
        return False
    try:
        imports = ast.parse(source).body
    except SyntaxError:  # not Python alone: `%timeit`, `!ls`
        return False
    lines = sum((statement.end_lineno or 0) - statement.lineno + 1 for statement in imports)
    return lines > MOST_IMPORTS and all(isinstance(statement, ast.Import | ast.ImportFrom) for statement in imports)


def clear_outputs(notebook: dict[str, Any]) -> None:
    """No outputs and no execution counts, in place."""
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell.update(outputs=[], execution_count=None)


def tidy_outputs(notebook: dict[str, Any]) -> None:
    """Count executions from 1, merge streams, leave of an error its last line, and of a widget what stands in for it where
    no kernel runs (`output_problems` refuses one that has nothing but text for that); in place."""
    count = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        count += 1
        cell["execution_count"] = count
        outputs: list[dict[str, Any]] = []
        for output in cell["outputs"]:
            kind = output["output_type"]
            if kind == "stream":
                output["text"] = _joined(output["text"])
                if outputs and outputs[-1]["output_type"] == "stream" and outputs[-1]["name"] == output["name"]:
                    outputs[-1]["text"] += output["text"]
                    continue
            elif kind == "execute_result":
                output["execution_count"] = count
            elif kind == "error":
                output["traceback"] = [f"{output['ename']}: {output['evalue']}"]
            if "text/html" in output.get("data", {}):
                output["data"].pop(WIDGET, None)
            outputs.append(output)
        for output in outputs:
            if output["output_type"] == "stream":
                output["text"] = output["text"].splitlines(keepends=True)
            for mime, data in output.get("data", {}).items():
                if isinstance(data, str | list):
                    text = _joined(data)
                    output["data"][mime] = text if mime.startswith("image/") else text.splitlines(keepends=True)
        cell["outputs"] = outputs


def output_problems(notebook: dict[str, Any], name: str) -> list[str]:
    """What must not be committed: absolute paths, memory addresses, widgets, text on stderr, and what stands in for numbers
    that this machine cannot measure; one message for each."""
    problems = []
    for position, cell in enumerate(notebook["cells"], 1):
        here = f"{name}, cell {position}"
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if any("widget" in mime for mime in data):
                problems.append(f"{here}: the output is a widget, which shows nothing in a committed notebook")
            if output["output_type"] == "stream" and output["name"] == "stderr":
                problems.append(
                    f"{here}: writes to stderr (a warning? a progress bar?): {_joined(output['text'])[:300]}"
                )
            texts = [value for mime, value in data.items() if not mime.startswith("image/")]
            texts += [output.get("text", ""), output.get("evalue", "")]
            for text in (_DATA.sub("", _joined(text)) for text in texts):
                if path := next((path for path in _paths() if path in text), None):
                    problems.append(f"{here}: the output has an absolute path ({path}...)")
                if line := next((line for line in text.splitlines() if line.startswith(NOT_HERE)), None):
                    problems.append(f"{here}: {line[:100]!r}: build it where its kernels run")
                if IGNORED not in cell["metadata"].get("tags", []) and (address := _ADDRESS.search(text)):
                    problems.append(f"{here}: the output has a memory address ({address[0]})")
    return problems


def _paths() -> set[str]:
    folders = (ROOT, Path.home(), Path(tempfile.gettempdir()), Path(sys.prefix))
    return {f"{folder}/" for folder in folders if str(folder) != "/"} | {"site-packages/", "/ipykernel_"}


def _joined(text: object) -> str:
    return "".join(text) if isinstance(text, list) else str(text)

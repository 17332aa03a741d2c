"""Claims: what the notebooks say about the numbers that their cells have given, and what is stored beside them."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from html import unescape
from typing import Any

from notebooks.tools.files import source_of, tags

MEASURED = "nbval-ignore-output"  # the tag of cells whose output is another one each time


@dataclass(frozen=True)
class Claim:
    """A sentence of notebook `notebook` ("04") about numbers that one of its cells has measured, or `computed`: those are
    the same in each run, but a change of the package may make them others.

    `sentence`: words of the sentence, in a markdown cell or printed by a cell; line breaks count as spaces. `output`: a
    pattern that is in the stored output of exactly one such cell; `holds` is given the numbers of its groups.
    """

    notebook: str
    sentence: str
    output: str
    holds: Callable[..., bool] = lambda *numbers: True
    computed: bool = False


def texts(cell: Mapping[str, Any]) -> str:
    """All that the stored outputs of a cell say: printed text, alt texts, and what is folded under an answer."""
    found: list[str] = []
    for output in cell.get("outputs", ()):
        data = output.get("data", {})
        found += [
            "".join(output.get("text", "")),
            "".join(data.get("text/plain", "")),
            "".join(data.get("text/html", "")),
        ]
    return unescape(re.sub(r"data:image/png;base64,[^\"']*", "", " ".join(found)))


def flat(text: str) -> str:
    """With one space for each run of white space."""
    return re.sub(r"\s+", " ", text)


def measuring(notebook: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    """The number and the stored output of each cell that measures."""
    for i, cell in enumerate(notebook["cells"]):
        if MEASURED in tags(cell):
            yield i, flat(texts(cell))


def computing(notebook: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    """The number and the stored output of each other cell with code."""
    for i, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "code" and MEASURED not in tags(cell):
            yield i, flat(texts(cell))


def numbers(match: re.Match[str]) -> list[float]:
    """What the groups of a pattern have matched, as numbers: "1,541" is 1541."""
    return [float(group.replace(",", "")) for group in match.groups()]


def problems(claim: Claim, notebook: Mapping[str, Any]) -> list[str]:
    """What is wrong with a claim, a line each."""
    said = flat(" ".join([*map(source_of, notebook["cells"]), *map(texts, notebook["cells"])]))
    where = f"notebook {claim.notebook}, {claim.sentence!r}"
    if flat(claim.sentence) not in said:
        return [f"{where}: is not there"]
    cells, kind = (computing, "computing") if claim.computed else (measuring, "measuring")
    matches = [match for _, text in cells(notebook) if (match := re.search(claim.output, text))]
    if len(matches) != 1:
        return [f"{where}: {claim.output!r} is in the outputs of {len(matches)} {kind} cells, must be in that of one"]
    if not claim.holds(*numbers(matches[0])):
        return [f"{where}: the stored numbers refute it: {matches[0].group()!r}"]
    return []

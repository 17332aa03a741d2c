"""Stored numbers: what the text says about a measured number is true of the number that is stored beside it."""

import re
from collections.abc import Mapping
from typing import Any

import pytest

from notebooks.tools.files import ROOT, read
from tests.helpers.claims import Claim, measuring, problems
from tests.helpers.claims_computed import COMPUTED
from tests.helpers.claims_early import EARLY, NOTHING_SAID_EARLY
from tests.helpers.claims_late import LATE, NOTHING_SAID_LATE

CLAIMS = (*EARLY, *LATE, *COMPUTED)
NOTHING_SAID = {**NOTHING_SAID_EARLY, **NOTHING_SAID_LATE}  # (notebook, words of a measuring cell's code) → why not
SERIES = {path.name[:2]: path for path in sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))}


@pytest.fixture(scope="module")
def notebooks() -> Mapping[str, Mapping[str, Any]]:
    return {number: read(path) for number, path in SERIES.items()}


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.notebook}: {claim.sentence[:50]}")
def test_the_stored_numbers_are_as_the_sentence_says(claim: Claim, notebooks: Mapping[str, Any]) -> None:
    found = problems(claim, notebooks[claim.notebook])
    assert not found, "\n".join(found)


@pytest.mark.parametrize("number", SERIES)
def test_every_cell_that_measures_has_a_claim_or_a_reason_why_nothing_is_said(
    number: str, notebooks: Mapping[str, Any]
) -> None:
    notebook = notebooks[number]
    claims = [claim for claim in CLAIMS if claim.notebook == number]
    without = [i for i, text in measuring(notebook) if not any(re.search(claim.output, text) for claim in claims)]
    code = {i: "".join(notebook["cells"][i]["source"]) for i in without}
    excused = {i for i in without for of, words in NOTHING_SAID if of == number and words in code[i]}
    assert not (missing := set(without) - excused), f"notebook {number}, cells {sorted(missing)}"


def test_every_excuse_has_a_cell_and_a_reason(notebooks: Mapping[str, Any]) -> None:
    for (number, words), reason in NOTHING_SAID.items():
        cells = ["".join(notebooks[number]["cells"][i]["source"]) for i, _ in measuring(notebooks[number])]
        assert sum(words in cell for cell in cells) == 1, (number, words)
        assert reason.strip()


# --- and what breaks the rule is found --------------------------------------------------------------------------------


def made_up(said: str, printed: str) -> dict[str, Any]:
    cell = {
        "cell_type": "code",
        "source": "print()",
        "metadata": {"tags": ["nbval-ignore-output"]},
        "outputs": [{"text": printed}],
    }
    return {"cells": [{"cell_type": "markdown", "source": said, "metadata": {}}, cell]}


@pytest.mark.parametrize(
    ("said", "printed", "found"),
    [
        ("It is\nfaster.", "old 1,200 µs, new 900 µs", None),
        ("It is faster.", "old 900 µs, new 1,200 µs", "the stored numbers refute it: 'old 900 µs, new 1,200 µs'"),
        ("It is slower.", "old 2 µs, new 1 µs", "is not there"),
        ("It is faster.", "old 2 ms", "is in the outputs of 0 measuring cells"),
    ],
)
def test_a_sentence_that_its_number_refutes_is_found(said: str, printed: str, found: str | None) -> None:
    claim = Claim("99", "It is faster.", r"old ([\d,]+) µs, new ([\d,]+) µs", lambda old, new: new < old)
    result = problems(claim, made_up(said, printed))
    assert (not result) if found is None else (found in result[0])

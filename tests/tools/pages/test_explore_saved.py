"""The pages in notebooks/explorables show what the engine does now."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from nanoinfer import LLM
from notebooks.course.explore import Explorable
from notebooks.course.explore.__main__ import CATALOGUE
from notebooks.tools.files import ROOT

FOLDER = ROOT / "notebooks" / "explorables"


def data_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def rounded(data: Any) -> Any:
    """Fractions, which another processor may round differently, to three digits."""
    if isinstance(data, dict):
        return {name: rounded(value) for name, value in data.items()}
    if isinstance(data, list):
        return [rounded(value) for value in data]
    return float(f"{data:.3g}") if isinstance(data, float) else data


def test_every_explorable_is_there_and_no_other_page() -> None:
    assert {path.stem for path in FOLDER.glob("*.html")} == set(CATALOGUE)
    listed = re.findall(r"\]\((\w+)\.html\)", (FOLDER / "README.md").read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(CATALOGUE)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_a_page_is_what_would_be_recorded_now(
    name: str, recorded: Callable[[Callable[[LLM], Explorable]], Explorable]
) -> None:
    there, now = (FOLDER / f"{name}.html").read_text(encoding="utf-8"), recorded(CATALOGUE[name]).html()
    again = f"python -m notebooks.course.explore {name} --out notebooks/explorables"
    assert rounded(data_of(there)) == rounded(data_of(now)), again
    without = [re.sub(r'(id="data">).*?(</script>)', r"\1\2", page, flags=re.DOTALL) for page in (there, now)]
    assert without[0] == without[1], again

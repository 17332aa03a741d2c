"""What a committed notebook looks like: cells, metadata, outputs."""

from typing import Any

import pytest

from notebooks.tools.files import ROOT, source_of
from notebooks.tools.tidy import output_problems, tidy, tidy_outputs
from tests.sample_series import code, markdown, notebook


def test_cells_and_metadata() -> None:
    content = notebook(markdown("# a\n"), code("\nx = 1\n\n", "parameters"))
    content["cells"][1]["metadata"] |= {"collapsed": True, "lines_to_next_cell": 2}
    content["metadata"] = {"jupytext": {}, "widgets": {}, "language_info": {"version": "3.11.7"}}
    tidy(content)
    assert [cell["id"] for cell in content["cells"]] == ["cell-001", "cell-002"]
    assert content["cells"][1]["metadata"] == {"tags": ["parameters"]}
    assert source_of(content["cells"][1]) == "x = 1"
    assert set(content["metadata"]) == {"kernelspec", "language_info"}
    assert "version" not in content["metadata"]["language_info"]


def printed(text: str | list[str], name: str = "stdout") -> dict[str, Any]:
    return {"output_type": "stream", "name": name, "text": text}


def shown(mime: str, data: object) -> dict[str, Any]:
    return {"output_type": "display_data", "data": {mime: data}, "metadata": {}}


def test_outputs() -> None:
    content = notebook(markdown("m"), code("x"), code("y"))
    content["cells"][1]["outputs"] = [printed("a\n"), printed("b"), printed("c", "stderr")]
    content["cells"][2]["outputs"] = [
        {"output_type": "execute_result", "execution_count": 9, "metadata": {}, "data": {"text/plain": "1\n2"}},
        {"output_type": "error", "ename": "Hint", "evalue": "why", "traceback": ["\x1b[0m", "File /x/y.py"]},
    ]
    tidy_outputs(content)
    first, second = content["cells"][1:]
    assert [output["text"] for output in first["outputs"]] == [["a\n", "b"], ["c"]]
    assert (first["execution_count"], second["execution_count"]) == (1, 2)
    assert second["outputs"][0]["data"] == {"text/plain": ["1\n", "2"]}
    assert second["outputs"][0]["execution_count"] == 2
    assert second["outputs"][1]["traceback"] == ["Hint: why"]


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (printed(f"in {ROOT}/data"), "absolute path"),
        (printed(["/usr/lib/python3/", "site-packages/x"]), "absolute path"),
        (shown("text/html", f"<a href='{ROOT}/a'>"), "absolute"),
        (printed("Warning", "stderr"), "writes to stderr"),
        (printed("<Req object at 0x7f1261124a40>"), "memory address"),
        (printed(["a\n", "Not on this machine: its kernels are torch\n"]), "build it where its kernels run"),
        (shown("application/vnd.jupyter.widget-view+json", {}), "widget"),
    ],
)
def test_what_must_not_be_committed(output: dict[str, Any], said: str) -> None:
    content = notebook(code("x"))
    assert output_problems(content, "a") == []
    content["cells"][0]["outputs"] = [output]
    (problem,) = output_problems(content, "a")
    assert problem.startswith("a, cell 1: ")
    assert said in problem

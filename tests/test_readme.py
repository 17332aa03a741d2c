"""README's Python code runs."""

import re
from pathlib import Path

import pytest

BLOCKS = re.findall(r"```python\n(.*?)```", (Path(__file__).parent.parent / "README.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_a_code_block_runs_as_it_stands(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(BLOCKS[number], f"README.md, Python block {number}", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out, "a block shows something"


def test_the_blocks_are_found() -> None:
    assert len(BLOCKS) >= 2

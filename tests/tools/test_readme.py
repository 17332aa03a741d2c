"""README's Python code runs."""

import re
from pathlib import Path

import pytest

BLOCKS = re.findall(r"```python\n(.*?)```", (Path(__file__).parent.parent.parent / "README.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_a_code_block_runs_as_it_stands(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # some write files
    exec(compile(BLOCKS[number], f"README.md, Python block {number}", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out, "a block shows something"


def test_the_blocks_are_found() -> None:
    assert len(BLOCKS) >= 2

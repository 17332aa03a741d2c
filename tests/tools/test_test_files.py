"""The files of the tests themselves."""

from pathlib import Path

TESTS = Path(__file__).parent.parent
MOST_LINES = 400  # so that a file has one concept


def test_no_file_is_longer_than_one_can_read_at_once() -> None:
    lines = {
        path.relative_to(TESTS): len(path.read_text(encoding="utf-8").splitlines()) for path in TESTS.rglob("*.py")
    }
    assert len(lines) > 300
    assert {path: count for path, count in lines.items() if count > MOST_LINES} == {}

"""`generate_dataset`: one answer per row, whoever dies; what is done is not done again; shared prefixes meet."""

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nanoinfer import LLM, SamplingParams
from tests.cluster.on_ray.conftest import OPTIONS
from tests.helpers.waiting import HANG_S, Worker, until

PARAMS = SamplingParams(max_new_tokens=12, seed=11)
STORIES = [  # longer than what an engine computes twice to save a pass
    f"There was once a {who} who lived {where} and liked to play, to sing and to eat with all the friends that came to see "
    f"the house each day. It was warm and sunny, the birds sang in the trees, and nobody wanted to go home before it was "
    f"dark and the moon was in the sky. One day the {who} was very"
    for who in ("fox", "hen", "bear", "owl")
    for where in ("in the big dark forest", "by the old river", "on a little hill")
]


def rows(count: int) -> list[dict[str, Any]]:
    """Rows whose prompts share beginnings, shuffled."""
    numbers = sorted(range(count), key=lambda i: i * 7919 % count)
    return [{"key": f"row {i}", "prompt": f"{STORIES[i % len(STORIES)]} {i}"} for i in numbers]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    from tests.helpers.ray_cluster import three_nodes

    with three_nodes() as cluster:
        yield cluster


@pytest.fixture
def given(nodes: Any) -> dict[str, Any]:
    return {"params": PARAMS, "options": OPTIONS, "rows_per_block": 8, "use_tqdm": False, "stall_timeout_s": HANG_S}


@pytest.fixture(scope="module")
def wanted(llm: LLM) -> dict[str, str]:
    """Each row's text, by one engine."""
    from nanoinfer.cluster.data.generator import Work

    work = Work("story", OPTIONS, PARAMS, "prompt", "key", 11)
    table = rows(96)
    outputs = llm.generate(
        [row["prompt"] for row in table], [work.params_of(row["key"]) for row in table], use_tqdm=False
    )
    return {row["key"]: output.text for row, output in zip(table, outputs, strict=True)}


def texts(found: list[dict[str, Any]]) -> dict[str, str]:
    """The answers by key; each key once."""
    assert len({row["key"] for row in found}) == len(found)
    assert all(row["error"] is None and row["finish_reason"] for row in found)
    return {row["key"]: row["text"] for row in found}


def check_that_rows_met(found: list[dict[str, Any]]) -> None:
    """Rows that begin alike went to one replica, one after another: each beginning is computed once, and once more where
    the work was cut. Over two runs, rows in any order would have two replicas compute each of them 3.4 times in all."""
    tokenizer = LLM("story", **OPTIONS).tokenizer
    beginnings = sum(len(tokenizer.encode(story)) for story in STORIES)
    prompts, cached = sum(row["prompt_tokens"] for row in found), sum(row["cached_tokens"] for row in found)
    own = prompts - len(found) // len(STORIES) * beginnings
    assert prompts - cached <= own + 2.5 * beginnings


def with_a_death(monkeypatch: pytest.MonkeyPatch, mark: Path, deed: Callable[[], object]) -> None:
    """The worker that first comes to a certain row does the deed."""
    from nanoinfer.cluster.data import generate
    from tests.helpers.ray_deaths import WorkWithADeath

    monkeypatch.setattr(generate, "Work", partial(WorkWithADeath, fatal_key="row 50", mark=mark, deed=deed))


def test_a_workers_death_loses_and_repeats_nothing(
    nodes: Any, given: Any, wanted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray.data

    from nanoinfer.cluster.data.generate import generate_dataset
    from tests.helpers.ray_deaths import die

    with_a_death(monkeypatch, tmp_path / "mark", die)
    answers = generate_dataset(ray.data.from_items(rows(96)), tmp_path / "out", **given)
    assert (tmp_path / "mark").exists(), "nobody has died"
    assert texts(answers.take_all()) == wanted


@pytest.mark.soak
def test_a_nodes_death_loses_and_repeats_nothing(
    nodes: Any, given: Any, wanted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies while one of its workers has a block in hand."""
    import ray.data

    from nanoinfer.cluster.data.generate import generate_dataset
    from tests.helpers.ray_deaths import hang

    mark = tmp_path / "mark"
    with_a_death(monkeypatch, mark, hang)

    def kill() -> None:
        until(mark.exists, "a worker that comes to the row")
        nodes.kill_node(mark.read_text())

    killing = Worker(kill)
    patient = {**given, "most_failures": 6}
    answers = generate_dataset(ray.data.from_items(rows(96)), tmp_path / "out", **patient)
    killing.result()
    assert texts(answers.take_all()) == wanted
    nodes.nodes.append(nodes.add_node())


@pytest.mark.soak
def test_a_second_start_does_what_is_missing(nodes: Any, given: Any, wanted: Any, tmp_path: Path) -> None:
    import ray.data

    from nanoinfer.cluster.data.generate import generate_dataset

    class StopHereError(Exception):
        pass

    def stop(done: int, total: int) -> None:
        if done >= total // 3:
            raise StopHereError

    dataset = ray.data.from_items(rows(96))
    with pytest.raises(StopHereError):
        generate_dataset(dataset, tmp_path / "out", on_progress=stop, **{**given, "replicas": 1})
    parts = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("part-*")}
    assert parts
    told: list[int] = []
    answers = generate_dataset(dataset, tmp_path / "out", on_progress=lambda done, total: told.append(done), **given)
    assert told[0] > 96 // 3
    found = answers.take_all()
    assert texts(found) == wanted
    check_that_rows_met(found)
    assert parts.items() <= {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("part-*")}.items()
    before = told[:]
    again = generate_dataset(dataset, tmp_path / "out", on_progress=before.append, **given)
    assert texts(again.take_all()) == wanted
    assert before == told, "a third start computed something"


@pytest.mark.soak
def test_the_example_of_the_guide_runs(
    nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    guide = Path(__file__).parent.parent.parent.parent / "notebooks" / "handbook" / "cluster.md"
    (code,) = re.findall(r"```python3\n(.*?)```", guide.read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "the guide's example", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.count("'text'") == 3


@pytest.mark.parametrize(
    ("table", "changes", "message"),
    [
        (
            [{"key": 1, "text": "a"}],
            {},
            r"prompt_column='prompt': the dataset has no such column; it has 'key', 'text'",
        ),
        ([{"key": 1, "prompt": "a"}, {"key": 1, "prompt": "b"}], {}, "key_column='key': 1: 2 rows have it"),
        ([{"key": 1.5, "prompt": "a"}], {}, r"key_column='key': 1.5: must be a text or an integer"),
        ([{"key": 1, "prompt": "a", "error": ""}], {}, "dataset: has a column 'error', which the answers need"),
        ([{"key": 1, "prompt": "a"}], {"params": SamplingParams(n=2)}, "params: n=2: must be 1"),
        ([{"key": 1, "prompt": "a"}], {"replicas": 0}, "replicas=0: must be an integer of at least 1"),
    ],
)
def test_what_cannot_be_answered_is_refused_at_once(
    nodes: Any, given: Any, tmp_path: Path, table: Any, changes: Any, message: str
) -> None:
    import ray.data

    from nanoinfer.cluster.data.generate import generate_dataset

    with pytest.raises(ValueError, match=message):
        generate_dataset(ray.data.from_items(table), tmp_path / "out", **{**given, **changes})
    assert not list(tmp_path.glob("out/part-*"))

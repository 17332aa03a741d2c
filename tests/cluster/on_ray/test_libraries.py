"""What is deployed, and what a dataset run keeps and computes, without a Ray that runs: only its libraries are needed."""

from pathlib import Path
from typing import Any

import pytest

from nanoinfer import SamplingParams
from nanoinfer.cluster.data.answer_folder import AnswerFolder
from nanoinfer.cluster.data.generator import ANSWER_COLUMNS, ORDER, Generator, Work, order_of, with_order
from nanoinfer.cluster.policies import make_policy
from nanoinfer.cluster.serve.settings import ClusterSettings
from nanoinfer.config import EngineConfig

PARAMS = SamplingParams(max_new_tokens=6)
SETTINGS = {"model": "story", "seed": None}


def table(**columns: list[Any]) -> Any:
    import pyarrow

    return pyarrow.table(columns)


@pytest.fixture(scope="module")
def generator() -> Generator:
    options = {"max_total_tokens": 2048, "max_running_requests": 4}
    return Generator(Work("story", options, PARAMS, "prompt", "key", 3))


def test_bad_rows_say_why_and_the_others_are_answered(generator: Generator) -> None:
    rows = table(key=[1, 2, 3, 4], prompt=["A fox", "", "word " * 5000, None], other=["a", "b", "c", "d"])
    found = {row["key"]: row for row in generator(with_order(rows, "prompt")).to_pylist()}
    assert set(found[1]) == {"key", "prompt", "other", *ANSWER_COLUMNS}
    assert found[1]["error"] is None
    assert found[1]["text"]
    assert len(found[1]["token_ids"]) == 6
    assert found[2]["error"] == "2: is empty"
    assert found[2]["text"] is None
    assert "max_context_len" in found[3]["error"]
    assert "must be text or a list of token ids" in found[4]["error"]


def test_a_row_gets_the_same_tokens_in_any_company(generator: Generator) -> None:
    rows = table(key=["a", "b", "c"], prompt=["A fox", "A hen", "A fox"])
    all_three = {row["key"]: row["token_ids"] for row in generator(rows).to_pylist()}
    for i, key in enumerate("abc"):
        assert generator(rows.slice(i, 1)).to_pylist()[0]["token_ids"] == all_three[key]
    assert all_three["a"] != all_three["c"], "the seed depends on the key"
    assert generator(rows.slice(0, 0)).num_rows == 0


def test_prompts_that_begin_alike_are_neighbours() -> None:
    prompts = ["the hen ran", "a fox sat", "the hen sat", "a fox ran"]
    ordered = with_order(table(prompt=prompts), "prompt").sort_by(ORDER).column("prompt").to_pylist()
    assert ordered == sorted(prompts)
    assert sorted([[5, 6], [300], [5], [5, 6, 1]], key=order_of) == [[5], [5, 6], [5, 6, 1], [300]]


def test_a_row_is_kept_once_and_found_again(tmp_path: Path) -> None:
    with AnswerFolder(tmp_path / "out", "key", SETTINGS) as folder:
        assert folder.add(table(key=[1, 2], text=["a", "b"])) == 2
        assert folder.add(table(key=[2, 3], text=["other", "c"])) == 1
        assert folder.add(table(key=[1, 3], text=["other", "other"])) == 0
        seed = folder.settings["seed"]
    (tmp_path / "out" / "part-000002.unfinished").write_text("half of a file")
    with AnswerFolder(tmp_path / "out", "key", SETTINGS) as folder:
        assert folder.done == {1, 2, 3}
        assert folder.settings["seed"] == seed, "a seed that was drawn stays"
        assert folder.add(table(key=[4], text=["d"])) == 1
        assert len(folder.files()) == 3
    import pyarrow.parquet as parquet

    assert [row["text"] for name in folder.files() for row in parquet.read_table(name).to_pylist()] == list("abcd")


def test_a_folder_has_one_writer_and_one_purpose(tmp_path: Path) -> None:
    with AnswerFolder(tmp_path, "key", SETTINGS), pytest.raises(ValueError, match="another process writes there"):
        AnswerFolder(tmp_path, "key", SETTINGS).__enter__()
    with pytest.raises(ValueError, match=r"model='other': the answers in output=.* are for 'story'"):
        AnswerFolder(tmp_path, "key", {**SETTINGS, "model": "other"}).__enter__()
    with AnswerFolder(tmp_path, "key", SETTINGS) as folder:
        assert not folder.done


CONFIG = EngineConfig(max_running_requests=3, max_total_tokens=512, max_context_len=256, chunked_prefill_size=None)


def test_the_ingress_router_knows_how_much_a_replica_does_at_once() -> None:
    """Otherwise it takes a replica whose batch is full for one that begins at once."""
    from nanoinfer.cluster.serve.applications import fleet_arguments

    settings = ClusterSettings(policy_options={"max_imbalance_s": 3.0})
    wanted = {"block_size": 16, "max_running_requests": 3, "chunk_tokens": 256, "max_imbalance_s": 3.0}
    arguments = fleet_arguments(settings, CONFIG)
    assert (arguments["policy"], arguments["options"]) == ("prefix", wanted)
    make_policy("prefix", None, wanted)
    own = ClusterSettings(policy_options={"max_running_requests": 2, "chunk_tokens": 64})
    assert fleet_arguments(own, CONFIG)["options"] == {"max_running_requests": 2, "chunk_tokens": 64, "block_size": 16}


def test_what_another_policy_does_not_take_is_not_given_to_it() -> None:
    from nanoinfer.cluster.serve.applications import fleet_arguments

    assert fleet_arguments(ClusterSettings(policy="least-loaded"), CONFIG)["options"] == {}

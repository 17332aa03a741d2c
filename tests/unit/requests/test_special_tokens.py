"""Special tokens, however a checkpoint flags and names them: what ends an output, and what is in its text."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from nanoinfer import LLM, RequestOutput, SamplingParams
from tests.helpers.scripted_checkpoint import END, make

TURN = "<|turn|>"


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def flags(path: Path, **special: bool) -> None:
    """Flag added tokens in tokenizer.json, and name none of them in tokenizer_config.json."""
    added = json.loads((path / "tokenizer.json").read_text())["added_tokens"]
    for token in added:
        token["special"] = special.get(token["content"], token["special"])
    edit(path / "tokenizer.json", added_tokens=added)
    config = json.loads((path / "tokenizer_config.json").read_text())
    kept = {key: value for key, value in config.items() if "token" not in key or key == "tokenizer_class"}
    (path / "tokenizer_config.json").write_text(json.dumps(kept))


def serve(path: Path, **fields: Any) -> RequestOutput:
    llm = LLM(path, max_total_tokens=256)
    return llm.generate("\n", SamplingParams(max_new_tokens=20, temperature=0, **fields))[0]


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("skips", [True, False])
def test_a_stop_string_that_is_a_special_tokens_text_stops(named: bool, skips: bool, tmp_path: Path) -> None:
    path = make(tmp_path / "model", ["Hello", TURN, " more"], added=[TURN], special=[TURN], named=named)
    output = serve(path, stop=[TURN, "never"], skip_special_tokens=skips)
    assert (output.text, output.finish_reason, output.stop_reason) == ("Hello", "stop", TURN)
    assert serve(path, skip_special_tokens=skips).text == ("Hello more" if skips else f"Hello{TURN} more")


def test_an_end_token_is_not_shown_though_it_is_not_flagged(tmp_path: Path) -> None:
    path = make(tmp_path / "model", ["Hello", " there"])
    flags(path, **{END: False})
    assert END not in AutoTokenizer.from_pretrained(path).all_special_tokens
    for skips in (True, False):
        output = serve(path, skip_special_tokens=skips)
        assert (output.text, output.finish_reason, output.stop_reason) == ("Hello there", "stop", None)
    shown = serve(path, skip_special_tokens=False, include_stop_str_in_output=True)
    assert shown.text == f"Hello there{END}"


@pytest.mark.parametrize("config_says", [None, 7])
def test_an_end_token_that_only_the_tokenizer_names_ends_too(config_says: int | None, tmp_path: Path) -> None:
    path = make(tmp_path / "model", ["Hello", " there"])
    edit(path / "config.json", eos_token_id=config_says)
    (path / "generation_config.json").unlink()
    output = serve(path)
    assert (output.text, output.finish_reason, len(output.token_ids)) == ("Hello there", "stop", 3)


@pytest.mark.parametrize("named", [True, False])
def test_grammars_hold_where_a_special_token_is_only_flagged(named: bool, tmp_path: Path) -> None:
    """The model would go on with the special token, and its text, spelled out, is what the grammar asks for."""
    path = make(tmp_path / "model", ["Hello", TURN, " more"], added=[TURN], special=[TURN], named=named)
    output = serve(path, regex=r"Hello<\|turn\|>")
    assert output.text == f"Hello{TURN}"
    assert len(output.token_ids) == 1 + len(TURN)
    assert serve(path, choice=["Hello more"]).text == "Hello more"
    assert json.loads(serve(path, json_schema={"const": {"a": [TURN]}}, ignore_eos=True).text) == {"a": [TURN]}

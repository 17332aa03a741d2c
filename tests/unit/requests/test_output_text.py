"""What a text has in it and what ended it: special tokens, stop strings, stop_reason, and the prompt."""

import copy
import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from nanoinfer import LLM, Engine, RequestOutput, SamplingParams
from nanoinfer.model.loader import resolve_model_path
from nanoinfer.requests.pieces import PieceReader
from nanoinfer.requests.request import Request
from nanoinfer.requests.tokenizer import IncrementalDetokenizer
from tests.helpers.engines import LetterTokenizer, finish, greedy, serve
from tests.helpers.engines import make_engine as make_engine_with
from tests.helpers.scripted_checkpoint import END, make
from tests.helpers.texts import TOKENIZER, PieceTokenizer

ALL = {"skip_special_tokens": False}
WHOLE = {"include_stop_str_in_output": True}


class SpecialLetters(LetterTokenizer):
    """$ and % are special tokens."""

    special_ids = frozenset(b"$%")

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return bytes(token for token in token_ids if not skip_special_tokens or token not in b"$%").decode()


def make_engine(eos: Sequence[int] = ()) -> Engine:
    return make_engine_with(eos=eos, tokenizer=SpecialLetters())


@pytest.mark.parametrize(
    ("fields", "text", "stop_reason"),
    [  # after "!" the model says "\"#$%&'()", of which $ and % are special tokens, and ) is the end token, not flagged so
        ({}, "\"#&'(", None),
        (WHOLE, "\"#&'(", None),
        ({"stop": "&'"}, '"#', "&'"),
        ({"stop": "&'", **WHOLE}, "\"#&'", "&'"),
        ({"stop_token_ids": b"&"}, '"#&', ord("&")),
        ({"stop_token_ids": b"$"}, '"#', ord("$")),
        (ALL, "\"#$%&'(", None),
        ({**ALL, **WHOLE}, "\"#$%&'()", None),
        ({"stop_token_ids": b"%", **ALL}, '"#$', ord("%")),
        ({"stop": "$", **ALL}, '"#', "$"),
        ({"stop": "#$", **ALL, **WHOLE}, '"#$', "#$"),
        ({"stop": "$"}, '"#', "$"),  # also where it is not in the text
        ({"stop": "%", "min_new_tokens": 5}, "\"#&'(", None),  # too early
        ({"stop": ["#!", ")"]}, "\"#&'(", ")"),  # an end token, too
        ({"stop": ["#!", "$"]}, '"#', "$"),  # what was held back comes out
        ({"stop": "$%"}, "\"#&'(", None),  # it is not in the text
        ({"stop": "#", "stop_token_ids": b"#"}, '"', "#"),  # both: what the text shows
        ({"stop": "#", "min_new_tokens": 3, "max_new_tokens": 3}, '"#', None),  # too early to end it
        ({"stop": "'(", "max_new_tokens": 6, **ALL}, "\"#$%&'", None),  # held back, and released at the end
        ({"stop": "$!", "stop_token_ids": b"%", **ALL}, '"#$', ord("%")),  # released by a stop token that is not shown
    ],
)
def test_what_a_text_ends_with(fields: dict[str, Any], text: str, stop_reason: Any) -> None:
    fields = {"max_new_tokens": 20, **fields}
    if "stop_token_ids" in fields:
        fields["stop_token_ids"] = list(fields["stop_token_ids"])
    engine = make_engine(eos=[ord(")")])
    (output,) = serve(engine, "!", **fields)
    assert (output.text, output.stop_reason) == (text, stop_reason)
    assert output.outputs[0].stop_reason == stop_reason


def test_an_end_token_that_is_special_shows_only_where_both_are_asked_for() -> None:
    for fields, text in (({}, '"#'), (ALL, '"#'), (WHOLE, '"#'), ({**ALL, **WHOLE}, '"#$')):
        (output,) = serve(make_engine(eos=b"$"), "!", max_new_tokens=9, **fields)
        assert (output.text, output.token_ids, output.stop_reason) == (text, list(b'"#$'), None)


def test_a_piece_says_what_ended_it() -> None:
    engine = make_engine()
    group = engine.prepare(Request("a", greedy(9, stop="d", include_stop_str_in_output=True)))
    engine.submit(group)
    finish(engine)
    (piece,) = PieceReader(group).read()
    assert (piece.text, piece.finish_reason, piece.stop_reason) == ("bcd", "stop", "d")


def test_a_request_that_runs_or_is_aborted_has_no_stop_reason() -> None:
    engine = make_engine()
    rid = engine.add_request("a", greedy(9, stop_token_ids=[ord("b"), ord("c")], min_new_tokens=5))
    assert engine.step()[0].stop_reason is None
    aborted = engine.abort(rid)
    assert aborted is not None
    assert (aborted.finish_reason, aborted.stop_reason) == ("abort", None)


@pytest.mark.parametrize(("prompt", "text"), [("ab", "ab"), ([97, 98], None)])
def test_an_output_has_its_prompt_as_text_where_it_came_as_text(prompt: Any, text: str | None) -> None:
    (output,) = serve(make_engine(), prompt)
    assert (output.prompt, output.prompt_token_ids) == (text, [97, 98])


def test_stop_strings_are_kept_token_by_token_whatever_their_boundaries() -> None:
    detokenizer = IncrementalDetokenizer(PieceTokenizer(["one ", "E", "N", "D two"]), stop=["END"], include_stop=True)
    assert [detokenizer.add(token) for token in range(4)] == ["one ", "", "", "END"]
    assert (detokenizer.stop_found, detokenizer.flush()) == ("END", "")


def test_special_tokens_that_show_are_those_of_transformers() -> None:
    hf_tokenizer = AutoTokenizer.from_pretrained(resolve_model_path("story"))
    chat = [{"role": "user", "content": "Hi 😀"}, {"role": "assistant", "content": "中文."}]
    ids = hf_tokenizer.apply_chat_template(chat)["input_ids"] * 3
    for start in range(len(ids)):
        detokenizer = IncrementalDetokenizer(TOKENIZER, ids[:start], skip_special_tokens=False)
        text = "".join(detokenizer.add(token) for token in ids[start:]) + detokenizer.flush()
        whole = hf_tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        before = hf_tokenizer.decode(ids[:start], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        assert before.rstrip("\ufffd") + text == whole


def test_params_of_several_completions_reach_each_of_them() -> None:
    engine = make_engine(eos=b"$")
    params = SamplingParams(max_new_tokens=9, n=2, **ALL, **WHOLE)  # type: ignore[arg-type]
    engine.add_request("!", params)
    (output,) = finish(engine).values()
    assert [completion.text for completion in output.outputs] == ['"#$', '"#$']


def test_the_sum_of_log_probabilities_is_there_under_vllms_name() -> None:
    engine = make_engine()
    engine.add_request([5], greedy(3, logprobs=2))
    engine.add_request([5], greedy(3))
    asked, not_asked = finish(engine).values()
    wanted = sum(entry[token] for token, entry in zip(asked.token_ids, asked.logprobs, strict=True))
    assert asked.outputs[0].cumulative_logprob == pytest.approx(wanted)
    assert not_asked.outputs[0].cumulative_logprob is None


def test_an_output_can_be_copied_and_sent() -> None:
    (output,) = serve(make_engine(), [5])
    assert copy.deepcopy(output).token_ids == pickle.loads(pickle.dumps(output)).token_ids == output.token_ids


# --- special tokens, however a checkpoint flags and names them --------------------------------------------------------

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


def serve_checkpoint(path: Path, **fields: Any) -> RequestOutput:
    llm = LLM(path, max_total_tokens=256)
    return llm.generate("\n", SamplingParams(max_new_tokens=20, temperature=0, **fields))[0]


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("skips", [True, False])
def test_a_stop_string_that_is_a_special_tokens_text_stops(named: bool, skips: bool, tmp_path: Path) -> None:
    path = make(tmp_path / "model", ["Hello", TURN, " more"], added=[TURN], special=[TURN], named=named)
    output = serve_checkpoint(path, stop=[TURN, "never"], skip_special_tokens=skips)
    assert (output.text, output.finish_reason, output.stop_reason) == ("Hello", "stop", TURN)
    assert serve_checkpoint(path, skip_special_tokens=skips).text == ("Hello more" if skips else f"Hello{TURN} more")


def test_an_end_token_is_not_shown_though_it_is_not_flagged(tmp_path: Path) -> None:
    path = make(tmp_path / "model", ["Hello", " there"])
    flags(path, **{END: False})
    assert END not in AutoTokenizer.from_pretrained(path).all_special_tokens
    for skips in (True, False):
        output = serve_checkpoint(path, skip_special_tokens=skips)
        assert (output.text, output.finish_reason, output.stop_reason) == ("Hello there", "stop", None)
    shown = serve_checkpoint(path, skip_special_tokens=False, include_stop_str_in_output=True)
    assert shown.text == f"Hello there{END}"


@pytest.mark.parametrize("config_says", [None, 7])
def test_an_end_token_that_only_the_tokenizer_names_ends_too(config_says: int | None, tmp_path: Path) -> None:
    path = make(tmp_path / "model", ["Hello", " there"])
    edit(path / "config.json", eos_token_id=config_says)
    (path / "generation_config.json").unlink()
    output = serve_checkpoint(path)
    assert (output.text, output.finish_reason, len(output.token_ids)) == ("Hello there", "stop", 3)


@pytest.mark.parametrize("named", [True, False])
def test_grammars_hold_where_a_special_token_is_only_flagged(named: bool, tmp_path: Path) -> None:
    """The model would go on with the special token, and its text, spelled out, is what the grammar asks for."""
    path = make(tmp_path / "model", ["Hello", TURN, " more"], added=[TURN], special=[TURN], named=named)
    output = serve_checkpoint(path, regex=r"Hello<\|turn\|>")
    assert output.text == f"Hello{TURN}"
    assert len(output.token_ids) == 1 + len(TURN)
    assert serve_checkpoint(path, choice=["Hello more"]).text == "Hello more"
    assert json.loads(serve_checkpoint(path, json_schema={"const": {"a": [TURN]}}, ignore_eos=True).text) == {
        "a": [TURN]
    }

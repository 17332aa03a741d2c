"""The options of commands: the fields of EngineConfig and SamplingParams, and LLM's other arguments, under all names."""

import subprocess
import sys
from dataclasses import fields
from inspect import signature
from typing import Any

import pytest

from nanoinfer import LLM
from nanoinfer.cli.main import build_parser
from nanoinfer.cli.options import ENGINE, GRAMMARS, SAMPLING, choose_model, llm_options, sampling_params
from nanoinfer.config import EngineConfig
from nanoinfer.keywords import ALIASES
from notebooks.tools.files import ROOT
from tests.helpers.command_line import run


def parsed(*words: str) -> Any:
    return build_parser().parse_args(list(words))


def test_every_option_of_llm_is_an_option_of_commands() -> None:
    named = signature(LLM.__init__).parameters.keys() - {"self", "model", "engine_options", "trace"}
    assert {*ENGINE} == named | {field.name for field in fields(EngineConfig)}


def test_what_is_not_given_is_left_to_llm() -> None:
    assert llm_options(parsed("info")) == {"adapters": {}, "drafter": None, "tensor_parallel_size": 1}


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["--kv-cache-dtype", "int8", "--cache-dir", "5"], {"kv_cache_dtype": "int8", "cache_dir": "5"}),
        (
            ["--chunked-prefill-size", "none", "--max-overtakes", "5"],
            {"chunked_prefill_size": None, "max_overtakes": 5},
        ),
        (
            ["--adaptive-drafts", "false", "--disable-radix-cache"],
            {"adaptive_drafts": False, "disable_radix_cache": True},
        ),
        (["--capture", "auto", "--kv-memory-share", "0.5"], {"capture": "auto", "kv_memory_share": 0.5}),
        (["--schedule-conservativeness", "2"], {"schedule_conservativeness": 2.0}),
        (["--drafter", "ngram", "--drafter", "tree"], {"drafter": ("ngram", "tree")}),
        (["--adapter", "sea", "--adapter", "a=b"], {"adapters": {"sea": "sea", "a": "b"}}),
    ],
)
def test_an_option_reaches_llm(words: list[str], options: dict[str, Any]) -> None:
    assert llm_options(parsed("info", *words)).items() >= options.items()


def test_an_option_of_sampling_reaches_the_params() -> None:
    words = ("--stop", "a", "--stop", "5", "--top-k", "3", "--min-p", "0.5", "--n", "2", "--choice", "x", "--seed", "4")
    params = sampling_params(parsed("generate", "x", *words))
    assert (params.stop, params.top_k, params.min_p, params.n, params.choice) == (("a", "5"), 3, 0.5, 2, ("x",))
    assert (params.seed, params.temperature) == (4, 0.7)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (theirs, ours)
        for theirs, ours in ALIASES.items()
        if ours in {*ENGINE, *SAMPLING, *GRAMMARS} and theirs != "seed"
    ],
)
def test_another_engines_name_is_an_option_too(theirs: str, ours: str) -> None:
    args = parsed("generate", "x", f"--{theirs.replace('_', '-')}", "1")
    assert str(vars(args)[ours]) in ("1", "1.0", "['1']")


@pytest.mark.parametrize(
    ("argv", "program", "near"),
    [
        (["generate", "Once", "--max-newtokens", "3"], "generate", "--max-new-tokens"),
        (["bench", "tiers", "--conversatons", "4"], "bench tiers", "--conversations"),
        (["demo", "--disable-radix-cache"], "demo", ""),
        (["demo", "prefix", "story"], "demo", "--model"),
    ],
)
def test_an_unknown_argument_is_answered_by_the_commands_own_help(
    argv: list[str], program: str, near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(argv, capsys)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert near in err
    assert f"python -m nanoinfer {program} --help" in err


def test_options_in_short_and_texts_that_look_like_options_are_understood() -> None:
    args = parsed("generate", "--max-new", "3", "--stop=--max-tokens", "-- he said", "--", "--no")
    assert (args.max_new_tokens, args.stop, args.prompt) == (3, ["--max-tokens"], ["-- he said", "--no"])


@pytest.mark.parametrize("argv", [["--help"], ["chat", "--help"], ["bench", "run", "--help"]])
def test_help_and_version_load_no_torch(argv: list[str]) -> None:
    code = f"""import sys
from nanoinfer.cli.main import main
try:
    main({argv})
finally:
    print(*sys.modules, file=sys.stderr)"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout
    assert not {"torch", "numpy", "transformers"} & set(done.stderr.split())


@pytest.mark.parametrize("command", ["chat", "serve", "info"])
def test_the_model_is_the_argument_or_the_option_but_not_both(command: str) -> None:
    for argv, model in ((["tiny"], "tiny"), (["--model", "tiny"], "tiny"), ([], "story")):
        args = parsed(command, *argv)
        choose_model(args)
        assert args.model == model
    with pytest.raises(ValueError, match="--model one: MODEL is given as well"):
        choose_model(parsed(command, "two", "--model", "one"))

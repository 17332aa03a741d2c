"""The options of commands: all of LLM's, under our names and those of other engines, from one table."""

import re
from dataclasses import fields
from inspect import signature
from typing import Any

import pytest

from nanoinfer import LLM
from nanoinfer.cli.main import build_parser
from nanoinfer.cli.options import ENGINE_OPTIONS, GRAMMAR_OPTIONS, SAMPLING_OPTIONS, llm_options
from nanoinfer.config import EngineConfig
from nanoinfer.registry import (
    ATTENTION_BACKENDS,
    DRAFTERS,
    EVICTION_POLICIES,
    KV_STORAGES,
    QUANTIZATIONS,
    SCHEDULE_POLICIES,
    Registry,
)
from nanoinfer.requests.keywords import ALIASES

DEFAULTS = {
    **{field.name: field.default for field in fields(EngineConfig)},
    **{name: it.default for name, it in signature(LLM.__init__).parameters.items()},
}


def parsed(*words: str) -> Any:
    return build_parser().parse_args(list(words))


def test_every_option_of_llm_is_an_option_of_commands() -> None:
    named = signature(LLM.__init__).parameters.keys() - {"self", "model", "engine_options", "trace"}
    assert ENGINE_OPTIONS.keys() == named | {field.name for field in fields(EngineConfig)}


@pytest.mark.parametrize("name", ENGINE_OPTIONS)
def test_its_default_is_the_one_of_llm_and_so_says_the_help(name: str) -> None:
    options = llm_options(parsed("info"))
    without = {"drafter": None, "adapters": {}, "tensor_parallel_size": 1}
    assert options.get(name, DEFAULTS[name]) == without.get(name, DEFAULTS[name])
    said = re.search(r"\(default: ([\w.-]+)\)$", ENGINE_OPTIONS[name]["help"])
    if said is not None and said[1] != "auto":
        assert said[1] == str(DEFAULTS[name]).lower()


def test_an_option_reaches_llm() -> None:
    args = parsed(
        *("generate", "x", "--kv-cache-dtype", "int8", "--chunked-prefill-size", "none", "--max-overtakes", "5"),
        *("--adaptive-drafts", "false", "--eviction-policy", "lfu", "--random-seed", "3", "--kv-memory-share", "0.5"),
    )
    wanted = {"kv_cache_dtype": "int8", "chunked_prefill_size": None, "max_overtakes": 5, "adaptive_drafts": False}
    wanted |= {"eviction_policy": "lfu", "random_seed": 3, "kv_memory_share": 0.5}
    assert {name: llm_options(args)[name] for name in wanted} == wanted


@pytest.mark.parametrize("words", [["--adaptive-drafts", "no"], ["--chunked-prefill-size", "x"]])
def test_a_value_that_is_none_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("generate", "x", *words)
    assert re.search(rf"argument {words[0]}: '{words[1]}': must be ", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("alias", "ours"),
    [
        (alias, ours)
        for alias, ours in ALIASES.items()
        if alias != "seed" and ours in {*ENGINE_OPTIONS, *SAMPLING_OPTIONS, *GRAMMAR_OPTIONS}
    ],
)
def test_another_engines_name_is_an_option_too(alias: str, ours: str, capsys: pytest.CaptureFixture[str]) -> None:
    flag = f"--{alias.replace('_', '-')}"
    args = parsed("generate", "x", flag, "1")
    assert str(vars(args)[ours]) in ("1", "1.0", "['1']")
    with pytest.raises(SystemExit):
        parsed("generate", "--help")
    assert f"{flag} " not in capsys.readouterr().out


def test_what_an_option_that_is_not_there_is_called_here(capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (["--max-model-lenght", "5"], "did you mean --max-model-len"),
        (["--seeed", "5"], "did you mean --seed"),
    ):
        with pytest.raises(SystemExit):
            parsed("generate", "x", *words)
        assert said in capsys.readouterr().err


def test_a_server_has_a_limit_for_its_queue_of_its_own() -> None:
    assert parsed("serve").max_queue == 256
    assert parsed("serve", "--max-queue", "5").max_queue == 5
    assert parsed("generate", "x").max_queue is None


@pytest.mark.parametrize(
    "registry", [ATTENTION_BACKENDS, DRAFTERS, EVICTION_POLICIES, KV_STORAGES, QUANTIZATIONS, SCHEDULE_POLICIES]
)
def test_the_help_of_an_option_names_what_its_registry_has(
    registry: Registry[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "choices" not in ENGINE_OPTIONS[registry.option]
    monkeypatch.setenv("COLUMNS", "10000")
    with pytest.raises(SystemExit):
        parsed("generate", "--help")
    flag, lines = f"--{registry.option.replace('_', '-')} ", capsys.readouterr().out.splitlines()
    (i,) = (i for i, line in enumerate(lines) if line.strip().startswith(flag))
    assert set(registry.built_in()) <= set(re.findall(r"[\w-]+", f"{lines[i]} {lines[i + 1]}"))
    assert len(registry) > 2

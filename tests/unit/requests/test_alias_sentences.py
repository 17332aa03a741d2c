"""What the tables of aliases.py say to people who come from vLLM or SGLang is true, sentence by sentence.

Names are looked up (tests/helpers/sentences.py). What a sentence denies, and what it says without a name, must be one of
CLAIMS, whose function shows that it is still so. So whoever adds such a sentence adds a claim, and whoever adds a feature
learns which sentences deny it.
"""

import os
import re
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from nanoinfer import InvalidRequestError, SamplingParams
from nanoinfer.model.other_formats import refuse_file
from nanoinfer.registry import MODEL_FAMILIES
from nanoinfer.requests.aliases import (
    COMPLETION_ATTRIBUTES,
    LLM_ALIASES,
    LLM_ATTRIBUTES,
    LLM_ELSEWHERE,
    LLM_HARMLESS,
    OUTPUT_ATTRIBUTES,
    SAMPLING_ALIASES,
    SAMPLING_ELSEWHERE,
    SAMPLING_HARMLESS,
)
from nanoinfer.requests.keywords import ANY
from nanoinfer.requests.tokenizer_files import read_tokenizer_files
from tests.helpers import sentences
from tests.helpers.engines import finish, greedy, make_engine, serve
from tests.helpers.sentences import LLM_OPTIONS, PACKAGE, STORY, Claims, is_accepted, is_command, names_of, problems

# --- what is said not to be there, or to be always so ----------------------------------------------------------------


def nothing_like(*words: str) -> bool:
    return not any(word in name for word in words for name in sentences.all_names())


def no_option_like(*words: str) -> bool:
    return not any(word in option for word in words for option in LLM_OPTIONS)


@cache
def source() -> str:
    return "\n".join(file.read_text(encoding="utf-8") for file in PACKAGE.rglob("*.py"))


def long_prompts_are_refused() -> bool:
    with pytest.raises(InvalidRequestError, match="max_context_len"):
        make_engine().add_request([5] * 1000, greedy(4))
    return nothing_like("truncat")


def passes_are_planned_one_by_one() -> bool:
    engine, seen = make_engine(), list[str]()
    schedule, process = engine.scheduler.schedule, engine.scheduler.process_batch_result
    engine.scheduler.schedule = lambda: seen.append("plan") or schedule()  # type: ignore[method-assign, func-returns-value]
    engine.scheduler.process_batch_result = (  # type: ignore[method-assign]
        lambda *given: seen.append("end") or process(*given)  # type: ignore[func-returns-value]
    )
    engine.add_request([5], greedy(3))
    finish(engine)
    return seen == ["plan", "end"] * 3 and nothing_like("overlap", "async_scheduling")


def only_safetensors_are_read() -> bool:
    for name in ("model.gguf", "pytorch_model.bin"):
        with pytest.raises(FileNotFoundError, match="only safetensors checkpoints are supported"):
            refuse_file(Path(name))
    return no_option_like("load_format")


def huggingface_hub_reads_the_token() -> bool:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "HF_TOKEN", "hf_made_up")
        return bool(import_module("huggingface_hub").get_token() == "hf_made_up")


CLAIMS: Claims = {
    "beam search is not implemented": lambda: nothing_like("beam"),
    "which does not count the prompt's tokens": lambda: len(serve(make_engine(), [5] * 9)[0].token_ids) == 4,
    "prompts are never truncated, so shorten them yourself": long_prompts_are_refused,
    "patterns are not implemented": lambda: (
        {name for name in names_of(SamplingParams) if "stop" in name}
        == {"stop", "stop_token_ids", "include_stop_str_in_output"}
        and not is_accepted("SamplingParams", "stop", re.compile("a"))
    ),
    "code that comes with a checkpoint is never run": lambda: (
        {*re.findall(r"trust_remote_code=(\w+)", source())} == {"False"}
    ),
    "supported families need none": lambda: all(
        name.startswith("nanoinfer.model.") for name in MODEL_FAMILIES.values() if isinstance(name, str)
    ),
    "layers are not dealt out to processes": lambda: nothing_like("pipeline", "pp_size"),
    "an LLM is one engine": lambda: no_option_like("data_parallel", "dp_size", "replica", "node"),
    "the tokenizer is read from the checkpoint's directory": lambda: no_option_like("tokenizer"),
    "the tokenizer is the one that the checkpoint's files describe": lambda: no_option_like("tokenizer"),
    "a tokenizer is read if the checkpoint's directory has one": lambda: (
        read_tokenizer_files(PACKAGE / "requests") is None and no_option_like("tokenizer")
    ),
    "prompts may be token ids in any case": lambda: serve(make_engine(), [5])[0].prompt_token_ids == [5],
    "weights are read from safetensors files": only_safetensors_are_read,
    "the environment variable HF_TOKEN, which huggingface_hub reads": huggingface_hub_reads_the_token,
    "the configuration is read from the checkpoint's config.json": lambda: (
        no_option_like("rope", "hf_", "override") and (STORY / "config.json").is_file()
    ),
    "models are not compiled": lambda: nothing_like("compil") and "torch.compile(" not in source(),
    "all weights stay on the device": lambda: nothing_like("offload"),
    "a pass is always planned after the previous one has ended": passes_are_planned_one_by_one,
    "another engine: this one generates text, it has no embeddings and no scores": lambda: nothing_like(
        "embed", "encode", "score", "classify", "reward", "rerank", "pooling"
    ),
}

# A name of HARMLESS that has other values elsewhere, and parts of names that would mean that one is there now.
NOTHING_ELSE: dict[str, tuple[str, ...]] = {
    "detokenize": ("detokeni",),
    "custom_params": ("custom",),
    "extra_args": ("extra_args",),
    "flat_logprobs": ("flat",),
    "skip_reading_prefix_cache": ("skip_reading", "prefix_cache"),
    "spaces_between_special_tokens": ("spaces",),
    "enable_dp_attention": ("dp_",),
    "enable_eplb": ("eplb", "expert"),
    "enable_expert_parallel": ("expert", "moe", "mixtral"),
    "enable_mixed_chunk": ("mixed",),
    "enable_prompt_embeds": ("embed",),
    "enable_sleep_mode": ("sleep", "wake"),
    "enable_torch_compile": ("compil",),
    "fully_sharded_loras": ("shard",),
    "is_embedding": ("embed",),
    "ray_workers_use_nsight": ("nsight",),
    "delete_ckpt_after_loading": ("delete", "ckpt"),
    "disable_sliding_window": ("sliding", "disable_window"),
    "worker_use_ray": ("use_ray",),
    "async_scheduling": ("async", "overlap"),
    "multi_step_stream_outputs": ("stream_outputs",),
    "limit_mm_per_prompt": ("mm_", "vision", "image", "multimodal"),
    "mm_processor_kwargs": ("mm_", "vision", "image", "multimodal"),
    "runner": ("runner",),
    "task": ("task",),
    "config_format": ("config_format",),
    "convert": ("convert",),
    "enable_lora": ("enable_lora", "enable_adapters"),
    "kv_transfer_config": ("transfer", "disaggregat"),
    "lora_dtype": ("lora_dtype", "adapter_dtype"),
    "scheduler_delay_factor": ("delay",),
    "speculative_eagle_topk": ("eagle", "medusa"),
}
HARMLESS: dict[str, tuple[object, ...]] = {**SAMPLING_HARMLESS, **LLM_HARMLESS}
TABLES: dict[str, tuple[str, Mapping[str, str]]] = {
    "SAMPLING_ELSEWHERE": (
        "SamplingParams",
        {name: it.sentence for name, it in SAMPLING_ELSEWHERE.items() if name not in SAMPLING_HARMLESS},
    ),
    "LLM_ELSEWHERE": ("LLM", {name: it.sentence for name, it in LLM_ELSEWHERE.items() if name not in LLM_HARMLESS}),
    "OUTPUT_ATTRIBUTES": ("RequestOutput", OUTPUT_ATTRIBUTES),
    "COMPLETION_ATTRIBUTES": ("CompletionOutput", COMPLETION_ATTRIBUTES),
    "LLM_ATTRIBUTES": ("LLM", LLM_ATTRIBUTES),
}


@pytest.mark.parametrize(("table", "name"), [(table, name) for table, (_, said) in TABLES.items() for name in said])
def test_a_sentence_is_true(table: str, name: str) -> None:
    owner, said = TABLES[table]
    assert not problems(said[name], owner, CLAIMS, table.endswith("ATTRIBUTES"))


def test_every_claim_is_in_a_sentence() -> None:
    said = "\n".join(sentence for _, table in TABLES.values() for sentence in table.values())
    assert not [claim for claim in CLAIMS if claim not in said]
    assert not NOTHING_ELSE.keys() - HARMLESS.keys()


@pytest.mark.parametrize("name", HARMLESS)
def test_a_harmless_name_asks_for_nothing_that_is_here(name: str) -> None:
    assert name not in sentences.all_names(), "it is ours, so HARMLESS hides it or denies it"
    assert name not in (LLM_ALIASES if name in LLM_HARMLESS else SAMPLING_ALIASES), "it is another name of ours"
    if ANY not in HARMLESS[name]:
        assert nothing_like(*NOTHING_ELSE[name])


def test_a_sentence_for_llm_hides_an_argument_of_requests_only_if_it_says_where_that_belongs() -> None:
    assert not LLM_OPTIONS & {*LLM_ALIASES, *LLM_ELSEWHERE}
    for name in LLM_ELSEWHERE.keys() & {*names_of(SamplingParams), *SAMPLING_ALIASES}:
        assert f"SamplingParams({name}=" in LLM_ELSEWHERE[name].sentence


def test_a_command_says_of_what_is_harmless_with_any_value_that_it_changes_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert not is_command(["generate", "x", "--log-level", "debug"])
    assert "--log-level; nothing here depends on it (" in capsys.readouterr().err


# --- the checks themselves, on made-up sentences ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sentence", "owner", "problem"),
    [
        ("use max_newer_tokens=...", "SamplingParams", "not there: 'max_newer_tokens=...'"),
        ("use page_size=...", "SamplingParams", "not there: 'page_size=...'"),
        ("use max_newer_tokens, which counts more", "SamplingParams", "not there: 'max_newer_tokens'"),
        ("use quantization='int8' or quantization='int3'", "LLM", "not there: \"quantization='int3'\""),
        ("use drafter='ngram' or drafter='oracle'", "LLM", "not there: \"drafter='oracle'\""),
        ("use SamplingParams(num_beams=...)", "LLM", "not there: 'SamplingParams(num_beams=...)'"),
        ("use model=huggingface_hub.snapshot(name)", "LLM", "not there: 'huggingface_hub.snapshot(name)'"),
        ("use the method streams", "LLM", "not there: 'the method streams'"),
        ("see nanoinfer/model/relatives.py", "LLM", "not there: 'nanoinfer/model/relatives.py'"),
        ("serve with python -m nanoinfer serve --copies N", "LLM", "not there: 'python -m nanoinfer serve --copies N'"),
        ("use page_size=...; foxes sleep", "LLM", "names nothing, so it must be a claim: 'foxes sleep'"),
        ("use page_size=..., which is never slow", "LLM", "says 'never', so it must be a claim: "),
        ("use page_size=...; a fox is not asleep", "LLM", "no longer true: 'a fox is not asleep'"),
        ("engine.flush_everything", "LLM", "not there: 'engine.flush_everything'"),
        ("AsyncEngine(llm).generates", "LLM", "not there: 'AsyncEngine(llm).generates'"),
        ("ttft, lateness and latency, in seconds", "RequestOutput", "not there: 'lateness'"),
        ("outputs[0].indices", "RequestOutput", "not there: 'outputs[0].indices'"),
        ("ttft", "CompletionOutput", "not there: 'ttft'"),
    ],
)
def test_what_is_untrue_is_found(sentence: str, owner: str, problem: str) -> None:
    attributes = " " not in sentence or owner.endswith("Output")
    (said,) = problems(sentence, owner, {"a fox is not asleep": lambda: False}, attributes)
    assert said.startswith(problem)


def test_a_claim_covers_what_it_denies_and_no_more() -> None:
    claims: Claims = {"a fox is not red": lambda: True}
    assert not problems("a fox is not red, use page_size=2", "LLM", claims)
    (said,) = problems("a fox is not red and never old, use page_size=2", "LLM", claims)
    assert said.startswith("says 'never'")


def test_a_new_feature_makes_the_sentences_untrue_that_deny_it(monkeypatch: pytest.MonkeyPatch) -> None:
    names = sentences.all_names()
    monkeypatch.setattr(sentences, "all_names", lambda: names | {"num_beams"})
    (problem,) = problems(SAMPLING_ELSEWHERE["early_stopping"].sentence, "SamplingParams", CLAIMS)
    assert problem == "no longer true: 'beam search is not implemented'"

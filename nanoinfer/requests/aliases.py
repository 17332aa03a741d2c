"""Names that users of vLLM and SGLang know. For SamplingParams and for LLM, there are three tables:

- ALIASES: what means the same, under our name, or with our arguments for its value (translations.py).
- HARMLESS: what asks for nothing that does not happen anyway, and the values with which that is so.
- ELSEWHERE: what is not there, a sentence that says what to use instead, and the values that ask for nothing.

nanoinfer/README.md shows the aliases in a table ("Coming from vLLM or SGLang").
tests/unit/requests/test_alias_sentences.py checks that what the sentences say is true.
"""

from nanoinfer.requests.keywords import ANY, Alias, Elsewhere
from nanoinfer.requests.translations import (
    adapters,
    speculative_algorithm,
    speculative_config,
    structured_outputs,
    when,
)

OFF = (None, False)
SWITCH = (None, False, True)


def _harmless(table: dict[str, tuple[object, ...]]) -> dict[str, Elsewhere]:
    """The entries of HARMLESS as those of ELSEWHERE: with another value, the answer is the values that there are. Where
    every value is harmless, only a command has a sentence to say, which has no option of this name."""
    return {
        name: Elsewhere(
            "nothing here depends on it"
            if ANY in values
            else f"must be {' or '.join(map(repr, values))}, as there is nothing else here",
            values,
        )
        for name, values in table.items()
    }


_PIECES = Elsewhere(
    "use LLM(num_scheduler_steps=...), with which a stream yields up to so many tokens at once", (None, 1)
)
SAMPLING_ALIASES: dict[str, Alias] = {
    "max_tokens": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "sampling_seed": "seed",
    "no_stop_trim": "include_stop_str_in_output",
    "stop_strs": "stop",
    "guided_json": "json_schema",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "ebnf": "grammar",
    "structured_outputs": structured_outputs,
    "guided_decoding": structured_outputs,
}
SAMPLING_HARMLESS = {
    "detokenize": (None, True),
    "output_kind": (ANY,),
    "custom_params": (None,),
    "extra_args": (None, {}),
    "flat_logprobs": OFF,
    "guided_decoding_backend": (ANY,),
    "skip_reading_prefix_cache": OFF,
    "spaces_between_special_tokens": SWITCH,  # it concerns slow tokenizers
}
_BEAMS = Elsewhere("beam search is not implemented; n=... samples several completions", OFF)
_GRAMMARS = "one of regex=..., json_schema=..., grammar=... (a Lark grammar) and choice=[...] of SamplingParams"
SAMPLING_ELSEWHERE = {
    **_harmless(SAMPLING_HARMLESS),
    "best_of": Elsewhere(
        "use n=... and logprobs=0, and choose the one of the outputs with the largest cumulative_logprob", (None, 1)
    ),
    "bad_words": Elsewhere(
        "use logit_bias={token id: -math.inf}, which forbids a token; for words of several tokens, use logits_processors",
        (None, []),
    ),
    "allowed_token_ids": Elsewhere(
        "use logits_processors, with a function that sets all other tokens to -inf", (None,)
    ),
    "do_sample": Elsewhere("use temperature=0 to always take the likeliest token, and a higher one to sample"),
    "max_length": Elsewhere("use max_new_tokens, which does not count the prompt's tokens", (None,)),
    "truncate_prompt_tokens": Elsewhere("prompts are never truncated, so shorten them yourself", (None,)),
    "use_beam_search": _BEAMS,
    "num_beams": Elsewhere(_BEAMS.sentence, (None, 1)),
    "beam_width": Elsewhere(_BEAMS.sentence, (None, 1)),
    "early_stopping": _BEAMS,
    "length_penalty": Elsewhere(_BEAMS.sentence, (None, 1, 1.0)),
    "response_format": Elsewhere(f"use {_GRAMMARS}", (None,)),
    "structural_tag": Elsewhere(
        f"use tool_calls=... for functions to call, as Qwen's models write it; or {_GRAMMARS}", (None,)
    ),
    "stop_regex": Elsewhere("use stop=..., which takes strings; patterns are not implemented", (None, [])),
    "return_logprob": Elsewhere("use logprobs=0, or logprobs=k for the k likeliest tokens as well", OFF),
    "top_logprobs_num": Elsewhere("use logprobs=k, for the k likeliest tokens", (None,)),
    "stream": Elsewhere("use the method stream, or stream_chat", OFF),
    "stream_interval": _PIECES,
}

LLM_ALIASES: dict[str, Alias] = {
    "model_path": "model",
    "torch_dtype": "dtype",
    "max_model_len": "max_context_len",
    "context_length": "max_context_len",
    "seed": "random_seed",
    "max_num_seqs": "max_running_requests",
    "max_queued_requests": "max_queue",
    "block_size": "page_size",
    "max_loras": "max_adapters_on_device",
    "max_loras_per_batch": "max_adapters_on_device",
    "tp_size": "tensor_parallel_size",
    "tp": "tensor_parallel_size",
    "scheduling_policy": "schedule_policy",
    "gpu_memory_utilization": "kv_memory_share",
    "mem_fraction_static": "kv_memory_share",
    "num_speculative_tokens": "num_draft_tokens",
    "speculative_num_draft_tokens": "num_draft_tokens",
    "speculative_draft_model_path": "draft_model",
    "speculative_algorithm": speculative_algorithm,
    "speculative_config": speculative_config,
    "lora_modules": adapters,
    "lora_paths": adapters,
    "enable_prefix_caching": when(False, disable_radix_cache=True),
    "enable_chunked_prefill": when(False, chunked_prefill_size=None),
    "enforce_eager": when(True, capture=False),
    "disable_cuda_graph": when(True, capture=False),
}
# Where logs go, how processes meet, which library compiles grammars: whatever is asked for, outputs are the same.
_ANYHOW = (
    *("collect_detailed_traces", "cuda_graph_bs", "cuda_graph_max_bs", "cuda_graph_sizes", "decode_log_interval"),
    *("disable_async_output_proc", "disable_cascade_attn", "disable_custom_all_reduce", "disable_fallback"),
    *("disable_hybrid_kv_cache_manager", "disable_log_requests", "disable_log_stats", "disable_outlines_disk_cache"),
    *("dist_init_addr", "dist_timeout", "distributed_executor_backend", "download_dir"),
    *("enable_deterministic_inference", "enable_log_requests", "enable_metrics", "enable_p2p_check"),
    *("grammar_backend", "guided_decoding_backend", "guided_decoding_disable_any_whitespace"),
    *("guided_decoding_disable_fallback", "log_level", "log_level_http", "log_requests", "log_requests_level"),
    *("max_cpu_loras", "max_lora_rank", "max_parallel_loading_workers", "max_seq_len_to_capture", "nccl_port"),
    *("num_lookahead_slots", "otlp_traces_endpoint", "preemption_mode", "prefix_caching_hash_algo"),
    *("sampling_backend", "show_time_cost", "skip_server_warmup", "structured_outputs_config", "swap_space"),
    *("use_tqdm_on_load", "use_v2_block_manager", "watchdog_timeout"),
)
LLM_HARMLESS = {
    **dict.fromkeys(_ANYHOW, (ANY,)),
    **dict.fromkeys(("enable_dp_attention", "enable_eplb", "enable_expert_parallel", "enable_mixed_chunk"), OFF),
    **dict.fromkeys(("enable_prompt_embeds", "enable_sleep_mode", "enable_torch_compile", "fully_sharded_loras"), OFF),
    **dict.fromkeys(("is_embedding", "ray_workers_use_nsight", "delete_ckpt_after_loading"), OFF),
    **dict.fromkeys(("disable_sliding_window", "worker_use_ray", "async_scheduling", "multi_step_stream_outputs"), OFF),
    **dict.fromkeys(("limit_mm_per_prompt", "mm_processor_kwargs"), (None, {})),
    **dict.fromkeys(("runner", "task"), (None, "auto", "generate")),
    "config_format": (None, "auto", "hf"),
    "convert": (None, "auto", "none"),
    "enable_lora": SWITCH,
    "kv_transfer_config": (None,),
    "lora_dtype": (None, "auto"),
    "scheduler_delay_factor": (None, 0, 0.0),
    "speculative_eagle_topk": (None, 1),
}
_EIGHT_BITS, _FOUR_BITS = (
    Elsewhere(f"use quantization='{kind}', which quantizes the original weights as they are loaded", OFF)
    for kind in ("int8", "int4")
)
_QUANTIZATION = Elsewhere("use quantization='int8' or quantization='int4', with the original weights", (None, ""))
_NO_PIPELINE = Elsewhere(
    "layers are not dealt out to processes; use tensor_parallel_size=..., which splits each of them", (None, 1)
)
_ONE_ENGINE = Elsewhere(
    "an LLM is one engine; for more, start several, or serve with python -m nanoinfer serve --replicas N", (None, 1)
)
_OF_SERVERS = "is a setting of servers: use nanoinfer.server.make_app(llm, {}=...)"
_REVISION = Elsewhere("use model=huggingface_hub.snapshot_download(name, revision=...)", (None,))
_CONFIG = Elsewhere("the configuration is read from the checkpoint's config.json", (None, {}))
_NO_CODE = "code that comes with a checkpoint is never run"
_SLOTS = Elsewhere("use max_total_tokens=..., the number of K/V slots, or kv_memory_share=...", (None,))
LLM_ELSEWHERE = {
    **_harmless(LLM_HARMLESS),
    "trust_remote_code": Elsewhere(
        f"{_NO_CODE}; supported families need none, and you can add others (see nanoinfer/model/families.py)", OFF
    ),
    "code_revision": Elsewhere(_NO_CODE, (None,)),
    **dict.fromkeys(("pipeline_parallel_size", "pp_size", "pp"), _NO_PIPELINE),
    **dict.fromkeys(("data_parallel_size", "dp_size", "dp", "nnodes"), _ONE_ENGINE),
    **dict.fromkeys(("kv_cache_memory_bytes", "num_gpu_blocks_override"), _SLOTS),
    "tokenizer": Elsewhere("the tokenizer is read from the checkpoint's directory", (None,)),
    "tokenizer_mode": Elsewhere("the tokenizer is the one that the checkpoint's files describe", (None, "auto")),
    "chat_template": Elsewhere(
        "use chat(messages, chat_template_kwargs={'chat_template': ...}), or put it into the checkpoint's directory as "
        "chat_template.jinja",
        (None,),
    ),
    "load_format": Elsewhere("weights are read from safetensors files", (None, "auto", "safetensors")),
    **dict.fromkeys(("revision", "tokenizer_revision"), _REVISION),
    "hf_token": Elsewhere("set the environment variable HF_TOKEN, which huggingface_hub reads", (None,), secret=True),
    **dict.fromkeys(("rope_scaling", "hf_overrides", "hf_config_path"), _CONFIG),
    "skip_tokenizer_init": Elsewhere(
        "prompts may be token ids in any case; a tokenizer is read if the checkpoint's directory has one", OFF
    ),
    "logits_processors": Elsewhere("use SamplingParams(logits_processors=[...])", (None, [])),
    "served_model_name": Elsewhere(_OF_SERVERS.format("served_model_name"), (ANY,)),
    "max_logprobs": Elsewhere(_OF_SERVERS.format("max_logprobs"), (ANY,)),
    "stream_interval": _PIECES,
    "compilation_config": Elsewhere(
        "models are not compiled; use capture=True or capture=False, whether decode passes are recorded", (None, {})
    ),
    "calculate_kv_scales": Elsewhere("use kv_cache_dtype='int8', which calculates a scale per token and head", OFF),
    "load_in_8bit": _EIGHT_BITS,
    "load_in_4bit": _FOUR_BITS,
    **dict.fromkeys(("quantization_config", "bnb_config", "torchao_config"), _QUANTIZATION),
    "speculative_model": Elsewhere("use drafter='ngram', or drafter='model' and draft_model=...", (None,)),
    "speculative_num_steps": Elsewhere("use num_draft_tokens=..., the most drafts of a request in one pass", (None,)),
    "cpu_offload_gb": Elsewhere("all weights stay on the device", (None, 0, 0.0)),
    "disable_overlap_schedule": Elsewhere("a pass is always planned after the previous one has ended", (None, True)),
    "max_num_batched_tokens": Elsewhere(
        "use max_prefill_tokens=... for the prompt tokens of one pass, and chunked_prefill_size=... for those between "
        "two decode passes",
        (None,),
    ),
}

# Attributes that do not exist here, and what to use instead.
OUTPUT_ATTRIBUTES = {
    "num_cached_tokens": "cached_tokens",
    "meta_info": "prompt_tokens, cached_tokens and finish_reason",
    "output_ids": "token_ids",
    "metrics": "ttft and latency, in seconds",
    "cumulative_logprob": "outputs[0].cumulative_logprob",
    "index": "outputs[0].index",
}
COMPLETION_ATTRIBUTES = {
    "finished": "finish_reason, which is None until then",
    "metrics": "ttft and latency of the output that this is a part of",
    "num_cached_tokens": "cached_tokens",
}
_ONLY_TEXT = "another engine: this one generates text, it has no embeddings and no scores"
LLM_ATTRIBUTES = {
    "get_tokenizer": "tokenizer",
    "llm_engine": "engine",
    "beam_search": "generate with SamplingParams(n=...), which samples several completions; beam search is not implemented",
    **dict.fromkeys(("embed", "encode", "score", "classify", "reward", "rerank", "pooling"), _ONLY_TEXT),
    "async_generate": "AsyncEngine(llm).generate",
    "load_lora_adapter": "load_adapter",
    "unload_lora_adapter": "unload_adapter",
    "flush_cache": "engine.flush_cache",
    "reset_prefix_cache": "engine.flush_cache",
    "get_metrics": "engine.stats",
    "get_server_info": "engine.stats",
    "get_default_sampling_params": "SamplingParams()",
}

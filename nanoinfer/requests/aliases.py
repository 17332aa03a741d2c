"""Names that users of vLLM and SGLang know: aliases for those that mean the same as ours, and advice for the others.

nanoinfer/README.md shows the aliases in a table ("Coming from vLLM or SGLang").
"""

from nanoinfer.requests.keywords import Elsewhere

SAMPLING_ALIASES = {
    "max_tokens": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "sampling_seed": "seed",
    "no_stop_trim": "include_stop_str_in_output",
    "stop_strs": "stop",
}
_BEAMS = Elsewhere("beam search is not implemented; n=... samples several completions", (None, False))
_GRAMMAR = Elsewhere(
    "use one of regex=..., json_schema=..., grammar=... (a Lark grammar) and choice=[...] of SamplingParams", (None,)
)
SAMPLING_ELSEWHERE = {
    "best_of": Elsewhere(
        "use n=... and logprobs=0, and choose the completion whose log-probabilities have the largest sum", (None, 1)
    ),
    "bad_words": Elsewhere(
        "use logit_bias={token id: -math.inf}, which forbids a token; for words of several tokens, use logits_processors",
        (None, []),
    ),
    "allowed_token_ids": Elsewhere(
        "use logits_processors, with a function that sets all other tokens to -inf", (None,)
    ),
    "do_sample": Elsewhere("use temperature=0 to always take the likeliest token; above 0, tokens are sampled"),
    "max_length": Elsewhere("use max_new_tokens, which does not count the prompt's tokens", (None,)),
    "truncate_prompt_tokens": Elsewhere("prompts are never truncated; shorten them yourself", (None,)),
    "spaces_between_special_tokens": Elsewhere("no spaces are added to the text", (False,)),
    "detokenize": Elsewhere("there is always text; use token_ids if you don't want it", (True,)),
    "use_beam_search": _BEAMS,
    "num_beams": Elsewhere(_BEAMS.sentence, (None, 1)),
    "length_penalty": Elsewhere(_BEAMS.sentence, (None, 1, 1.0)),
    **dict.fromkeys(("guided_decoding", "structured_outputs", "response_format", "structural_tag"), _GRAMMAR),
    "guided_json": Elsewhere("use json_schema=...", (None,)),
    "guided_regex": Elsewhere("use regex=...", (None,)),
    "guided_choice": Elsewhere("use choice=[...]", (None,)),
    "guided_grammar": Elsewhere("use grammar=..., which takes a Lark grammar", (None,)),
    "ebnf": Elsewhere("use grammar=..., which takes a Lark grammar", (None,)),
    "stop_regex": Elsewhere("use stop=..., which takes strings; patterns are not implemented", (None, [])),
    "return_logprob": Elsewhere("use logprobs=0, or logprobs=k for the k likeliest tokens as well", (None, False)),
    "top_logprobs_num": Elsewhere("use logprobs=k, for the k likeliest tokens", (None,)),
    "stream": Elsewhere("use the method stream, or stream_chat", (None, False)),
}

LLM_ALIASES = {
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
}
_MEMORY = Elsewhere(
    "use max_total_tokens=..., the number of K/V slots (`python -m nanoinfer info` shows their size)", (None,)
)
_EAGER = Elsewhere("use capture=False, which computes every pass layer by layer in Python", (None, False))
_ADAPTERS = "use adapters={'name': folder}, or llm.load_adapter('name', folder)"
_NO_SPECULATION = "speculative decoding is not implemented"
_EIGHT_BITS, _FOUR_BITS = (
    Elsewhere(f"use quantization='{kind}', which quantizes the original weights as they are loaded", (None, False))
    for kind in ("int8", "int4")
)
_QUANTIZATION = Elsewhere("use quantization='int8' or quantization='int4', with the original weights", (None, ""))
_NO_PIPELINE = Elsewhere("use tensor_parallel_size=..., which splits every layer; layers stay together", (None, 1))
_ONE_ENGINE = Elsewhere("an LLM is one engine; start several of them for more", (None, 1))
LLM_ELSEWHERE = {
    "gpu_memory_utilization": _MEMORY,
    "mem_fraction_static": _MEMORY,
    "trust_remote_code": Elsewhere(
        "code that comes with a checkpoint is never run; supported families need none, and you can add others (see "
        "nanoinfer/model/families.py)",
        (None, False),
    ),
    **dict.fromkeys(("pipeline_parallel_size", "pp_size", "pp"), _NO_PIPELINE),
    **dict.fromkeys(("data_parallel_size", "dp_size", "dp"), _ONE_ENGINE),
    "tokenizer": Elsewhere("the tokenizer is read from the checkpoint's directory", (None,)),
    "tokenizer_mode": Elsewhere("the tokenizer is the one that the checkpoint's files describe", (None, "auto")),
    "chat_template": Elsewhere(
        "pass it to chat: chat_template_kwargs={'chat_template': ...}; or put it into the checkpoint's directory as "
        "chat_template.jinja",
        (None,),
    ),
    "load_format": Elsewhere("weights are read from safetensors files", (None, "auto", "safetensors")),
    "revision": Elsewhere("use model=huggingface_hub.snapshot_download(name, revision=...)", (None,)),
    "hf_token": Elsewhere("set the environment variable HF_TOKEN, which huggingface_hub reads", (None,), secret=True),
    "rope_scaling": Elsewhere("it is read from the checkpoint's config.json", (None,)),
    "load_in_8bit": _EIGHT_BITS,
    "load_in_4bit": _FOUR_BITS,
    **dict.fromkeys(("quantization_config", "bnb_config", "torchao_config"), _QUANTIZATION),
    "enable_lora": Elsewhere(f"adapters need not be enabled; {_ADAPTERS}", (None, False, True)),
    "lora_paths": Elsewhere(_ADAPTERS, (None, [])),
    "lora_modules": Elsewhere(_ADAPTERS, (None, [])),
    "max_lora_rank": Elsewhere("adapters may have any rank", (None,)),
    "speculative_config": Elsewhere(_NO_SPECULATION, (None,)),
    "speculative_algorithm": Elsewhere(_NO_SPECULATION, (None,)),
    "cpu_offload_gb": Elsewhere("all weights stay on the device", (None, 0, 0.0)),
    "enforce_eager": _EAGER,
    "disable_cuda_graph": _EAGER,
    "multi_step_stream_outputs": Elsewhere(
        "with num_scheduler_steps=k, a stream yields up to k tokens at once; use num_scheduler_steps=1 for single tokens",
        (False,),
    ),
    "disable_overlap_schedule": Elsewhere("a pass is always planned after the previous one has ended", (True,)),
    "enable_prefix_caching": Elsewhere("use disable_radix_cache=True, which turns it off", (None, True)),
    "enable_chunked_prefill": Elsewhere("use chunked_prefill_size=None, which turns it off", (None, True)),
    "max_num_batched_tokens": Elsewhere(
        "use max_prefill_tokens=... for the prompt tokens of one pass, and chunked_prefill_size=... for those between "
        "two decode passes",
        (None,),
    ),
}

# Attributes that do not exist here, and what to read instead.
OUTPUT_ATTRIBUTES = {
    "num_cached_tokens": "cached_tokens",
    "meta_info": "prompt_tokens, cached_tokens and finish_reason",
    "output_ids": "token_ids",
}
LLM_ATTRIBUTES = {"get_tokenizer": "tokenizer", "llm_engine": "engine"}

"""What users of vLLM and SGLang type: names that mean the same as ours, and sentences for those that do not.

nanoinfer/README.md shows the aliases in a table ("Coming from vLLM or SGLang").
"""

from nanoinfer.requests.keywords import Elsewhere

SAMPLING_ALIASES = {
    "max_tokens": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "sampling_seed": "seed",
    "no_stop_trim": "include_stop_str_in_output",
}
_BEAMS = Elsewhere("beam search is not implemented; n=... samples several completions", (None, False))
SAMPLING_ELSEWHERE = {
    "best_of": Elsewhere(
        "use n=... and logprobs=0, and choose the completion whose log-probabilities have the largest sum", (None, 1)
    ),
    "bad_words": Elsewhere(
        "use logit_bias={token id: -math.inf}, which forbids a token; for words of several tokens, logits_processors",
        (None, []),
    ),
    "allowed_token_ids": Elsewhere("use logits_processors, with a function that sets the others to -inf", (None,)),
    "do_sample": Elsewhere("use temperature=0 to take the likeliest token always; above 0 it samples"),
    "max_length": Elsewhere("use max_new_tokens, which does not count the prompt's tokens", (None,)),
    "truncate_prompt_tokens": Elsewhere("prompts are never truncated; shorten it before", (None,)),
    "spaces_between_special_tokens": Elsewhere("no spaces are added to the text", (False,)),
    "detokenize": Elsewhere("text is always made; read token_ids", (True,)),
    "use_beam_search": _BEAMS,
    "num_beams": Elsewhere(_BEAMS.sentence, (None, 1)),
}

LLM_ALIASES = {
    "model_path": "model",
    "max_model_len": "max_context_len",
    "context_length": "max_context_len",
    "seed": "random_seed",
    "max_num_seqs": "max_running_requests",
    "block_size": "page_size",
}
_MEMORY = Elsewhere("use max_total_tokens=..., the number of K/V slots (`python -m nanoinfer info` shows their size)")
_ONE_PROCESS = Elsewhere("the model runs in one process, on one device", (None, 1))
LLM_ELSEWHERE = {
    "gpu_memory_utilization": _MEMORY,
    "mem_fraction_static": _MEMORY,
    "trust_remote_code": Elsewhere(
        "code that comes with a checkpoint is never run; the families that are supported need none, others can be added "
        "(nanoinfer/model/families.py)",
        (None, False),
    ),
    "tensor_parallel_size": _ONE_PROCESS,
    "tp_size": _ONE_PROCESS,
    "tokenizer": Elsewhere("the tokenizer is read from the checkpoint's directory", (None,)),
    "enforce_eager": Elsewhere("passes are always eager", (True,)),
    "enable_prefix_caching": Elsewhere("use disable_radix_cache=True, which turns it off", (None, True)),
    "enable_chunked_prefill": Elsewhere("use chunked_prefill_size=None, which turns it off", (None, True)),
    "max_num_batched_tokens": Elsewhere(
        "use max_prefill_tokens=... for the prompt tokens of one pass, chunked_prefill_size=... for those between two "
        "decode passes",
        (None,),
    ),
}

"""Keywords: names of other engines that mean the same as ours, and the nearest names for a keyword that nobody knows."""

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import wraps
from inspect import Parameter, signature
from typing import Any, TypeVar

from nanoinfer.errors import UnknownArgumentError

# Of vLLM, SGLang, OpenAI → ours, where that is an argument of what is called.
ALIASES = {
    # of SamplingParams
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
    # of methods that take a request
    "sampling_params": "params",
    "lora_path": "adapter",
    "prompt_token_ids": "prompts",
    "input_ids": "prompts",
    # of LLM
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
}
C = TypeVar("C", bound=Callable[..., Any])
CLOSE = 0.81  # difflib's ratio from which names count as similar; more than that of `top_n` and `top_p`, which differ
LONGEST = 60  # characters of a name that are compared: with more, it takes time, and they are no slip of the pen


def with_aliases(called: C, more: Iterable[str] = ()) -> C:
    """Decorate a function or a class so that the names in ALIASES are names of its arguments, too. UnknownArgumentError,
    before it is called, for a name that it does not know, and for an argument that is given twice.

    `more`: the names that its `**kwargs` takes.
    """
    if isinstance(called, type):
        called.__init__ = with_aliases(called.__init__)  # type: ignore[misc]
        return called
    parameters = signature(called).parameters.values()
    named = [each.name for each in parameters if each.kind is not Parameter.VAR_KEYWORD]
    known = dict.fromkeys([*named, *more])
    known.pop("self", None)
    title = called.__qualname__.removesuffix(".__init__")

    @wraps(called)
    def checked(*args: Any, **given: Any) -> Any:
        for name in [name for name in given if name not in known]:
            if (ours := ALIASES.get(name)) is None or ours not in known:
                near = ", ".join(nearest(name, known))
                ask = f"the nearest: {near}" if near else f"help({title.split('.')[0]}) lists all"
                raise UnknownArgumentError(f"{title}: no argument {name!r}; {ask}")
            if ours in given or ours in named[: len(args)]:
                raise UnknownArgumentError(f"{title}: {name} is another name of {ours}, which is given as well")
            given[ours] = given.pop(name)
        return called(*args, **given)

    return checked  # type: ignore[return-value]


def nearest(name: str, known: Mapping[str, Any]) -> list[str]:
    """At most three names of `known` that are similar to `name`, or have a similar alias."""
    ours = {each: each for each in known} | {alias: own for alias, own in ALIASES.items() if own in known}
    return [*dict.fromkeys(ours[close] for close in get_close_matches(name[:LONGEST], ours, 3))]

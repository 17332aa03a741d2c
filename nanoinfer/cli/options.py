"""The options that several commands share: those of the engine and those of sampling."""

import argparse
import atexit
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanoinfer.cli.ranks import world_size
from nanoinfer.registry import REGISTRIES
from nanoinfer.requests.default_numbers import DefaultFloat
from nanoinfer.requests.keywords import ALIASES

if TYPE_CHECKING:
    from nanoinfer import LLM, SamplingParams


def named_folder(text: str) -> tuple[str, str]:
    """`name=path` in two. A bundled adapter needs only its name."""
    from nanoinfer.adapters.peft_files import BUNDLED_ADAPTERS

    name, equals, path = text.partition("=")
    if text in BUNDLED_ADAPTERS:
        return text, text
    if not (name and equals and path):
        raise argparse.ArgumentTypeError(
            f"{text!r}: must be NAME=PATH, a name and the folder of an adapter, or a bundled one: "
            f"{', '.join(BUNDLED_ADAPTERS)}"
        )
    return name, path


def true_or_false(text: str) -> bool:
    """A switch that is on unless it is told otherwise."""
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r}: must be true or false")
    return text.lower() == "true"


def whole_or_none(text: str) -> int | None:
    """A limit that can be taken away."""
    if text.lower() == "none":
        return None
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number, or none") from None


class HelpWithNames(argparse.HelpFormatter):
    """Writes the built-in names of a registry for {names} in the help of its option."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.help is None or "{names}" not in action.help:
            return action.help
        (registry,) = (registry for registry in REGISTRIES if registry.option == action.dest)
        *names, last = registry.built_in()
        return action.help.replace("{names}", f"{', '.join(names)} or {last}")


# Every option of LLM, the fields of EngineConfig among them. One without a default is not passed on unless it is given.
OURS = argparse.SUPPRESS
ENGINE_OPTIONS: dict[str, dict[str, Any]] = {
    "dtype": {"help": "float32, bfloat16 or float16 (default: as in the checkpoint)"},
    "device": {"default": "cpu", "help": "cpu, cuda, npu or auto (default: cpu)"},
    "max_total_tokens": {"type": int, "help": "slots for K/V (default: as memory allows)"},
    "kv_memory_share": {
        "type": float,
        "help": "share of the memory that K/V may take, without --max-total-tokens (default: 0.25, of an accelerator's "
        "free memory 0.5)",
    },
    "kv_cache_dtype": {"help": "how K/V is kept: {names} (default: as the model computes it)"},
    "host_cache_tokens": {
        "type": int,
        "metavar": "N",
        "help": "keep the K/V of so many tokens in host memory when it leaves the pool (default: none)",
    },
    "cache_dir": {
        "metavar": "FOLDER",
        "help": "keep K/V in files there, for later runs with the same model (default: none)",
    },
    "cache_dir_max_bytes": {
        "type": int,
        "metavar": "N",
        "help": "most bytes that the files in --cache-dir may take up (default: no limit)",
    },
    "max_running_requests": {
        "type": int,
        "default": 32,
        "help": "most requests that hold K/V at the same time (default: 32)",
    },
    "max_context_len": {
        "type": int,
        "help": "most tokens of a request, prompt and output (default: the model's limit)",
    },
    "page_size": {"type": int, "default": 1, "help": "slots per page of K/V (default: 1)"},
    "chunked_prefill_size": {
        "type": whole_or_none,
        "default": OURS,
        "metavar": "N",
        "help": "most prompt tokens between two decode passes, or none (default: 2048)",
    },
    "max_prefill_tokens": {
        "type": int,
        "default": OURS,
        "metavar": "N",
        "help": "most prompt tokens of one pass (default: 4096)",
    },
    "max_queue": {"type": int, "metavar": "N", "help": "most requests that wait (default: no limit; serve: 256)"},
    "schedule_policy": {"default": "lpm", "help": "{names} (default: lpm)"},
    "policy_window": {
        "type": int,
        "default": OURS,
        "metavar": "N",
        "help": "how many waiting requests the policy orders (default: 128)",
    },
    "max_overtakes": {
        "type": int,
        "default": OURS,
        "metavar": "N",
        "help": "how many later requests may overtake one (default: 64)",
    },
    "schedule_conservativeness": {
        "type": float,
        "default": OURS,
        "metavar": "X",
        "help": "how much is set aside for tokens that requests may still produce (default: 1.0)",
    },
    "eviction_policy": {"default": OURS, "metavar": "NAME", "help": "{names} (default: lru)"},
    "disable_radix_cache": {"action": "store_true", "help": "compute every prompt from its first token"},
    "attention_backend": {
        "default": "auto",
        "help": "{names}; auto takes the fastest available (default: auto)",
    },
    "capture": {
        "type": lambda text: {"true": True, "false": False}.get(text.lower(), text),
        "default": "auto",
        "help": "true, false or auto: record decode passes, and replay them without Python between layers (default: auto)",
    },
    "num_scheduler_steps": {
        "type": int,
        "default": 1,
        "help": "decode passes between two visits to the scheduler; text then arrives in pieces of so many tokens "
        "(default: 1)",
    },
    "drafter": {
        "action": "append",
        "metavar": "NAME",
        "help": "{names}: propose several tokens for one pass to check; the text is the same; may be given several times: "
        "tried in this order",
    },
    "draft_model": {"help": "a smaller model with the same vocabulary, for --drafter model (story has its own)"},
    "num_draft_tokens": {"type": int, "default": 3, "help": "most drafts of a request in one pass (default: 3)"},
    "adaptive_drafts": {
        "type": true_or_false,
        "default": OURS,
        "metavar": "BOOL",
        "help": "true or false: draft only where it is expected to save time (default: true)",
    },
    "random_seed": {
        "type": int,
        "metavar": "N",
        "help": "makes requests without a seed of their own repeatable (default: drawn anew)",
    },
    "kernels": {"default": "auto", "help": "cpp, onednn, torch, or auto for the fastest available (default: auto)"},
    "quantization": {"help": "{names}: fewer bits per weight of linear layers (default: as in the checkpoint)"},
    "adapters": {
        "flag": "--adapter",
        "action": "append",
        "type": named_folder,
        "metavar": "NAME=PATH",
        "help": "load and use a LoRA adapter: a folder or a bundled name (rhymes, sea), which needs no NAME=; may be given "
        "several times: generate then completes each prompt with each, and chat begins with the first",
    },
    "max_adapters_on_device": {
        "type": int,
        "default": 16,
        "help": "adapters that can be computed with at the same time (default: 16)",
    },
    "generation_config": {
        "default": "auto",
        "help": "auto or none: whether generation_config.json gives requests their temperature, top_p, top_k, min_p and "
        "repetition_penalty where they have none (default: auto)",
    },
    "tensor_parallel_size": {
        "type": int,
        "help": "split the model over so many processes (default: as many as torchrun has started, or 1)",
    },
}
SAMPLING_OPTIONS: dict[str, dict[str, Any]] = {
    "max_new_tokens": {"type": int, "default": 128, "help": "generate at most this many tokens (default: 128)"},
    "temperature": {
        "type": float,
        "default": DefaultFloat(0.7),
        "help": "0 always takes the likeliest token (default: the checkpoint's, or 0.7)",
    },
    "top_p": {"type": float, "default": OURS, "help": "nucleus sampling (default: the checkpoint's, or 1.0, off)"},
    "top_k": {
        "type": int,
        "default": OURS,
        "help": "sample from the k likeliest tokens (default: the checkpoint's, or -1, off)",
    },
    "min_p": {
        "type": float,
        "default": OURS,
        "help": "drop tokens less probable than this share of the likeliest one (default: the checkpoint's, or 0, off)",
    },
    "presence_penalty": {
        "type": float,
        "default": 0.0,
        "help": "subtracted from the logits of tokens that are in the output (default: 0, off)",
    },
    "frequency_penalty": {
        "type": float,
        "default": 0.0,
        "help": "subtracted from a token's logit for each time that the token is in the output (default: 0, off)",
    },
    "repetition_penalty": {
        "type": float,
        "default": OURS,
        "help": "divides the logits of tokens that are in the prompt or the output (default: the checkpoint's, or 1)",
    },
    "seed": {"type": int, "help": "the same seed gives the same text"},
    "stop": {"action": "append", "default": [], "help": "stop when this text appears; may be given several times"},
}
GRAMMAR_OPTIONS: dict[str, dict[str, Any]] = {
    "json_schema": {"metavar": "FILE", "help": "only JSON that the schema in this file allows"},
    "regex": {"metavar": "PATTERN", "help": "only text that this regular expression matches"},
    "grammar": {"metavar": "FILE", "help": "only text that the Lark grammar in this file allows"},
    "choice": {"action": "append", "metavar": "TEXT", "help": "only one of these texts; give it several times"},
}
N_OPTION: dict[str, dict[str, Any]] = {
    "n": {"type": int, "default": 1, "help": "completions per prompt (default: 1)"},
}

FROM_FILES = ("json_schema", "grammar")  # those of GRAMMAR_OPTIONS that are read from a file


def add_options(
    parser: argparse.ArgumentParser, title: str, options: dict[str, dict[str, Any]], but: Sequence[str] = ()
) -> None:
    """Add a group of options under `title`, without those in `but`. The engine's group begins with `--model`. Names from
    vLLM and SGLang are options, too, unless the command has another one of this name; `--help` does not list them."""
    group = parser.add_argument_group(title)
    if title == "engine" and "model" not in but:
        group.add_argument(
            "--model", default="story", help="bundled name, checkpoint directory or Hub name (default: story)"
        )
    for name, settings in options.items():
        if name not in but:
            flag = settings.get("flag", f"--{name.replace('_', '-')}")
            options_of_it = {key: value for key, value in settings.items() if key != "flag"}
            group.add_argument(flag, dest=name, **options_of_it)
            hidden = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS, "dest": name}
            for other in other_flags(name, parser):
                group.add_argument(other, **{**options_of_it, **hidden})


def other_flags(name: str, parser: argparse.ArgumentParser) -> list[str]:
    """What other engines call the option `name`, as flags that `parser` does not have. `--seed` is always a request's."""
    flags = [f"--{other.replace('_', '-')}" for other, ours in ALIASES.items() if ours == name]
    return [flag for flag in flags if flag not in (*parser._option_string_actions, "--seed")]


def load(args: argparse.Namespace, **more: Any) -> "LLM":
    """The model that the options name; `more` arguments of LLM that are no options of all commands. With a `cache_dir`, it
    is shut down when Python exits, which saves its cache."""
    from nanoinfer import LLM

    llm = LLM(args.model, **llm_options(args), **more)
    if llm.config.cache_dir is not None:
        atexit.register(llm.shutdown)
    return llm


def llm_options(args: argparse.Namespace) -> dict[str, Any]:
    """LLM's arguments, all but the model, that the options stand for."""
    options = _pick(args, ENGINE_OPTIONS)
    named = options.pop("adapters", None) or []
    if len(dict(named)) < len(named):
        raise ValueError(f"--adapter: a name is given twice, in {', '.join(name for name, _ in named)}")
    options["drafter"] = tuple(options.pop("drafter", None) or ()) or None
    if options.get("tensor_parallel_size") is None:
        options["tensor_parallel_size"] = world_size() or 1
    options["adapters"] = dict(named)
    return options


def check_tokenizer(llm: "LLM") -> None:
    """ValueError if the model has no tokenizer files, because a command's prompts are text."""
    if llm.tokenizer is None:
        raise ValueError(
            f"{llm.model.path}: no tokenizer files there, but this command's prompts are text; put tokenizer.json in that "
            "folder"
        )


def sampling_params(args: argparse.Namespace) -> "SamplingParams":
    """The SamplingParams that the options ask for."""
    from nanoinfer import SamplingParams

    grammar = _pick(args, GRAMMAR_OPTIONS)
    for name in FROM_FILES:
        if grammar.get(name) is not None:
            try:
                grammar[name] = Path(grammar[name]).expanduser().read_text(encoding="utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(f"{_grammar_option(args, name)}: is not UTF-8 text: {error}") from error
    return SamplingParams(**_pick(args, {**SAMPLING_OPTIONS, **N_OPTION}), **grammar)


def check_grammar(llm: "LLM", args: argparse.Namespace, params: "SamplingParams") -> None:
    """ValueError naming the option, and its file if it has one, if its grammar cannot be compiled. Otherwise it is now."""
    try:
        llm.engine.grammars.prepare(params)
    except ValueError as error:
        name = next(name for name, text in params.grammar_texts if text is not None)
        raise ValueError(f"{_grammar_option(args, name)}: {error.__cause__ or error}") from error


def _grammar_option(args: argparse.Namespace, name: str) -> str:
    """An option of GRAMMAR_OPTIONS as it was given, such as `--json-schema FILE`."""
    return f"--{name.replace('_', '-')}" + (f" {getattr(args, name)}" if name in FROM_FILES else "")


def _pick(args: argparse.Namespace, options: dict[str, Any]) -> dict[str, Any]:
    return {name: getattr(args, name) for name in options if hasattr(args, name)}

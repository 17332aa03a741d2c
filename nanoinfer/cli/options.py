"""The options that several commands share: the fields of EngineConfig and of SamplingParams, and LLM's other arguments."""

import argparse
import atexit
import re
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, get_args, get_origin

from nanoinfer.config import EngineConfig
from nanoinfer.keywords import ALIASES
from nanoinfer.registry import REGISTRIES
from nanoinfer.sampling_params import Default, DefaultFloat, SamplingParams

if TYPE_CHECKING:
    from nanoinfer import LLM


def named_folder(text: str) -> tuple[str, str]:
    """`name=path` in two. A bundled adapter needs only its name."""
    from nanoinfer.model.lora.peft_files import BUNDLED_ADAPTERS

    name, equals, path = text.partition("=")
    if text in BUNDLED_ADAPTERS:
        return text, text
    if not (name and equals and path):
        raise argparse.ArgumentTypeError(f"{text!r}: must be NAME=PATH, or one of {', '.join(BUNDLED_ADAPTERS)}")
    return name, path


LLM_OPTIONS: dict[str, dict[str, Any]] = {
    "dtype": {"help": "float32, bfloat16 or float16 (default: the checkpoint's)"},
    "device": {"help": "cpu, cuda, npu or auto (default: cpu)"},
    "kv_memory_share": {"type": float, "help": "share of the memory that K/V may take, without --max-total-tokens"},
    "kernels": {"help": "cpp, onednn, torch, or auto for the fastest available (default: auto)"},
    "quantization": {"help": "bits per weight of linear layers (default: as in the checkpoint)"},
    "adapters": {
        "action": "append",
        "type": named_folder,
        "metavar": "NAME=PATH",
        "help": "a LoRA adapter, or the name of a bundled one; may be given several times: generate completes each prompt "
        "with each, chat begins with the first",
    },
    "draft_model": {"help": "a smaller model with the same vocabulary, for --drafter model (story has its own)"},
    "generation_config": {"help": "auto or none: whether the checkpoint's sampling defaults count (default: auto)"},
    "model_impl": {"help": "auto, nanoinfer or transformers: whose network computes; auto takes ours where one fits"},
    "tensor_parallel_size": {"type": int, "help": "split the model over so many processes (default: torchrun's, or 1)"},
}
ENGINE = [*LLM_OPTIONS, *(field.name for field in fields(EngineConfig))]
SAMPLING = (
    "max_new_tokens",
    *(field.name for field in fields(SamplingParams) if field.type is float),
    *("top_k", "seed", "stop"),
)
GRAMMARS = ("json_schema", "regex", "grammar", "choice")
FROM_FILES = ("json_schema", "grammar")  # those of GRAMMARS whose option names a file
TEMPERATURE = DefaultFloat(0.7)


def add_engine_options(parser: argparse.ArgumentParser, but: Sequence[str] = ()) -> None:
    """Options for LLM, all but those in `but`: its model and what `llm_options` reads."""
    group = parser.add_argument_group("engine")
    if "model" not in but:
        group.add_argument(
            "--model", default="story", help="bundled name, checkpoint folder, GGUF file, Hub name (story)"
        )
    for name, settings in (LLM_OPTIONS | _settings(EngineConfig)).items():
        if name not in but:
            _add(group, name, settings)


def add_model(parser: argparse.ArgumentParser) -> None:
    """The model as the command's own argument, or as an option. `choose_model` reads it."""
    parser.add_argument(
        "name", nargs="?", metavar="MODEL", help="bundled name, checkpoint folder, GGUF file, Hub name (story)"
    )
    parser.add_argument("--model", help="the same as MODEL")


def choose_model(args: argparse.Namespace) -> None:
    """Set `args.model`. ValueError if there are two."""
    if args.name is not None and args.model is not None:
        raise ValueError(f"--model {args.model}: MODEL is given as well ({args.name})")
    args.model = args.name or args.model or "story"


def add_sampling_options(parser: argparse.ArgumentParser, names: Iterable[str] = SAMPLING) -> None:
    """Options for these fields of SamplingParams, which `sampling_params` reads."""
    group = parser.add_argument_group("sampling")
    for name in names:
        _add(group, name, _settings(SamplingParams)[name])
    parser.set_defaults(temperature=TEMPERATURE)


def _add(group: Any, name: str, settings: dict[str, Any]) -> None:
    """Add an option under our name and those of other engines. Without it, the namespace has no such attribute.

    `--seed` is always a request's.
    """
    names = ["adapter" if name == "adapters" else name]
    names += [theirs for theirs, ours in ALIASES.items() if ours == name and theirs != "seed"]
    flags = [f"--{each.replace('_', '-')}" for each in names]
    alternatives = _alternatives().get(name)
    about = settings["help"] + (f": {', '.join(alternatives)}" if alternatives else "")
    if settings.get("action") != "store_true":
        settings = {"metavar": "FILE" if name in FROM_FILES else "X", **settings}
    group.add_argument(*flags, dest=name, **{**settings, "default": argparse.SUPPRESS, "help": about})


@cache
def _settings(owner: type) -> dict[str, dict[str, Any]]:
    """What argparse needs for the fields of a dataclass: their types, and what its docstring says about them, in a list or
    in the last column of a table, up to the first full stop."""
    text = owner.__doc__ or ""
    about = dict(re.findall(r"^ *- `(\w+)`: (.+?)\.\s", text, re.MULTILINE | re.DOTALL))
    about |= dict(re.findall(r"^ *\| `(\w+)` \|.*\| (.+) \|$", text, re.MULTILINE))
    settings = {}
    for field in fields(owner):
        default = "" if field.default in (MISSING, None, ()) else field.default
        default = TEMPERATURE if field.name == "temperature" else default
        shown = f" (default: {'the checkpoint, or ' * isinstance(default, Default)}{default})" if default != "" else ""
        kinds = get_args(field.type) or (field.type,)
        kind: dict[str, Any] = {"type": _reader(kinds)}
        if any(get_origin(each) in (tuple, Sequence) for each in kinds):
            kind = {"action": "append"}
        elif field.default is False:
            kind, shown = {"action": "store_true"}, ""
        settings[field.name] = {**kind, "help": " ".join(about.get(field.name, "").split()).replace("%", "%%") + shown}
    return settings


def _reader(kinds: Sequence[Any]) -> Any:
    """A function from the text of an option to its value, which has one of these types."""
    words: dict[str, bool | None] = {"true": True, "false": False} if bool in kinds else {}
    words |= {"none": None} if NoneType in kinds and str not in kinds else {}
    convert: Any = next((kind for kind in (int, float) if kind in kinds), str)

    def read(text: str) -> Any:
        return words[text.lower()] if text.lower() in words else convert(text)

    read.__name__ = convert.__name__  # argparse names it where it fails
    return read


@cache
def _alternatives() -> dict[str, list[str]]:
    """Option → the names of its registry."""
    return {registry.option: registry.built_in() for registry in REGISTRIES}


def load(args: argparse.Namespace, needs_text: bool = False, **more: Any) -> "LLM":
    """The model that the options name, with `more` arguments of LLM. With a `cache_dir`, it is shut down when Python exits,
    which saves its cache.

    `needs_text`: ValueError if it has no tokenizer files, because the command's prompts are text.
    """
    from nanoinfer import LLM

    llm = LLM(args.model, **llm_options(args), **more)
    if llm.config.cache_dir is not None:
        atexit.register(llm.shutdown)
    if needs_text and llm.tokenizer is None:
        raise ValueError(f"{llm.model.path}: has no tokenizer files, but this command's prompts are text")
    return llm


def llm_options(args: argparse.Namespace) -> dict[str, Any]:
    """LLM's arguments, all but the model, that the options stand for."""
    from nanoinfer.model.parallel.shard import torchrun_rank

    options = _given(args, ENGINE)
    if len(named := dict(options.get("adapters", ()))) < len(options.get("adapters", ())):
        raise ValueError(f"--adapter: a name is given twice, in {', '.join(name for name, _ in options['adapters'])}")
    options |= {"adapters": named, "drafter": tuple(options.get("drafter", ())) or None}
    shard = torchrun_rank()
    options.setdefault("tensor_parallel_size", 1 if shard is None else shard.size)
    return options


def sampling_params(args: argparse.Namespace) -> SamplingParams:
    """The SamplingParams that the options ask for."""
    given = _given(args, (field.name for field in fields(SamplingParams)))
    for name in [name for name in FROM_FILES if name in given]:
        try:
            given[name] = Path(given[name]).expanduser().read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"--{name.replace('_', '-')} {given[name]}: is not UTF-8 text: {error}") from error
    return SamplingParams(**given)


def check_grammar(llm: "LLM", args: argparse.Namespace, params: SamplingParams) -> None:
    """ValueError naming the option, and its file if it has one, if its grammar cannot be compiled. Otherwise it is now."""
    try:
        llm.engine.grammars.prepare(params)
    except ValueError as error:
        name = params.grammar_field or ""
        option = f"--{name.replace('_', '-')}" + (f" {getattr(args, name)}" if name in FROM_FILES else "")
        raise ValueError(f"{option}: {error.__cause__ or error}") from error


def check_folders(*files: str | None) -> None:
    """ValueError for a file in a folder that is not there, before anything is computed."""
    for file in files:
        if file and not Path(file).absolute().parent.is_dir():
            raise ValueError(f"{file}: there is no folder {Path(file).absolute().parent}")


def _given(args: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(args, name) for name in names if hasattr(args, name)}

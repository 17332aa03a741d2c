"""Checks sentences that say what to use instead of a name that does not exist, or that something is not so here.

A sentence has clauses, with "; " between them. In each, every name of something to use is looked up: an argument, with its
value if one is given, an attribute, a call, a file, a command. A clause that denies something, or that has no such name,
must be a claim: a phrase with a function that shows that it is true.
"""

import argparse
import ast
import dis
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from functools import cache
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import nanoinfer
from nanoinfer import LLM, AsyncEngine, Engine, SamplingParams
from nanoinfer.cli.main import build_parser
from nanoinfer.config import EngineConfig
from nanoinfer.model.input_metadata import ForwardMode
from nanoinfer.registry import DRAFTERS, MODEL_FAMILIES
from nanoinfer.requests.aliases import LLM_ALIASES, SAMPLING_ALIASES
from nanoinfer.requests.chat import TEMPLATE_ARGUMENTS
from nanoinfer.server.settings import ServerSettings
from tests.helpers.engines import make_engine, serve

Claims = Mapping[str, Callable[[], bool]]
PACKAGE = Path(nanoinfer.__file__).parent
STORY = PACKAGE.parent / "data" / "story"
NOWHERE = "no/such/model/anywhere"  # a model that is looked for when all arguments have been checked


def names_of(*classes: type) -> frozenset[str]:
    return frozenset(field.name for each in classes for field in fields(each))


LLM_OPTIONS = frozenset(signature(LLM.__init__).parameters) - {"self", "engine_options"} | names_of(EngineConfig)
# What `**options` takes.
MORE: dict[str, frozenset[str]] = {"LLM": LLM_OPTIONS, "make_app": names_of(ServerSettings)}


@cache
def llm_attributes() -> Mapping[str, Any]:
    """Those of the class, and what `__init__` sets, without a model."""
    code = LLM.__init__.__wrapped__.__code__  # type: ignore[attr-defined]
    own = {it.argval: None for it in dis.get_instructions(code) if it.opname == "STORE_ATTR"}
    return {**own, "engine": Engine, **{name: getattr(LLM, name) for name in dir(LLM)}}


@cache
def output() -> Any:
    return serve(make_engine(), [5])[0]


@cache
def commands() -> argparse.ArgumentParser:
    return build_parser()


@cache
def all_names() -> frozenset[str]:
    """What can be asked for here: arguments, options of commands, attributes, kinds of passes, families, drafters."""
    (chosen,) = [it.choices for it in commands()._actions if isinstance(it, argparse._SubParsersAction)]
    # Names of other engines are options, too, but not ours.
    flags = {flag.strip("-").replace("-", "_") for each in chosen.values() for flag in each._option_string_actions}
    flags -= {*LLM_ALIASES, *SAMPLING_ALIASES}
    ours = {*names_of(SamplingParams, ServerSettings), *LLM_OPTIONS, *llm_attributes(), *dir(AsyncEngine), *flags}
    return frozenset(name.lower() for name in {*ours, *(mode.name for mode in ForwardMode), *MODEL_FAMILIES, *DRAFTERS})


# --- what a clause names ---------------------------------------------------------------------------------------------

VALUE = r"…|\.\.\.|\[\.\.\.\]|\{[^}]*\}|'[^']*'|-?\w+(?:\.\w+)*"  # what is no literal stands for any value
ARGUMENT = re.compile(rf"\b([a-z]\w*)=({VALUE})")
COMMAND = re.compile(r"python -m nanoinfer((?: (?:--)?[\w-]+)+)")
CALL = re.compile(r"\b([A-Za-z][\w.]*)\(([^()]*)\)(?:\.(\w+))?")
FILE = re.compile(r"\b[\w/]+\.(?:py|json|jinja|md)\b")
METHOD = re.compile(r"\bthe method (\w+)")
DOTTED = re.compile(r"\b([A-Za-z]\w*)(?:\[\d\])?((?:\.[A-Za-z]\w*)+)")
WORD = re.compile(r"\b[A-Za-z]+(?:_\w+|[A-Z]\w*)\b")
LISTED = re.compile(r"([\w.\[\]]+)(?:((?:, [\w.]+)*) and ([\w.]+))?(?=$|[,: ])")  # `a`, `a and b`, `a, b and c`
DENIALS = re.compile(r"\b(no|not|never|nothing|none|neither|nor)\b")


def is_accepted(where: str, name: str, value: Any) -> bool:
    try:
        if where == "SamplingParams":
            SamplingParams(**{name: value})
        elif name in names_of(EngineConfig):
            EngineConfig(1, 8, 8, **{name: value})
        else:
            LLM(NOWHERE, **{name: value})
    except FileNotFoundError:
        return True
    except ValueError:
        return False
    return True


def is_argument(where: str, name: str, value: str) -> bool:
    """Whether `name=value` can be said, of LLM or of SamplingParams."""
    if name not in (names_of(SamplingParams) if where == "SamplingParams" else LLM_OPTIONS):
        return False
    try:
        literal = ast.literal_eval(value)
    except (ValueError, SyntaxError):  # `k`, or `{token id: -math.inf}`
        return True
    return "..." in value or is_accepted(where, name, literal)


def is_command(words: list[str]) -> bool:
    try:
        commands().parse_args(["2" if word.isupper() else word for word in words])
    except SystemExit:
        return False
    return True


def found(path: str) -> Any:
    """What a dotted name stands for: of the package, of an LLM or, with its modules, of another package. None: nothing."""
    first, *rest = path.split(".")
    if first in nanoinfer.__all__:
        at: Any = getattr(nanoinfer, first)
    elif first in llm_attributes():
        at = llm_attributes()[first]
    else:
        module = ".".join([first, *rest[:-1]])
        try:
            at, rest = import_module(module), rest[-1:]
        except ImportError:
            return None
    for name in rest:
        at = getattr(at, name, None)
    return at


def is_call(called: str, arguments: str, attribute: str | None) -> bool:
    function = found(called)
    if not callable(function):
        return False
    takes = {*signature(function).parameters, *MORE.get(called.rpartition(".")[2], ())}
    for name, value in ARGUMENT.findall(arguments):
        keys = re.findall(r"'(\w+)':", value) if name == "chat_template_kwargs" else []
        if name not in takes or not {*keys} <= {*TEMPLATE_ARGUMENTS}:
            return False
        if called in ("SamplingParams", "LLM") and not is_argument(called, name, value):
            return False
    return attribute is None or hasattr(function, attribute)


def is_attribute(path: str, owner: str) -> bool:
    """Whether `path` can be read of an output, of a completion, or of an LLM."""
    if owner == "LLM":
        return found(path) is not None or path in llm_attributes()
    at = output().outputs[0] if owner == "CompletionOutput" else output()
    for name in re.findall(r"[A-Za-z]\w*", path):
        if not hasattr(at, name):
            return False
        at = getattr(at, name)[0] if f"{name}[0]" in path else getattr(at, name)
    return True


def is_known_word(word: str, owner: str) -> bool:
    if owner in ("LLM", "SamplingParams"):
        known = {*LLM_OPTIONS, *llm_attributes()} if owner == "LLM" else names_of(SamplingParams)
        if word in known or word in nanoinfer.__all__:
            return True
    return is_attribute(word, "CompletionOutput") or hasattr(LLM, word)


def looked_up(clause: str, owner: str, only_attributes: bool) -> Iterator[tuple[str, bool]]:
    """Each name of something to use in a clause, and whether it is there."""

    def taken(pattern: re.Pattern[str], check: Callable[[re.Match[str]], bool]) -> Iterator[tuple[str, bool]]:
        nonlocal clause
        yield from ((match[0], check(match)) for match in pattern.finditer(clause))
        clause = pattern.sub("…", clause)

    yield from taken(COMMAND, lambda it: is_command(it[1].split()))
    yield from taken(CALL, lambda it: is_call(it[1], it[2], it[3]))
    yield from taken(ARGUMENT, lambda it: is_argument(owner, it[1], it[2]))
    yield from taken(FILE, lambda it: any((root / it[0]).is_file() for root in (PACKAGE.parent, STORY)))
    yield from taken(METHOD, lambda it: callable(getattr(LLM, it[1], None)))
    if only_attributes and (listed := LISTED.match(clause)):
        whose = "RequestOutput" if "of the output" in clause else owner
        for name in [listed[1], *re.findall(r"[\w.]+", listed[2] or ""), *([listed[3]] if listed[3] else [])]:
            yield name, is_attribute(name, whose)
        clause = clause[listed.end() :]
    yield from taken(DOTTED, lambda it: is_attribute(it[0], owner))
    yield from taken(WORD, lambda it: is_known_word(it[0], owner))


def problems(sentence: str, owner: str, claims: Claims, only_attributes: bool = False) -> list[str]:
    """What is untrue in a sentence, or cannot be checked. `owner`: LLM or SamplingParams, whose arguments it names, or
    RequestOutput or CompletionOutput. `only_attributes`: it begins with names of attributes of `owner`.
    """
    wrong = []
    for clause in sentence.split("; "):
        rest, said = clause, [claim for claim in claims if claim in clause]
        wrong += [f"no longer true: {claim!r}" for claim in said if not claims[claim]()]
        for claim in said:
            rest = rest.replace(claim, "")
        names = dict(looked_up(rest, owner, only_attributes and not said))
        wrong += [f"not there: {name!r}" for name, is_there in names.items() if not is_there]
        if not names and not said:
            wrong.append(f"names nothing, so it must be a claim: {clause!r}")
        if denial := DENIALS.search(rest):
            wrong.append(f"says {denial[0]!r}, so it must be a claim: {clause!r}")
    return wrong

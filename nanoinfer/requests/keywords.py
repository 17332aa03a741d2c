"""Handles keywords that a function does not have: some are other names of its arguments, some get an explanation, and a
misspelt one gets the nearest name."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import wraps
from inspect import Parameter, signature
from reprlib import repr as repr_in_short
from typing import Any, NoReturn, TypeVar, cast

from nanoinfer.errors import UnknownArgumentError

# Our name of an argument, or a function from its value to our arguments, which raises a ValueError if there are none.
Alias = str | Callable[[Any], Mapping[str, Any]]
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
CLOSE = 0.81  # difflib's ratio from which names count as similar; more than that of `top_n` and `top_p`, which differ
LONGEST = 60  # characters of a name that are compared: with more, it takes time, and they are no slip of the pen
ANY: Any = object()  # as a harmless value: every one


@dataclass(frozen=True)
class Elsewhere:
    """An argument of other engines that does not exist here, with a sentence that says what to use instead.

    `harmless`: values that ask for what happens here anyway, so they are accepted and change nothing. `secret`: the value
    must not be shown.
    """

    sentence: str
    harmless: tuple[object, ...] = ()
    secret: bool = False

    def accepts(self, value: object) -> bool:
        """True when `value` is one of the harmless ones. The types must be equal, too: True is not 1."""
        return any(same is ANY or (type(value) is type(same) and value == same) for same in self.harmless)

    def said_of(self, value: object) -> str:
        """The sentence, with the value before it."""
        return f"{'...' if self.secret else repr_in_short(value)}: {self.sentence}"


def keywords(
    aliases: Mapping[str, Alias] | None = None,
    elsewhere: Mapping[str, Elsewhere] | None = None,
    more: Iterable[str] | None = None,
    last: str | None = None,
) -> Callable[[F], F]:
    """Decorate a function so that it accepts `aliases` (other name → Alias). Keywords in `elsewhere` get its answer, and
    other unknown keywords are refused, all before the function is called.

    `more`: the names that its `**kwargs` takes; None: any name, which the function must then check itself. Raises
    UnknownArgumentError, which names every wrong keyword, including an argument that is given under two names.

    `last`: the method that gets what the function returns, and makes the result. Python lets signal handlers run when a
    function returns that was called with *args, and what a handler raises would take the place of the result; not so with
    this method. So it is the method that has an effect.
    """
    aliases, elsewhere = aliases or {}, elsewhere or {}

    def decorate(function: F) -> F:
        parameters = signature(function).parameters
        named = [name for name, parameter in parameters.items() if parameter.kind is not Parameter.VAR_KEYWORD]
        takes_any = more is None and len(named) < len(parameters)
        known = dict.fromkeys([*named, *(more or ())])
        known.pop("self", None)
        title = function.__qualname__.removesuffix(".__init__")

        def resolved(positional: Iterable[str], given: Mapping[str, Any]) -> dict[str, Any]:
            kept = {name: value for name, value in given.items() if name in known}
            taken, problems = {*positional, *kept}, []
            for name in [name for name in given if name not in known]:
                value, target, answer = given[name], aliases.get(name), elsewhere.get(name)
                if target is not None:
                    try:
                        ours = {target: value} if isinstance(target, str) else target(value)
                    except ValueError as error:
                        problems.append(f"{name}={repr_in_short(value)}: {error}")
                        continue
                    problems += [
                        f"{name} is another name of {own}, which is given as well" for own in ours if own in taken
                    ]
                    taken |= ours.keys()
                    kept |= ours
                elif answer is not None:
                    problems += [] if answer.accepts(value) else [f"{name}={answer.said_of(value)}"]
                elif takes_any:
                    kept[name] = value
                else:
                    problems.append(f"no argument {name!r}; {nearest(name, known, aliases, elsewhere)}")
            if problems:
                raise UnknownArgumentError(f"{title}: {'; '.join(problems)}")
            return kept

        @wraps(function)
        def checked(*args: Any, **given: Any) -> Any:
            if given.keys() - known:
                given = resolved(named[: len(args)], given)
            if last is None:
                return function(*args, **given)
            prepared = function(*args, **given)
            return getattr(args[0], last)(prepared)

        return cast(F, checked)

    return decorate


def class_keywords(
    aliases: Mapping[str, Alias] | None = None, elsewhere: Mapping[str, Elsewhere] | None = None
) -> Callable[[type[T]], type[T]]:
    """`keywords` for a dataclass, whose `__init__` is generated."""

    def decorate(cls: type[T]) -> type[T]:
        cls.__init__ = keywords(aliases, elsewhere)(cls.__init__)  # type: ignore[method-assign]
        return cls

    return decorate


def attribute_answers(instead: Mapping[str, str]) -> Callable[[type[T]], type[T]]:
    """Decorate a class so that the AttributeError for a name in `instead` says what to use."""

    def decorate(cls: type[T]) -> type[T]:
        def __getattr__(self: T, name: str) -> NoReturn:
            answer = f"; use {instead[name]}" if name in instead else ""
            raise AttributeError(f"{cls.__name__!r} object has no attribute {name!r}{answer}", name=name, obj=self)

        cls.__getattr__ = __getattr__  # type: ignore[attr-defined]  # type checkers still refuse such names
        return cls

    return decorate


def nearest(
    name: str,
    known: Iterable[str],
    aliases: Mapping[str, Alias] | None = None,
    others: Iterable[str] = (),
) -> str:
    """What an error says about an unknown `name`: the most similar name, ours or another engine's."""
    aliases = aliases or {}
    names = dict.fromkeys([*known, *aliases, *others])
    for cutoff, said in ((CLOSE, "did you mean {}?"), (0.0, "the nearest name is {}")):
        for close in get_close_matches(name[:LONGEST], names, 1, cutoff):
            ours = aliases.get(close)
            return said.format(f"{close!r}, here {ours!r}" if isinstance(ours, str) else repr(close))
    return "there are no names"

"""extend: a class that grows over several cells."""

import abc
import inspect
import sys
from collections.abc import Callable
from functools import cached_property
from typing import Any


def extend(cls: type) -> Callable[[Any], Any]:
    """Decorator: what it decorates becomes a member of `cls`, as if it had been written inside the class.

    For functions and whatever is made of one: `@property`, `@cached_property`, `@classmethod`, `@staticmethod` (above
    which it stands). A member of that name is replaced, in `cls` and so for every object of it that lives already.
    Afterwards the member's name means in the cell's module what it meant before, so that a method `count` does not take
    an imported `count` away; a name that meant nothing there is the member itself.

    Two things work inside a class statement only: `super()` without arguments (write `super(Class, self)`), and names like
    `__hidden`.

    TypeError when `cls` is no class, or the decorated thing is nothing that could be a member.
    """
    if not isinstance(cls, type):
        raise TypeError(f"extend({cls!r}): takes the class that is to grow, as in @extend(RadixCache)")
    before = dict(sys._getframe(1).f_locals)

    def add(member: Any) -> Any:
        name = _function(member).__name__
        for function in _functions(member):
            function.__qualname__ = f"{cls.__qualname__}.{name}"
            function.__module__ = cls.__module__
        setattr(cls, name, member)
        if isinstance(member, cached_property):
            member.__set_name__(cls, name)
        abc.update_abstractmethods(cls)  # once the last abstract method is there, objects can be made
        earlier = before.get(name, member)
        return member if _comes_from(earlier, cls, name) else earlier

    return add


def _functions(member: Any) -> list[Any]:
    """The plain functions inside a function, a property or a class or static method."""
    if isinstance(member, property):
        return [part for part in (member.fget, member.fset, member.fdel) if part is not None]
    if isinstance(member, cached_property):
        return [member.func]
    if isinstance(member, classmethod | staticmethod):
        return _functions(member.__func__)
    if inspect.isfunction(member):
        wrapped = getattr(member, "__wrapped__", None)
        return [member, *_functions(wrapped)] if inspect.isfunction(wrapped) else [member]
    return []


def _function(member: Any) -> Any:
    functions = _functions(member)
    if not functions:
        raise TypeError(f"@extend: {member!r} is no function, property, class method or static method")
    return functions[0]


def _comes_from(earlier: Any, cls: type, name: str) -> bool:
    """Whether a name's earlier meaning was this very member (its cell has been run before): then it is out of date."""
    return any(function.__qualname__ == f"{cls.__qualname__}.{name}" for function in _functions(earlier))

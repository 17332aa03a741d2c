"""extend: a class that grows over several cells."""

import abc
import inspect
import sys
from collections.abc import Callable
from typing import Any


def extend(cls: type) -> Callable[[Any], Any]:
    """Decorator: the decorated function becomes a member of `cls`, as if it had been written inside the class.

    It takes functions, `@property` and `@classmethod` (and stands above these). An existing member of that name is
    replaced, also for existing objects of `cls`. The member's name keeps its earlier meaning in the cell's module, so that
    a method `count` does not hide an imported `count`; a name without an earlier meaning is the member itself.

    Two things work inside a class statement only: `super()` without arguments (write `super(Class, self)`), and names like
    `__hidden`.

    TypeError if `cls` is not a class, or the decorated object cannot be a member.
    """
    if not isinstance(cls, type):
        raise TypeError(f"extend({cls!r}): must be given the class to extend, as in @extend(RadixCache)")
    before = dict(sys._getframe(1).f_locals)

    def add(member: Any) -> Any:
        name = _function(member).__name__
        for function in _functions(member):
            function.__qualname__ = f"{cls.__qualname__}.{name}"
            function.__module__ = cls.__module__
        setattr(cls, name, member)
        abc.update_abstractmethods(cls)  # after the last abstract method is added, objects can be made
        earlier = before.get(name, member)
        return member if _comes_from(earlier, cls, name) else earlier

    return add


def _functions(member: Any) -> list[Any]:
    """The plain functions inside a function, a property or a class or static method."""
    if isinstance(member, property):
        return [part for part in (member.fget, member.fset, member.fdel) if part is not None]
    if isinstance(member, classmethod):
        return _functions(member.__func__)
    if inspect.isfunction(member):
        wrapped = getattr(member, "__wrapped__", None)
        return [member, *_functions(wrapped)] if inspect.isfunction(wrapped) else [member]
    return []


def _function(member: Any) -> Any:
    functions = _functions(member)
    if not functions:
        raise TypeError(f"@extend: {member!r} isn't a function, property or class method")
    return functions[0]


def _comes_from(earlier: Any, cls: type, name: str) -> bool:
    """Whether a name's earlier meaning is an earlier version of this member (its cell has been run before)."""
    return any(function.__qualname__ == f"{cls.__qualname__}.{name}" for function in _functions(earlier))

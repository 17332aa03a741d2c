"""How caches that threads share are locked, so that a process may be forked at any moment. All of them follow one rule:

- A lock is held to look something up or to keep it, never while it is made, which may take long or call other code.
- A fork waits for these locks. So a forked process finds them free, and what they guard complete.
- What another thread was making at that moment is made anew in the forked process, where that thread does not exist.
"""

import os
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import WeakSet

T = TypeVar("T")

_all: WeakSet[Any] = WeakSet()
_registering = threading.RLock()  # held to add to `_all`
_at_fork: list[Any] = []


def new_cache_lock() -> Any:
    """A lock for a cache: a `threading.RLock` that a fork waits for. Whoever holds it takes no other lock."""
    lock = threading.RLock()
    with _registering:
        _all.add(lock)
    return lock


class kept(Generic[T]):
    """A property that is computed once and kept in the instance's `__dict__`. Two threads may both compute it, and then
    the first result counts. (`functools.cached_property` holds a lock meanwhile, up to Python 3.11.)"""

    def __init__(self, function: Callable[[Any], T]):
        self._function, self.__doc__, self._name = function, function.__doc__, function.__name__

    def __get__(self, instance: Any, owner: type) -> T:
        if instance is None:
            return self  # type: ignore[return-value]  # asked on the class, as documentation does
        made: T = instance.__dict__.setdefault(self._name, self._function(instance))
        return made


def _before_fork() -> None:
    _registering.acquire()
    _at_fork.append(_registering)
    for lock in list(_all):
        lock.acquire()
        _at_fork.append(lock)


def _after_fork() -> None:
    while _at_fork:
        _at_fork.pop().release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)

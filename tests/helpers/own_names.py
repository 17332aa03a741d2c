"""What one of our modules sees in place of a module that all threads share."""

from types import ModuleType, SimpleNamespace
from typing import Any


def module_with(shared: ModuleType, **functions: Any) -> SimpleNamespace:
    """A copy with other functions: `monkeypatch.setattr(build, "time", module_with(time, monotonic=clock))`."""
    return SimpleNamespace(**{**vars(shared), **functions})

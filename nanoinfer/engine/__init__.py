"""The engine: schedule, forward, sample, process; and what happens around each step."""

from nanoinfer.engine.engine import Engine
from nanoinfer.engine.stats import EngineStats

__all__ = ["Engine", "EngineStats"]

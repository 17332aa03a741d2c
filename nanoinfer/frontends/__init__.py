"""Ways to an engine: LLM for any thread, AsyncEngine for coroutines."""

from nanoinfer.frontends.async_engine import AsyncEngine
from nanoinfer.frontends.llm import LLM

__all__ = ["LLM", "AsyncEngine"]

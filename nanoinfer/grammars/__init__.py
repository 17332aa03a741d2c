"""Grammars: a request says what its output must look like, and only tokens that lead there are allowed."""

from nanoinfer.grammars.compiler import Grammar, Grammars
from nanoinfer.grammars.matcher import Matcher

__all__ = ["Grammar", "Grammars", "Matcher"]

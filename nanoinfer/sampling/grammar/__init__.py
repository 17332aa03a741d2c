"""Grammars: a request says what its output must look like, and only tokens that lead there are allowed."""

from nanoinfer.sampling.grammar.compiler import Grammar, Grammars
from nanoinfer.sampling.grammar.matcher import Matcher

__all__ = ["Grammar", "Grammars", "Matcher"]

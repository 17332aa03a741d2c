"""Tests of single parts of the engine: fast, and enough for a change in the core."""

"""Tests of the benchmarks: what is measured, counted and reported. No times."""

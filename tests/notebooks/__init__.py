"""Tests of the notebooks, their exercises and the tools that build them."""

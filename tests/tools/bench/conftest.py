"""Benchmarks without a compiler; the peaks themselves are looked at in test_products.py."""

import pytest


@pytest.fixture(autouse=True)
def _known_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions compare with these operations per second instead of measuring some with a compiled loop."""
    for module in ("session", "products"):
        monkeypatch.setattr(f"nanoinfer.bench.{module}.multiply_peaks", lambda threads, seconds: {"float32": 100.0})

"""Measurements, each a ratio against something else in the same run."""

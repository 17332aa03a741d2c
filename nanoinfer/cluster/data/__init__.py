"""Completions of whole datasets, on Ray Data: `generate_dataset` in `generate.py`."""

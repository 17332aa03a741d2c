"""Measurements. Each result is a ratio to something else measured in the same run."""

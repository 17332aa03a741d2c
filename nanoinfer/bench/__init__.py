"""Measurements. Each result is compared with something else that is measured in the same run."""

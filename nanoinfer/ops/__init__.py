"""Operators with the interfaces of Ascend's (seeds 001 and 003)."""

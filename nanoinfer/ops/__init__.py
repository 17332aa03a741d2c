"""Operators with the interfaces of Ascend's operators (seeds 001 and 003)."""

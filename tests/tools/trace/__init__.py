"""Tests of traces: what is recorded, said, written and read again."""

"""Tests of the whole engine under random load, faults and pressure."""

"""Threads, signals, forks and the end of the process: who may be in an engine when, and what may interrupt it."""

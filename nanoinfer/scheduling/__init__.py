"""Scheduling: decides which requests are in the next pass."""

from nanoinfer.scheduling.scheduler import Scheduler

__all__ = ["Scheduler"]

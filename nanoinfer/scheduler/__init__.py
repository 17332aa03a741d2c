"""Scheduling: decides which requests are in the next pass."""

from nanoinfer.scheduler.scheduler import Scheduler

__all__ = ["Scheduler"]

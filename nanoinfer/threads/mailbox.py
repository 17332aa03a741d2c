"""Mailbox: what a thread waits for, with a limit, while its signal handlers run."""

import threading
from collections import deque
from queue import Empty
from typing import Generic, TypeVar

from nanoinfer.threads.signals import interruptible

T = TypeVar("T")


class Mailbox(Generic[T]):
    """A queue that one thread reads. Whoever puts something in does so alone, for example during a turn.

    `queue.SimpleQueue` will not do: if a signal handler takes longer than what is left of the wait, CPython 3.11 goes on
    waiting without a limit.
    """

    def __init__(self) -> None:
        self._letters: deque[T] = deque()
        self._bell = threading.Lock()  # free if something was put in since the reader waited
        self._bell.acquire()

    def put(self, letter: T) -> None:
        """Add something, and wake the reader."""
        self._letters.append(letter)
        if self._bell.locked():
            self._bell.release()

    def take_all(self, timeout_s: float) -> list[T]:
        """Wait until something is there, and take all of it, in order; queue.Empty after `timeout_s`. Signal handlers run,
        also if the reader does not have to wait (see `interruptible`)."""
        with interruptible():
            while not self._letters:
                if not self._bell.acquire(timeout=timeout_s):
                    raise Empty
        return [self._letters.popleft() for _ in range(len(self._letters))]

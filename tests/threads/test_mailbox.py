"""Mailbox: its reader gets all that was put in, in order, and never waits longer than it wants to."""

import signal
import threading
import time
from functools import partial
from queue import Empty
from typing import Any

import pytest

from nanoinfer.threads.mailbox import Mailbox
from tests.helpers.waiting import Worker, until


def test_all_that_was_put_in_is_taken_at_once_and_in_order() -> None:
    box = Mailbox[int]()
    for number in range(3):
        box.put(number)
    assert box.take_all(60.0) == [0, 1, 2]
    with pytest.raises(Empty):
        box.take_all(0.0)
    box.put(3)
    assert box.take_all(60.0) == [3]


def test_a_reader_that_waits_is_woken() -> None:
    box = Mailbox[str]()
    reader = Worker(box.take_all, 3600.0)
    until(lambda: box._bell.locked() and reader.is_alive(), "the reader")
    box.put("a")
    assert reader.result() == ["a"]


def test_nothing_is_lost_between_two_threads() -> None:
    box, taken = Mailbox[int](), list[int]()

    def read() -> None:
        while len(taken) < 20_000:
            taken.extend(box.take_all(3600.0))

    reader = Worker(read)
    for number in range(20_000):
        box.put(number)
    reader.result()
    assert taken == list(range(20_000))


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="this system sends no signals to threads")
def test_a_wait_ends_even_if_a_signal_handler_took_longer_than_it() -> None:
    box, seconds, begun, ended = Mailbox[int](), 0.02, list[int](), list[int]()
    reader = threading.main_thread()

    def slow(number: int, frame: Any) -> None:
        end = time.monotonic() + seconds
        until(lambda: time.monotonic() > end, "the end of the time that the reader waits")

    def strike() -> None:
        for wait in range(10):
            until(lambda: len(begun) > len(ended), "a reader")
            signal.pthread_kill(reader.ident, signal.SIGALRM)  # type: ignore[arg-type]
            try:
                until(partial(ended.count, wait), "the end of a wait")
            finally:
                if wait not in ended:
                    box.put(wait)  # or it would wait for ever

    before = signal.signal(signal.SIGALRM, slow)
    try:
        striker = Worker(strike)
        for wait in range(10):
            begun.append(wait)
            with pytest.raises(Empty):
                box.take_all(seconds)
            ended.append(wait)
        striker.result()
    finally:
        signal.signal(signal.SIGALRM, before)

"""MemoryAhead: which memory is provided before it is written, what is in it then, and when that ends."""

import ctypes
import mmap
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from nanoinfer.cache.storeys import memory_ahead
from nanoinfer.cache.storeys.host_memory import HostMemory
from nanoinfer.cache.storeys.memory_ahead import PIECE, MemoryAhead
from tests.helpers.own_names import NoThread, module_with
from tests.helpers.waiting import HANG_S

MB = 2**20
HUGE = 2 * MB  # the system may provide so many bytes for one

linux = pytest.mark.skipif(sys.platform != "linux", reason="asks Linux what is provided")


class Provider:
    """Stands in for the system: notes what it is asked for, and calls `then` first."""

    def __init__(self, then: Callable[[], object] = lambda: None, provides: bool = True):
        self.asked: list[tuple[int, int]] = []
        self._then, self._provides = then, provides

    def __call__(self, address: int, num_bytes: int) -> bool:
        if num_bytes:
            self._then()
            self.asked.append((address, num_bytes))
        return self._provides

    def pieces_of(self, data: np.ndarray) -> list[tuple[int, int]]:
        return [(address - data.ctypes.data, num_bytes) for address, num_bytes in self.asked]


def provide_with(monkeypatch: pytest.MonkeyPatch, provider: Provider) -> Provider:
    monkeypatch.setattr(memory_ahead, "_provide", provider)
    return provider


def finish(ahead: Any) -> None:
    if ahead._thread is not None:
        ahead._thread.join(HANG_S)
        assert not ahead._thread.is_alive()


def in_memory(data: np.ndarray) -> int:
    """How many bytes of it the system has provided, in whole pages, as it says itself."""
    start = data.ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE
    size = data.ctypes.data + data.nbytes - start
    pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(start), ctypes.c_size_t(size), pages) == 0
    return sum(each & 1 for each in pages) * mmap.PAGESIZE


def pieces(start: int, end: int) -> list[tuple[int, int]]:
    return [(at, min(PIECE, end - at)) for at in range(start, end, PIECE)]


# --- the system -----------------------------------------------------------------------------------------------------


@linux
def test_memory_is_provided_ahead_and_no_more_than_that() -> None:
    if not memory_ahead._provide(0, 0):
        pytest.skip("needs a system that provides memory when asked (Linux 5.14)")
    data = np.frombuffer(mmap.mmap(-1, 64 * MB), np.uint8)[: 64 * MB // 100 * 100].reshape(-1, 100)
    if in_memory(data) > HUGE:
        pytest.skip("needs a system that tells touched memory from untouched")
    ahead: Any = MemoryAhead(data, 8 * MB)
    finish(ahead)
    assert 8 * MB <= in_memory(data) <= 8 * MB + 2 * HUGE
    ahead.used(16 * MB)  # which have not been written: only what is behind them is provided
    finish(ahead)
    assert 16 * MB <= in_memory(data) <= 16 * MB + 4 * HUGE
    assert not data.any()


@linux
def test_what_is_in_the_memory_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what is written after the system was asked, and before it provides the memory."""
    written, provide = threading.Event(), memory_ahead._provide

    def wait(address: int, num_bytes: int) -> bool:
        assert not num_bytes or written.wait(HANG_S)
        return provide(address, num_bytes)

    monkeypatch.setattr(memory_ahead, "_provide", wait)
    buffer = torch.randn(1024, 1000)
    memory: Any = HostMemory([buffer], 1024)
    slots = np.arange(1000)
    memory.store(slots, slots)
    written.set()
    finish(memory._ahead)
    assert torch.equal(torch.from_numpy(memory.data).view(torch.float32)[:1000], buffer[:1000])
    assert not memory.data[1000:].any()


def test_without_such_a_system_all_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = provide_with(monkeypatch, Provider(provides=False))
    buffer = torch.arange(32.0)[:, None].clone()
    memory: Any = HostMemory([buffer], 32)
    memory.store(np.arange(32), np.arange(32)[::-1])
    memory.put(memory.data[:3].copy(), np.array([9, 4, 6]))
    assert (memory._ahead._thread, provider.asked) == (None, [])
    assert memory.data.view(np.float32)[[0, 4, 6, 9, 31], 0].tolist() == [31, 30, 29, 31, 0]


# --- what is asked for ----------------------------------------------------------------------------------------------


def test_more_is_asked_for_when_half_of_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    provider, data = provide_with(monkeypatch, Provider()), np.zeros((20, MB), np.uint8)
    ahead: Any = MemoryAhead(data, 8 * MB)
    wanted = pieces(0, 8 * MB)
    for used, more in (
        (4 * MB, []),
        (4 * MB + 1, pieces(8 * MB, 12 * MB + 1)),
        (1 * MB, []),
        (15 * MB, pieces(15 * MB, 20 * MB)),  # what has been used without it has its memory
        (20 * MB, []),
    ):
        finish(ahead)
        ahead.used(used)
        finish(ahead)
        wanted += more
        assert provider.pieces_of(data) == wanted


def test_one_thread_asks_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()
    provider = provide_with(monkeypatch, Provider(lambda: go.wait(HANG_S)))
    data = np.zeros((20, MB), np.uint8)
    ahead: Any = MemoryAhead(data, 8 * MB)
    first = ahead._thread
    ahead.used(10 * MB)
    assert ahead._thread is first
    assert first.daemon, "it must not keep a process"
    go.set()
    finish(ahead)
    assert provider.pieces_of(data) == pieces(0, 8 * MB)
    ahead.used(10 * MB)
    finish(ahead)
    assert provider.pieces_of(data) == pieces(0, 8 * MB) + pieces(10 * MB, 18 * MB)


def test_host_memory_says_what_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []
    monkeypatch.setattr(MemoryAhead, "used", lambda self, num_bytes: used.append(num_bytes))
    memory = HostMemory([torch.zeros(8, 2, 3), torch.zeros(8, dtype=torch.int8)], 16)
    memory.store(np.array([1, 2, 3]), np.array([9, 0, 4]))
    memory.put(np.zeros((2, 25), np.uint8), np.array([11, 2]))
    memory.store(np.array([], dtype=int), np.array([], dtype=int))
    assert used == [0, 10 * 25, 12 * 25]


# --- when it ends ---------------------------------------------------------------------------------------------------


def test_it_ends_when_the_memory_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, dropped = threading.Event(), threading.Event()

    def wait() -> None:
        asked.set()
        assert dropped.wait(HANG_S)

    provider = provide_with(monkeypatch, Provider(wait))
    memory: Any = HostMemory([torch.zeros(1, MB)], 8)
    thread = memory._ahead._thread
    assert asked.wait(HANG_S)
    del memory
    dropped.set()
    thread.join(HANG_S)
    assert not thread.is_alive()
    assert len(provider.asked) == 1


def test_it_ends_when_the_system_has_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [True, True, False]
    monkeypatch.setattr(memory_ahead, "_provide", lambda address, num_bytes: answers.pop(0))
    ahead: Any = MemoryAhead(np.zeros((8, MB), np.uint8))
    finish(ahead)
    assert answers == []


def test_without_another_thread_the_first_writer_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = provide_with(monkeypatch, Provider())
    with monkeypatch.context() as patch:
        patch.setattr(memory_ahead, "threading", module_with(threading, Thread=NoThread))
        ahead: Any = MemoryAhead(np.zeros((8, MB), np.uint8), 4 * MB)
    assert (ahead._thread, provider.asked) == (None, [])
    ahead.used(3 * MB)
    finish(ahead)
    assert sum(num_bytes for _, num_bytes in provider.asked) == 3 * MB

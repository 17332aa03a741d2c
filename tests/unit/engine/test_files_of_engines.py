"""What an engine's configuration makes of the storeys below its pool: their sizes, and what files say of K/V in them."""

import time
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nanoinfer.cache.storeys.disk import DiskStorey
from nanoinfer.cache.storeys.files import FileStore
from nanoinfer.engine import files
from nanoinfer.engine.files import add_files
from nanoinfer.engine.storeys import host_storey_for
from nanoinfer.requests.adapter_key import AdapterKey
from tests.helpers.engines import make_engine, serve


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The arguments of each FileStore that is made."""
    arguments: list[tuple[Any, ...]] = []

    def make(*args: Any) -> FileStore:
        arguments.append(args)
        return FileStore(*args)

    monkeypatch.setattr(files, "FileStore", make)
    return arguments


def files_of(folder: Path, **options: Any) -> DiskStorey:
    engine = make_engine(cache_dir=str(folder), **options)
    add_files(engine, {"weights": "w"}, time.perf_counter)
    disk: DiskStorey = engine.cache.storey.below
    return disk


def test_files_say_all_that_k_v_depends_on(tmp_path: Path, made: list[tuple[Any, ...]]) -> None:
    disk = files_of(tmp_path, page_size=4, cache_dir_max_bytes=2**20)
    memory = disk._host.memory
    described = {"weights": "w", "layout": memory.layout, "page_size": 4}
    assert made == [(str(tmp_path), 2**20, described, memory.token_bytes, 16)]
    assert memory.layout == "torch.float32 [1, 1]; torch.float32 [1, 1]"


def test_host_memory_above_files_is_as_large_as_the_pool_unless_it_is_said(tmp_path: Path) -> None:
    assert files_of(tmp_path, slots=128)._host.index.size == 128
    assert files_of(tmp_path, slots=128, host_cache_tokens=320)._host.index.size == 320


@pytest.mark.parametrize("option", [{"cache_dir": "x"}, {"host_cache_tokens": 64}])
def test_k_v_that_cannot_be_copied_is_refused_by_the_option_that_asks_for_it(option: dict[str, Any]) -> None:
    engine: Any = make_engine()
    engine.cache.token_to_kv_pool.kv_storage.slot_buffers = list
    ((name, value),) = option.items()
    with pytest.raises(ValueError, match=f"^{name}={value!r}: .* does not say which buffers it has; must be None"):
        host_storey_for(
            replace(engine.config, **option), engine.cache, engine.scheduler, engine._guard.meter, lambda: 0
        )


def test_keys_are_apart_in_files_and_unknown_adapters_do_not_go_there(tmp_path: Path) -> None:
    disk = files_of(tmp_path)
    keys = [disk.first_key(extra_key) for extra_key in (None, "a", "b", 1, (None, "a"))]
    assert len(set(keys)) == len(keys)
    assert None not in keys
    assert disk.first_key(AdapterKey(7, None, "gone")) is None


def test_adapters_are_known_by_their_content_and_their_keys_are_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Content:
        def __init__(self, number: int, content: str):
            self.id, self.content = number, content

    adapters, digests = [Content(1, "x"), Content(2, "y"), Content(3, "x")], list[str]()

    def digest(adapter: Any) -> str:
        digests.append(adapter.content)
        return str(adapter.content)

    monkeypatch.setattr(files, "adapter_digest", digest)
    engine: Any = make_engine(cache_dir=str(tmp_path))
    add_files(engine, {"weights": "w"}, time.perf_counter)
    monkeypatch.setattr(engine, "adapters", SimpleNamespace(values=lambda: adapters))
    first = {
        (number, key): engine.cache.storey.below.first_key(AdapterKey(number, key))
        for number in (1, 2, 3)
        for key in (None, "a")
    }
    assert first[1, None] == first[3, None] != first[2, None]
    assert first[1, "a"] == first[3, "a"] != first[2, "a"]
    assert len(set(first.values())) == 4
    assert digests == ["x", "y", "x"], "once for each"


def test_reading_files_is_compared_with_computing_and_not_with_host_memory(tmp_path: Path) -> None:
    disk = files_of(tmp_path)
    host = disk._host.costs
    host._computing = lambda: 2.0
    host.note(1, 1.0)
    assert (disk.costs.computing, disk.costs.fetching) == (2.0, 0.0)
    disk.costs.note(1, 3.0)
    assert (host.fetching, host.pays(), disk.costs.pays()) == (1.0, True, False)


def test_fetching_is_compared_with_what_the_meter_says_of_computing(tmp_path: Path) -> None:
    engine = make_engine()
    meter: Any = SimpleNamespace(seconds_per_prompt_token=lambda: 3.0)
    config = replace(engine.config, host_cache_tokens=64)
    host = host_storey_for(config, engine.cache, engine.scheduler, meter, lambda: 0)
    assert host is not None
    assert host.costs.computing == 3.0


def test_an_engine_does_not_wait_for_a_slow_look_into_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "FIRST_LOOK_S", 0)
    monkeypatch.setattr(FileStore, "refresh", lambda self: Future())
    assert files_of(tmp_path).stats().files == 0


def test_an_engine_that_cannot_save_is_shut_down_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine: Any = make_engine(cache_dir=str(tmp_path))
    add_files(engine, {}, time.perf_counter)
    serve(engine, list(range(40)))
    closed = list[str]()
    disk = engine.cache.storey.below
    monkeypatch.setattr(engine.model_runner, "close", lambda: closed.append("runner"))
    monkeypatch.setattr(disk, "close", lambda: closed.append("disk"))

    def fail(*args: Any) -> int:
        raise MemoryError("no room")

    monkeypatch.setattr(disk, "save", fail)
    with pytest.raises(MemoryError, match="no room"):
        engine.shutdown()
    assert (closed, engine.is_closed) == (["disk", "runner"], True)
    engine.check_integrity()
    assert engine.stats()["free_slots"] == engine.stats()["total_slots"]

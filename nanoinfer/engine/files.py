"""Files below an engine's host memory, as its configuration asks for them."""

from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from weakref import WeakKeyDictionary

from nanoinfer.adapters.adapter import Adapter, adapter_digest
from nanoinfer.cache.storeys.disk import DiskStorey
from nanoinfer.cache.storeys.fetch_costs import FetchCosts
from nanoinfer.cache.storeys.files import FileStore, namespace_bytes
from nanoinfer.engine.engine import Engine
from nanoinfer.requests.adapter_key import AdapterKey
from nanoinfer.scheduling.fetch_turns import FetchTurns

FIRST_LOOK_S = 2.0  # for how long an engine waits until what is in the folder is known


def add_files(engine: Engine, fields: Mapping[str, str], clock: Callable[[], float]) -> None:
    """Put files below an engine's host memory. `fields`: all that K/V depends on beside tokens, adapters and `extra_key`.
    ValueError for a folder that cannot be used."""
    config, host = engine.config, engine.cache.storey
    assert config.cache_dir is not None
    described = {**fields, "layout": host.memory.layout, "page_size": config.page_size}
    store = FileStore(config.cache_dir, config.cache_dir_max_bytes, described, host.memory.token_bytes, host.block_size)
    with suppress(TimeoutError):  # a slow disk: then it is found a little later
        store.refresh().result(FIRST_LOOK_S)
    digests: WeakKeyDictionary[Adapter, str] = WeakKeyDictionary()

    def namespace_of(extra_key: Hashable) -> bytes | None:
        if not isinstance(extra_key, AdapterKey):
            return namespace_bytes((None, extra_key))
        adapter = next((each for each in engine.adapters.values() if each.id == extra_key.id), None)
        if adapter is None:
            return None
        if adapter not in digests:
            digests[adapter] = adapter_digest(adapter)
        return namespace_bytes((digests[adapter], extra_key.extra_key))

    costs = FetchCosts(lambda: host.costs.computing)
    disk = DiskStorey(engine.cache, host, store, namespace_of, costs, clock)
    engine.scheduler.adapter_turns = FetchTurns(engine.adapters.pool, disk)

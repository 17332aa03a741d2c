"""Without `host_cache_tokens` and `cache_dir`, nothing of the storeys is called or told while an engine serves requests."""

import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

from nanoinfer.cache import storeys
from nanoinfer.engine import files, prefix_transfer
from nanoinfer.engine import storeys as storeys_of_engines
from nanoinfer.scheduling import fetch_turns
from nanoinfer.scheduling.adapter_turns import AdapterTurns
from tests.helpers.engines import finish, greedy, make_engine

ROOM = str(Path(storeys.__file__).parent)
FILES = (files.__file__, prefix_transfer.__file__, storeys_of_engines.__file__, fetch_turns.__file__)


def calls_of_storeys(**options: Any) -> Counter[str]:
    """Which functions of storeys run while an engine serves requests that evict each other's prefixes, and come again."""
    engine = make_engine(rows=2, slots=64, **options)
    calls: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and (file.startswith(ROOM) or file in FILES):
            calls[frame.f_code.co_qualname] += 1

    sys.setprofile(note)
    try:
        for first in (1, 2, 3, 1, 2):
            engine.add_request([first, *range(40)], greedy(4))
            finish(engine)
    finally:
        sys.setprofile(None)
    assert engine.cache.evicted_tokens > 0
    engine.check_integrity()
    return calls


def test_nothing_of_the_storeys_runs_when_there_are_none() -> None:
    assert calls_of_storeys() == Counter()
    with_host_memory = calls_of_storeys(host_cache_tokens=256)
    assert with_host_memory["HostStorey.evicting"] > 0, "and it would be seen here"
    assert with_host_memory["HostStorey.fetch"] >= 5


def test_nobody_watches_the_tree_and_no_request_waits() -> None:
    engine = make_engine()
    assert engine.cache.storey is None
    assert type(engine.scheduler.adapter_turns) is AdapterTurns
    assert not list(engine.radix_cache.observers)
    assert list(make_engine(host_cache_tokens=256).radix_cache.observers)

"""/block_events: what the tree holds, followed by a router that knows the server by its address only."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from nanoinfer.cache.block_events import (
    CPU,
    DISK,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventBatch,
    Snapshot,
    block_hashes,
)
from nanoinfer.cache.tree_blocks import TreeBlocks
from nanoinfer.cluster import PassCosts, PrefixRouter, RoutedRequest
from nanoinfer.server import make_app
from nanoinfer.server.block_events import News, read_news, read_place, write_news
from tests.helpers.block_mirror import blocks_of_tree
from tests.helpers.engines import make_engine
from tests.helpers.servers import Running, patient_app, running
from tests.helpers.waiting import HANG_S, until

SIZE = 4


def serving(**settings: Any) -> Any:
    return running(patient_app(make_engine(slots=512), **{"event_block_size": SIZE, **settings}))


@pytest.fixture(scope="module")
def up() -> Iterator[Running]:
    with serving() as server:
        yield server


@contextmanager
def followed(up: Running, place: str | None = None, **headers: str) -> Iterator[Iterator[tuple[str, str, str]]]:
    """The events of a stream: id, name, data."""
    if place is not None:
        headers["last-event-id"] = place

    def events(response: httpx.Response) -> Iterator[tuple[str, str, str]]:
        fields: dict[str, str] = {}
        for line in response.iter_lines():
            if line:
                name, _, value = line.partition(": ")
                fields[name] = value
            else:
                yield fields.get("id", ""), fields.get("event", ""), fields["data"]
                fields = {}

    with httpx.stream("GET", f"{up.url}/block_events", headers=headers, timeout=HANG_S) as response:
        assert response.status_code == 200
        yield events(response)


def complete(up: Running, prompt: list[int]) -> None:
    body = {"model": up.service.base_name, "prompt": prompt, "max_tokens": 4, "temperature": 0}
    assert up.post("/v1/completions", body).status_code == 200


class Outside:
    """A router that follows one server."""

    def __init__(self) -> None:
        self.router = PrefixRouter(PassCosts(0.001, 0.01, 0.0, 0.0), block_size=SIZE, clock=lambda: 0.0)
        self.router.add_replica("idle")
        self.router.add_replica("it")
        self.place = ""

    @property
    def blocks(self) -> set[int]:
        return set(self.router.index.sets.masks)

    def follow(self, events: Iterator[tuple[str, str, str]], is_there: Callable[[], bool]) -> list[News]:
        """Read and note until that is so."""
        seen = list[News]()
        while not is_there():
            self.place, kind, data = next(events)
            seen.append(news := read_news(kind, data))
            if isinstance(news, Snapshot):
                self.router.note_snapshot("it", news)
            else:
                assert self.router.note_events("it", news)
        return seen


def blocks_there(up: Running) -> set[int]:
    """What the tree of the server holds."""
    (found,) = up.call(
        up.service.engine.visit_each(lambda engine: set(blocks_of_tree(engine.radix_cache, SIZE)))  # type: ignore[arg-type]
    )
    return found  # type: ignore[no-any-return]


def test_a_router_outside_knows_what_the_server_holds(up: Running) -> None:
    outside, prompt = Outside(), list(range(1, 42))
    with followed(up) as events:
        outside.follow(events, lambda: outside.place != "")
        complete(up, prompt)
        outside.follow(events, lambda: set(block_hashes(prompt, SIZE)) <= outside.blocks)
        there = blocks_there(up)
        outside.follow(events, lambda: outside.blocks == there)
        assert outside.router.choose(RoutedRequest("0", [*prompt[:36], 9, 9, 9], 4)) == "it"
        assert up.post("/flush_cache").status_code == 200
        outside.follow(events, lambda: not outside.blocks)


def test_it_goes_on_where_it_was(up: Running) -> None:
    outside = Outside()
    with followed(up) as events:
        assert isinstance(outside.follow(events, lambda: outside.place != "")[0], Snapshot)
    prompts = [[50 + i, *range(30)] for i in range(3)]
    for prompt in prompts:
        complete(up, prompt)
    there = blocks_there(up)
    with followed(up, outside.place) as events:
        seen = outside.follow(events, lambda: outside.blocks == there)
    assert seen
    assert all(isinstance(news, EventBatch) for news in seen)


@pytest.mark.parametrize("place", ["", "somebody:3", "else", "{source}:999999", "{source}:-1", "{source}:x"])
def test_whoever_was_elsewhere_gets_everything(up: Running, place: str) -> None:
    outside, prompt = Outside(), [77, *range(30)]
    complete(up, prompt)
    there = blocks_there(up)
    source = up.service.core.block_feed(SIZE).source  # type: ignore[attr-defined]
    with followed(up, place.format(source=source)) as events:
        (first,) = outside.follow(events, lambda: outside.place != "")
    assert isinstance(first, Snapshot)
    assert outside.blocks == there


@pytest.mark.parametrize("shows", [False, True])
def test_tokens_are_told_only_where_prompts_are_shown(shows: bool) -> None:
    outside, prompt = Outside(), list(range(1, 22))
    with serving(show_prompts=shows) as up, followed(up) as events:
        complete(up, prompt)
        seen = outside.follow(events, lambda: set(block_hashes(prompt, SIZE)) <= outside.blocks)
    stored = [
        each
        for news in seen
        for each in (news.blocks if isinstance(news, Snapshot) else news.events)
        if isinstance(each, BlockStored)
    ]
    tokens = [token for event in stored for token in event.token_ids]
    assert tokens[:20] == (prompt[:20] if shows else [])


def test_readers_leave_nothing_behind(up: Running) -> None:
    feed = up.service.core.block_feed(SIZE)  # type: ignore[attr-defined]
    with followed(up) as one, followed(up) as other:
        assert next(one)[1:] == next(other)[1:]
        assert len(feed.listeners) >= 2
    until(lambda: not feed.listeners)
    up.check_idle()


def test_the_end_of_the_server_ends_the_stream() -> None:
    with serving() as up, followed(up) as events:
        assert next(events)[1] == "snapshot"
        up.end()
        assert [kind for _, kind, _ in events] == ["end"]


def test_it_needs_the_key_and_the_setting(up: Running) -> None:
    with running(patient_app(make_engine(slots=512))) as without:
        assert without.get("/block_events").status_code == 404
        observers = without.service.core.radix_cache.observers  # type: ignore[attr-defined]
        assert not any(isinstance(observer, TreeBlocks) for observer in observers)
    with serving(api_keys=["a-key"]) as locked:
        assert locked.get("/block_events").status_code == 401
        with followed(locked, authorization="Bearer a-key") as events:
            assert next(events)[1] == "snapshot"
    assert httpx.head(f"{up.url}/block_events", timeout=HANG_S).status_code == 200
    engine = make_engine(slots=512)
    engine.block_feed(8)
    with pytest.raises(ValueError, match="event_block_size=4: must be 8"):
        make_app(engine, event_block_size=SIZE)


def test_what_is_written_can_be_read() -> None:
    stored = BlockStored([2**64 - 1, 5], 7, [1, 2, 3, 4], 2, 1, "sea", DISK)
    for news in (
        EventBatch(3, 1.5, [stored, BlockRemoved([5], CPU), AllBlocksCleared()], "a:b"),
        Snapshot(4, [stored], "a:b"),
    ):
        for with_tokens in (True, False):
            place, kind, data, *rest = write_news(news, with_tokens).decode().split("\n")
            assert rest == ["", ""]
            assert read_place(place.removeprefix("id: ")) == ("a:b", 4)
            read = read_news(kind.removeprefix("event: "), data.removeprefix("data: "))
            assert type(read) is type(news)
            assert (read == news) is with_tokens
    assert [read_place(text) for text in (None, "", ":3", "a:", "a:²", "a:-1")] == [None] * 6
    with pytest.raises(ValueError, match="kind='end'"):
        read_news("end", "{}")

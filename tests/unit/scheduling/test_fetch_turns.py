"""Which waiting requests have what they need in memory: K/V from files, and an adapter on the device."""

from types import SimpleNamespace
from typing import Any

from nanoinfer.scheduling.fetch_turns import FetchTurns


class Disk:
    """Stands for the files: K/V of a request is there when it is in `ready`; `wait` says what is in `comes`."""

    def __init__(self) -> None:
        self.ready, self.landings, self.comes, self.fetching = set[str](), 0, False, False

    def is_ready(self, req: Any) -> bool:
        return req.name in self.ready

    def land(self) -> None:
        self.landings += 1

    def wait(self) -> bool:
        return self.comes


class Places:
    """Stands for the places of adapters, of which there is one for each that nobody uses."""

    def __init__(self) -> None:
        self.asked, self.in_use, self.fetching = list[str](), set[str](), False

    def obtain(self, adapter: str, in_use: set[str]) -> bool:
        self.asked.append(adapter)
        self.in_use = set(in_use)
        return True

    def wait(self) -> bool:
        return self.fetching


def turns_of(disk: Disk, places: Places | None = None) -> FetchTurns:
    parts: Any = (places, disk)
    return FetchTurns(*parts)


def request(name: str, adapter: str | None) -> Any:
    return SimpleNamespace(name=name, adapter=adapter)


def test_an_adapter_takes_no_place_before_the_k_v_of_its_request_has_come() -> None:
    """Or else two requests would take the only place from each other until the disk is done."""
    disk, places = Disk(), Places()
    turns = turns_of(disk, places)
    waits, goes_on = request("waits", "a"), request("goes on", "b")
    disk.ready.add("goes on")
    turns.begin([])
    assert [turns.has(req) for req in (waits, goes_on)] == [False, True]
    assert places.asked == ["b"]
    disk.ready.add("waits")
    assert turns.has(waits)
    assert places.asked == ["b", "a"]


def test_a_round_begins_with_what_has_come_and_with_the_adapters_of_running_requests() -> None:
    disk, places = Disk(), Places()
    turns = turns_of(disk, places)
    disk.ready.add("next")
    turns.begin([request("runs", "a")])
    assert disk.landings == 1
    turns.has(request("next", "b"))
    assert places.in_use == {"a"}
    turns.begin([])
    turns.has(request("next", "b"))
    assert (disk.landings, places.in_use) == (2, set())


def test_it_waits_for_an_adapter_or_else_for_k_v() -> None:
    disk, places = Disk(), Places()
    for turns in (turns_of(disk, places), turns_of(disk)):
        assert (turns.fetching, turns.wait()) == (False, False)
        disk.fetching = disk.comes = True
        assert (turns.fetching, turns.wait()) == (True, True)
        disk.fetching = disk.comes = False
    places.fetching = True
    turns = turns_of(disk, places)
    assert (turns.fetching, turns.wait()) == (True, True)

"""Checks of notebook 13: the key under which K/V is cached, and the places that adapters have on the device."""

from collections.abc import Hashable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import a_kind, expect, expect_equal


@exercise("13.4", "The key of the cache")
def _(given: Given) -> str:
    cache_key, loaded = given["cache_key"], []

    def key(name: str | None, number: int = 0, extra: Hashable = None) -> Any:
        adapter = None if name is None else SimpleNamespace(name=name, id=number)
        loaded.append(adapter)  # so that no two are at the same address
        found = cache_key(adapter, extra)
        expect(not isinstance(found, torch.Tensor), "Return a plain value or a tuple of them, not a tensor.")
        try:
            hash(found)
        except TypeError:
            expect(False, f"A key must be hashable, because it is a dictionary's. {a_kind(found)} isn't.")
        return found

    expect(
        key("rhymes", 1) != key("rhymes", 2),
        "'rhymes' is unloaded, and another adapter is loaded under the name 'rhymes'. It gets the same key, so it finds "
        "the K/V of the old one.",
    )
    expect(
        key("rhymes", 1) == key("rhymes", 1),
        "Two requests with the same adapter get different keys, so they share nothing. Use the adapter's `id` attribute. "
        "(Python's id() is an address: each object has its own, and it may be used again once the object is gone.)",
    )
    expect(key(None) == key(None), "Two requests with the base model get different keys, so they share nothing.")
    expect(key(None) != key("rhymes", 1), "The base model's key is an adapter's, too.")
    expect(
        key("rhymes", 1, "customer 1") != key("rhymes", 1, "customer 2"),
        "Two customers use the same adapter. Their `extra_key`s differ, so they must not share K/V, but their keys are "
        "equal.",
    )
    expect(
        key(None, extra="customer 1") != key(None, extra="customer 2"),
        "Without an adapter, `extra_key` still keeps customers apart.",
    )
    for one, other in ((None, "None"), (1, "1"), ((1, 2), "(1, 2)")):
        expect(
            key(None, extra=one) != key(None, extra=other),
            f"extra_key={one!r} and extra_key={other!r} are different, but give the same key. Leave it as it is.",
        )
    expect(
        key("rhymes", 1, "customer 1") != key("sea", 2, "customer 1"),
        "One customer uses two adapters. Their K/V differs, but their keys are equal.",
    )
    taken = {key("rhymes", 1): "no extra_key", key("rhymes", 1, "c"): "extra_key='c'"}
    for extra in (1, "1", "rhymes", (1, None), (1, "c"), ("rhymes", None), *taken):
        expect(
            key(None, extra=extra) not in taken,
            f"A caller who uses the base model says extra_key={extra!r}, and gets the key of adapter 1. The caller must "
            "not be able to choose a key that is an adapter's: say in every key whether there is an adapter.",
        )
    for extra in ((2, None), (2, "c")):
        expect(key("rhymes", 1, extra) != key("sea", 2), "With some `extra_key`, one adapter gets the key of another.")
    return "old names, two customers, and callers whose extra_key looks like a key"


# --- 13.5 -------------------------------------------------------------------------------------------------------------


class _Reference:
    def __init__(self, size: int):
        self.adapters: list[str | None] = [None] * size
        self.order: list[str] = []  # least recently used first

    def obtain(self, adapter: str, in_use: set[str]) -> int | None:
        if adapter not in self.adapters:
            if None in self.adapters:
                place = self.adapters.index(None)
            else:
                idle = [each for each in self.order if each not in in_use]
                if not idle:
                    return None
                place = self.adapters.index(idle[0])
                self.order.remove(idle[0])
            self.adapters[place] = adapter
        else:
            self.order.remove(adapter)
        self.order.append(adapter)
        return self.adapters.index(adapter)


@exercise("13.5", "A place on the device", points=2)
def _(given: Given) -> str:
    cls = given["Places"]
    expect(hasattr(cls(1), "obtain"), "`Places` must stay a class with the method `obtain`.")
    expect(hasattr(cls(1), "adapters"), "Keep `self.adapters`: it says which adapter is in which place.")

    def asked(size: int, *adapters: str) -> tuple[Any, list[int | None]]:
        places = cls(size)
        return places, [_obtain(places, adapter, set()) for adapter in adapters]

    places, got = asked(2, "a")
    expect(got[0] is not None, "All places are free, and `obtain` returns None. It must return the place's number.")
    expect_equal(list(places.adapters), ["a", None], "Note in `self.adapters` which adapter is in the place.")
    _, got = asked(2, "a", "b")
    expect_equal(got, [0, 1], "The second adapter gets a free place: nothing has to leave yet")
    _, got = asked(2, "a", "b", "b")
    expect_equal(got, [0, 1, 1], "'b' is on the device already. It keeps its place")
    places, got = asked(2, "a", "b", "a", "c")
    expect(
        got[3] != 0,
        "'a' and 'b' fill all places. Then 'a' is used again, and 'c' needs one. 'a' came first, but was used last: "
        "'b' has to go.",
    )
    expect_equal(got[3], 1, "'c' takes the place of 'b', whose last use is longest ago")
    expect_equal(list(places.adapters), ["a", "c"], "after 'c' has taken the place of 'b'")
    places, _ = asked(2, "a", "b")
    got_c = _obtain(places, "c", {"a"})
    expect(got_c != 0, "'a' was used longest ago, but a running request uses it. Its rows would be computed with 'c'.")
    expect_equal(got_c, 1, "'c' takes the place of 'b', which no running request uses")
    places, _ = asked(2, "a", "b")
    expect(
        _obtain(places, "c", {"a", "b"}) is None,
        "Running requests use all adapters that are there. 'c' has to wait: return None.",
    )
    expect_equal(list(places.adapters), ["a", "b"], "'c' has to wait, so nothing must change")
    expect_equal(
        _obtain(places, "a", {"a", "b"}), 0, "an adapter that is in use and is asked for again keeps its place"
    )
    rng = np.random.default_rng(5)
    for size in (1, 2, 3, 5):
        places, reference = cls(size), _Reference(size)
        for number in range(200):
            adapter = "abcdefgh"[rng.integers(8)]
            in_use = {each for each in "abcdefgh" if rng.random() < 0.3}
            got_one, want = _obtain(places, adapter, in_use), reference.obtain(adapter, in_use)
            said = f"{size} places, call {number} of a long mixture: obtain({adapter!r}, {sorted(in_use)})"
            expect_equal(got_one, want, f"{said} gives the wrong place")
            expect_equal(list(places.adapters), reference.adapters, f"{said}: other adapters are there")
    return "the least recently used goes, those in use stay, through 800 calls"


def _obtain(places: Any, adapter: str, in_use: set[str]) -> Any:
    before = set(in_use)
    found = places.obtain(adapter, in_use)
    expect(in_use == before, "You changed `in_use`, which belongs to the caller.")
    expect(
        found is None or (isinstance(found, int | np.integer) and not isinstance(found, bool)),
        f"obtain returns the number of a place or None, not {a_kind(found)}.",
    )
    return found

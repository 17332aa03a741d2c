"""notebooks.course.extend: a class that grows over several cells."""

import itertools
from typing import Any

import pytest

from notebooks.course import extend


class Grown:
    """Grows below."""

    start = 3


class TestExtend:
    """A class that grows over several cells."""

    def test_all_kinds_of_members(self) -> None:
        class Thing:
            size = 2

        alive = Thing()

        @extend(Thing)
        def double(self: Any) -> int:
            return 2 * self.size

        @extend(Thing)
        @property
        def half(self: Any) -> float:
            return self.size / 2

        @extend(Thing)
        @classmethod
        def make(cls: Any) -> Any:
            return cls()

        assert (alive.double(), alive.half) == (4, 1.0)
        assert isinstance(Thing.make(), Thing)
        assert Thing.double.__qualname__.endswith("Thing.double")

    def test_a_member_is_replaced_for_living_objects(self) -> None:
        class Thing:
            def size(self) -> int:
                return 1

        alive = Thing()

        @extend(Thing)
        def size(self: Any) -> int:
            return 2

        assert alive.size() == 2

    def test_names_keep_their_meaning_and_cells_can_be_run_again(self) -> None:
        namespace: dict[str, Any] = {"extend": extend, "count": itertools.count}
        exec("class Thing: pass", namespace)
        for answer in (1, 2):
            exec(f"@extend(Thing)\ndef count(self): return {answer}", namespace)
            exec(f"@extend(Thing)\ndef size(self): return {answer}", namespace)
            assert namespace["count"] is itertools.count
            assert namespace["Thing"]().count() == answer
            assert namespace["size"] is namespace["Thing"].size, "a new name is the member, and the newest one"

    def test_what_is_no_class_or_no_member_is_refused(self) -> None:
        with pytest.raises(TypeError, match="must be given the class"):
            extend(Grown())
        with pytest.raises(TypeError, match="isn't a function"):
            extend(Grown)(3)
        with pytest.raises(TypeError, match="isn't a function"):

            @extend(Grown)
            class Inner:
                pass

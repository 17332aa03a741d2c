"""notebooks.course: classes that grow, exercises, checks and what they say."""

import itertools
import sys
from typing import Any

import numpy as np
import pytest
import torch

from nanoinfer.model import ModelConfig
from nanoinfer.model.loader import resolve_model_path
from notebooks.course import Given, Hint, NotWritten, attempt, check, expect_equal, extend
from notebooks.course.tables import limited


class TestExpectEqual:
    """What is equal, and what is said where it is not."""

    @pytest.mark.parametrize(
        ("got", "want"),
        [
            (torch.tensor([1, 2]), torch.tensor([1, 2])),
            (np.float32([1.0, np.nan]), np.float32([1.0, np.nan])),
            ([1, (2, torch.tensor(3))], [1, (2, torch.tensor(3))]),
            ({"a": [1]}, {"a": [1]}),
            (np.int64(3), 3),
            (float("nan"), float("nan")),
        ],
    )
    def test_equal(self, got: object, want: object) -> None:
        expect_equal(got, want, "unused")

    @pytest.mark.parametrize(
        ("got", "want", "said"),
        [
            (torch.tensor([1, 2]), torch.tensor([1, 3]), "1 of 2 differ, first [1]: 2 instead of 3"),
            (torch.tensor([1.0]), torch.tensor([1]), "dtype float32 instead of int64"),
            (torch.zeros(2, 1), torch.zeros(2), "shape [2, 1] instead of [2]"),
            ([0, 1], torch.tensor([0, 1]), "a list instead of a tensor"),
            ([0, 2], [0, 1], "first difference at [1]"),
            ({"a": torch.tensor(1)}, {"a": torch.tensor(2)}, "first difference at ['a']"),
            ({"a": 1}, {"b": 1}, "missing keys: ['b']\n  unknown keys: ['a']"),
        ],
    )
    def test_different(self, got: object, want: object, said: str) -> None:
        with pytest.raises(Hint) as caught:
            expect_equal(got, want, "the hint")
        assert str(caught.value).startswith("the hint\n  got: ")
        assert said in str(caught.value)

    def test_floats_within_a_tolerance(self) -> None:
        expect_equal(torch.tensor([1.0]), torch.tensor([1.01]), "", atol=0.1)
        expect_equal([1.0], [1.01], "", rtol=0.1)
        with pytest.raises(Hint):
            expect_equal(torch.tensor([1.0]), torch.tensor([1.01]), "")

    def test_long_values_are_cut_and_addresses_left_out(self) -> None:
        with pytest.raises(Hint) as caught:
            expect_equal(["x" * 5000, object()], 1, "hint")
        assert len(str(caught.value)) < 1000
        with pytest.raises(Hint) as caught:
            expect_equal(object(), 1, "hint")
        assert "0x" not in str(caught.value)
        with pytest.raises(Hint, match=r"tensor \[1000\] int64: \[  0   1"):
            expect_equal(torch.arange(1000), 1, "hint")


def cells(source: str) -> dict[str, Any]:
    """What a notebook's globals are after a cell."""
    namespace: dict[str, Any] = {}
    exec(compile(source, "<cell>", "exec"), namespace)
    return namespace


@pytest.mark.usefixtures("checks_folder")
class TestCheck:
    """check("90.1", globals())."""

    def test_a_right_answer_prints_one_line(self, capsys: pytest.CaptureFixture[str]) -> None:
        check("90.1", cells("def lowest(free, n): return sorted(free)[:n]"))
        check("90.2", cells("def twice(n): return 2 * n"))
        out = "✓ 90.1 The lowest first: 3 free, 2 taken\n✓ 90.2 Twice as much\n"
        assert capsys.readouterr().out == out

    def test_a_wrong_answer_is_hinted_at(self) -> None:
        with pytest.raises(Hint, match=r"(?s)^90.1 The lowest first: The lowest go first.*got:    \[3, 1\]"):
            check("90.1", cells("def lowest(free, n): return free[:n]"))

    def test_a_missing_name_a_stub_and_anothers_stub_are_told(self) -> None:
        with pytest.raises(NotWritten, match="no `lowest` in this notebook"):
            check("90.1", {})
        for text in ('"exercise 90.1"', ""):
            with pytest.raises(NotWritten, match=r"^90.1 The lowest first: not written yet.$"):
                check("90.1", cells(f"def lowest(free, n): raise NotImplementedError({text})"))
        with pytest.raises(NotWritten, match=r"needs exercise 90.2, which isn't written yet."):
            check("90.1", cells('def lowest(free, n): raise NotImplementedError("exercise 90.2")'))

    @pytest.mark.parametrize("before", ["", "def lowest(free, n): return []"])
    def test_a_cell_that_python_cannot_read_is_told_by_its_line(self, before: str) -> None:
        """IPython's `In` has the sources of all cells, also of those that did not run."""
        broken = "# mine\ndef lowest(free, n):\nreturn 1"
        called = ["with attempt('90.1'):\n    lowest([1], 1)", "check('90.1', globals())"]
        said = (
            r"(?s)Python can't read your code.*line 3 of its cell: return 1\n  IndentationError: expected an indented"
        )
        with pytest.raises(Hint, match=said):
            check("90.1", cells(before) | {"In": ["", before, broken, *called]})

    def test_the_readers_exception_is_shown_with_its_lines(self) -> None:
        source = "def lowest(free, n):\n    return inner(free)\n\ndef inner(free):\n    return free.pop('x')\n"
        with pytest.raises(Hint) as caught:
            check("90.1", cells(source))
        assert "your code raises TypeError: " in str(caught.value)
        assert str(caught.value).endswith("\n  in lowest, line 2 of its cell\n  in inner, line 5 of its cell")
        assert isinstance(caught.value.__cause__, TypeError)

    @pytest.mark.parametrize(
        ("asked", "said"),
        [
            ("num_heads", "The field is called `num_attention_heads`."),  # this package's layers, and vLLM
            ("n_head", "The field is called `num_attention_heads`."),  # GPT-2
            ("num_kv_head", "The field is called `num_key_value_heads`."),  # like another name for it
            ("kv_bytes_per_tokens", "The method is called `kv_bytes_per_token`."),
        ],
    )
    def test_an_unknown_attribute_gets_the_name_of_the_one_that_was_meant(self, asked: str, said: str) -> None:
        source = f"def lowest(free, n):\n    return config.{asked}\n"
        namespace = cells(source)
        namespace["config"] = ModelConfig.from_pretrained(resolve_model_path("story"))
        with pytest.raises(Hint) as caught:
            check("90.1", namespace)
        assert f"has no attribute '{asked}'. {said}\n  in lowest" in str(caught.value)

    def test_other_kinds_of_errors(self) -> None:
        with pytest.raises(Hint, match="raises NotImplementedError: later"):
            check("90.1", cells("def lowest(free, n): raise NotImplementedError('later')"))
        with pytest.raises(Hint, match="raises RecursionError"):
            check("90.1", cells("def lowest(free, n): return lowest(free, n)"))
        with pytest.raises(Hint, match="can't work with what your code gives: TypeError"):
            check("90.1", {"lowest": 3})
        with pytest.raises(Hint, match="raises SystemExit: 3"):
            check("90.1", cells("def lowest(free, n): raise SystemExit(3)"))
        with pytest.raises(KeyboardInterrupt):
            check("90.1", cells("def lowest(free, n): raise KeyboardInterrupt"))

    def test_a_checker_cannot_write_into_the_notebook(self) -> None:
        namespace = {"alloc": 1}
        given = Given(namespace)
        with pytest.raises(TypeError):
            given["alloc"] = 2
        given._namespace["alloc"] = 2
        assert namespace == {"alloc": 1}
        assert "alloc" in given
        assert "free" not in given


class TestAttempt:
    """with attempt("90.1"): a picture of what the reader's code did."""

    def test_an_unwritten_exercise_is_named_in_one_line(self, capsys: pytest.CaptureFixture[str]) -> None:
        with attempt("90.1"):
            raise NotImplementedError("exercise 90.1")
        with attempt("90.2"):
            raise NotImplementedError("exercise 90.1")
        expected = "90.1: not written yet.\n90.2: needs exercise 90.1, which isn't written yet.\n"
        assert capsys.readouterr().out == expected

    def test_everything_else_passes_through(self, capsys: pytest.CaptureFixture[str]) -> None:
        with attempt("90.1"):
            value = 3
        assert value == 3
        with pytest.raises(NotImplementedError, match="later"), attempt("90.1"):
            raise NotImplementedError("later")
        with pytest.raises(KeyError), attempt("90.1"):
            raise KeyError("exercise 90.1")
        assert capsys.readouterr().out == ""


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

    def test_names_keep_their_meaning_and_cells_can_be_run_again(self) -> None:
        namespace: dict[str, Any] = {"extend": extend, "count": itertools.count}
        exec("class Thing: pass", namespace)
        alive = namespace["Thing"]()
        for answer in (1, 2):
            exec(f"@extend(Thing)\ndef count(self): return {answer}", namespace)
            exec(f"@extend(Thing)\ndef size(self): return {answer}", namespace)
            assert namespace["count"] is itertools.count
            assert alive.count() == answer, "also of an object that was there before"
            assert namespace["size"] is namespace["Thing"].size, "a new name is the member, and the newest one"


class TestLimited:
    """with limited(...): a loop without an end becomes a hint, whatever it catches, and nothing stays behind."""

    def test_a_loop_without_an_end_becomes_the_hint(self) -> None:
        before = sys.gettrace()
        with pytest.raises(Hint, match="goes on"), limited(1000, "goes on"):
            _count_to(10**9)
        assert sys.gettrace() is before
        with limited(1000, "goes on"):
            assert _count_to(300) == 300


def _count_to(most: int) -> int:
    count = 0
    while count < most:
        try:
            count += 1
        except Exception:
            count = 0
    return count

"""Checks of notebook 12: right answers pass, and each typical mistake gets its hint."""

import pytest

from nanoinfer.teaching import Hint, check
from tests.solution_cells import gets_hint, passes, solutions, written

ANSWERS = solutions("12_where_the_time_goes")
HEADER = """
HEADER = '''
constexpr int LANES = 8, PANELS = 2;
typedef float Floats __attribute__((vector_size(4 * LANES), aligned(4)));
constexpr int COLUMNS = LANES * PANELS;
'''
"""
IDS = ("12.1", "12.2", "12.3", "12.4", "12.5")

# exercise, what of the right answer is replaced, by what, and what the hint must say
MISTAKES = [
    ("12.1", "requests * bandwidth", "bandwidth", "how many passes"),
    ("12.1", " + requests * context * kv_bytes", "", "K/V is read, too"),
    ("12.1", "requests * context", "context", "of one request"),
    ("12.1", "weight_bytes + requests", "requests * weight_bytes + requests", "once per pass, however many"),
    ("12.1", "/ pass_bytes", "/ pass_bytes / 2", "The speed is wrong"),
    ("12.1", "requests * bandwidth / pass_bytes", "'fast'", "Return a number"),
    ("12.2", "2 * weights * bandwidth", "weights * bandwidth", "two: a multiplication and an addition"),
    ("12.2", " - context * kv_bytes * flops", "", "K/V is missing|Return None"),
    ("12.2", "    if gained <= 0:\n        return None\n", "    if gained <= 0:\n        return 1\n", "Return None"),
    ("12.2", "max(1, int(-(-(weights * weight_bytes * flops) // gained)))",
     "max(1, int(weights * weight_bytes * flops // gained))", "reading still takes longer"),
    ("12.2", "gained)))", "gained))) + 1", "a smaller batch is enough"),
    ("12.2", "max(1, int(-(-(weights * weight_bytes * flops) // gained)))", "weights * weight_bytes * flops / gained",
     "whole number"),
    ("12.3", "(slots, -1)", "(slots, 0)", "must be -1 behind the batch"),
    ("12.3", "(lens - 1, 0)", "(lens, 0)", "positions count from 0"),
    ("12.3", "rows * width", "rows", "Row r begins at r \\* width"),
    ("12.3", "        array[count:] = padding\n", "", "the pass before left behind"),
    ("12.3", "        array[:count] = values\n        array[count:] = padding\n",
     "        full = np.full(len(array), padding)\n        full[:count] = values\n        setattr(buffers, name, full)\n",
     "another array than before"),
    ("12.3", "(lens, 0)", "(lens + 1, 0)", "`seq_lens` is wrong for the batch"),
    ("12.3", "    count = len(token_ids)\n", "    count = len(token_ids)\n    rows += 1\n    rows -= 1\n    lens -= 1\n",
     "belongs to the caller"),
    ("12.4", "sums[m][p] +=", "sums[m][p] =", "only the last k counts"),
    ("12.4", "x[m * in + k]", "x[k]", "the sums of token 0"),
    ("12.4", "p < PANELS; p++) {", "p < 1; p++) {", "some outputs are right"),
    ("12.4", "x[m * in + k] * weights;", "0 * weights;", "everything is 0"),
    ("12.4", "* weights;", "* weigths;", "C\\+\\+ says that it does not compile"),
    ("12.4", "w + k * COLUMNS", "w + (k + 100000000L) * COLUMNS", "outside its arrays"),
    ("12.4", "w + k * COLUMNS + p * LANES", "w + p * LANES", "the product is wrong"),
    ("12.5", "parts = min(len(x), 8)", "parts = 8", "does not depend on the batch"),
    ("12.5", "parts = min(len(x), 8)", "parts = 1", "does not depend on the batch"),
    ("12.5", "dtype=x.dtype", "dtype=torch.float32", "must be bfloat16"),
    ("12.5", "total = total + some_x", "total = some_x", "not all inputs are added up"),
    ("12.5", "min(len(x), 8)", "min(len(x), 16)", "other bits among 8 than among 16"),
]  # fmt: skip


def source(id: str) -> str:
    """The solution, with what the notebook defines before it."""
    return HEADER + ANSWERS[id] if id == "12.4" else ANSWERS[id]


@pytest.mark.parametrize("id", IDS)
def test_a_right_answer_passes(id: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert set(ANSWERS) == set(IDS)
    passes(id, source(id), capsys)


@pytest.mark.parametrize(("id", "right", "wrong", "hint"), MISTAKES)
def test_a_typical_mistake_gets_its_hint(id: str, right: str, wrong: str, hint: str) -> None:
    gets_hint(id, source(id), right, wrong, hint)


def test_an_inner_loop_that_never_ends_does_not_hold_up_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    from nanoinfer.teaching import compiled

    outcome = compiled.Cpp.outcome

    def hasty(self, name, *arguments, result):  # type: ignore[no-untyped-def]
        return outcome(self, name, *arguments, result=result, seconds=0.5)

    monkeypatch.setattr(compiled.Cpp, "outcome", hasty)
    endless = source("12.4").replace(
        "for (int p = 0; p < PANELS; p++) {", "for (volatile int p = 0; p < 1; p += 0) {", 1
    )
    assert endless != source("12.4")
    with pytest.raises(Hint, match="does not end within"):
        check("12.4", written(endless))


def test_without_a_compiler_the_inner_loop_is_not_tried(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    check("12.4", written(source("12.4")))
    assert "written, but not tried, because there is no C++ compiler" in capsys.readouterr().out

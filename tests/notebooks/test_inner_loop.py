"""The check of notebook 12's inner loop, which compiles it: right answers pass, and each typical mistake gets its hint."""

import pytest

from notebooks.course import Hint, check
from notebooks.course.checks import nb12_tile
from notebooks.course.compiled import Cpp
from tests.helpers.waiting import HANG_S
from tests.solution_cells import gets_hint, passes, solutions, written

pytestmark = pytest.mark.slow

HEADER = """
HEADER = '''
constexpr int LANES = 8, PANELS = 2;
typedef float Floats __attribute__((vector_size(4 * LANES), aligned(4)));
constexpr int COLUMNS = LANES * PANELS;
'''
"""
ANSWER = HEADER + solutions("12_where_the_time_goes")["12.4"]

# what of the right answer is replaced, by what, and what the hint must say
MISTAKES = [
    ("sums[m][p] +=", "sums[m][p] =", "only the last k counts"),
    ("x[m * in + k]", "x[k]", "the sums of token 0"),
    ("p < PANELS; p++) {", "p < 1; p++) {", "some outputs are right"),
    ("x[m * in + k] * weights;", "0 * weights;", "everything is 0"),
    ("* weights;", "* weigths;", "C\\+\\+ says that it doesn't compile"),
    ("w + k * COLUMNS", "w + (k + 100000000L) * COLUMNS", "Every index must stay below"),
    ("w + k * COLUMNS + p * LANES", "w + k * COLUMNS + p", "some outputs are right|the product is wrong"),
    ("x[m * in + k]", "x[k * in + m]", "the product is wrong|Every index must stay"),
    ("sums[m][p] +=", "sums[m + 6 - M][p] +=", "Every index must stay below"),
    ("sums[m][p] +=", "sums[m][PANELS] +=", "Every index must stay below"),
    ("    return \"\"\"\n", "    return 7 if 1 else \"\"\"\n", "not as an int"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """An inner loop may take as long as it needs, unless a test says otherwise."""
    monkeypatch.setitem(Cpp.outcome.__kwdefaults__, "seconds", HANG_S)


@pytest.fixture
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler optimises less, and nobody compares the inner loop's time with another's."""
    monkeypatch.setenv("NANOINFER_CXXFLAGS", "-O1")
    monkeypatch.setattr(nb12_tile, "_slower", lambda *_: 1.0)


def test_a_right_answer_passes(capsys: pytest.CaptureFixture[str]) -> None:
    passes("12.4", ANSWER, capsys)


BY_P = "for (int p = 0; p < PANELS; p++) "
BY_M = "for (int m = 0; m < M; m++) "
USE = f"{BY_M} {BY_P} sums[m][p] += x[m * in + k] * v[p];"


@pytest.mark.usefixtures("_quickly")
@pytest.mark.parametrize(
    ("weights", "statements"),
    [
        (f"{BY_P} v[p] = *(const Floats*)(w + k * COLUMNS + p * LANES);", USE),
        (f"{BY_P} v[p] = *(Floats*)(w + k * COLUMNS + p * LANES);",
         f"{BY_M} {{ auto& row = sums[m]; float a = *(x + m * in + k); int p = 0; for (auto& s : row) s += a * v[p++]; }}"),
        (f"const float* of_k = w + k * COLUMNS; {BY_P} v[p] = *(const Floats*)(of_k + p * LANES);",
         f"{BY_P} {BY_M} {{ Floats& sum = sums[m][p]; sum = sum + v[p] * x[m * in + k]; }}"),
        (f"{BY_P} {{ v[p] = *(const Floats*)w; w += LANES; }}", USE),
        (f"{BY_P} v[p] = ((const Floats*)(w + k * COLUMNS))[p];", f"Floats (*s)[PANELS] = sums; {USE}"),
    ],
)  # fmt: skip
def test_other_right_inner_loops_pass(weights: str, statements: str, capsys: pytest.CaptureFixture[str]) -> None:
    begin, end = ANSWER.index('    return """'), ANSWER.index("### END SOLUTION")
    passes("12.4", f'{ANSWER[:begin]}    return "Floats v[PANELS]; {weights} {statements}"\n    {ANSWER[end:]}', capsys)


@pytest.mark.usefixtures("_quickly")
def test_a_slow_inner_loop_passes_and_is_told_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nb12_tile, "_slower", lambda *_: 9.0)
    check("12.4", written(ANSWER))
    said = capsys.readouterr().out
    assert said.startswith("✓ 12.4")
    assert "takes 9 times as long as whole vectors need" in said


@pytest.mark.usefixtures("_quickly")
@pytest.mark.parametrize(("right", "wrong", "hint"), MISTAKES)
def test_a_typical_mistake_gets_its_hint(right: str, wrong: str, hint: str) -> None:
    gets_hint("12.4", ANSWER, right, wrong, hint)


@pytest.mark.usefixtures("_quickly")
def test_an_inner_loop_that_never_ends_does_not_hold_up_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(Cpp.outcome.__kwdefaults__, "seconds", 0.01)  # for ever is longer
    endless = ANSWER.replace("for (int p = 0; p < PANELS; p++) {", "for (volatile int p = 0; p < 1; p += 0) {", 1)
    assert endless != ANSWER
    with pytest.raises(Hint, match=r"doesn't end within 0 seconds\. Does each loop count up to its end"):
        check("12.4", written(endless))


def test_without_a_compiler_the_inner_loop_is_not_tried(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    check("12.4", written(ANSWER))
    assert "written, but not tried, because there is no C++ compiler" in capsys.readouterr().out

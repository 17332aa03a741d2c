"""The picture of a split product: each process has its columns and rows, and the partial sums add up to the product."""

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from nanoinfer import viz
from tests.helpers.pictures import assert_readable, faces, named, texts

RNG = np.random.default_rng(0)
X, FIRST, SECOND = RNG.normal(size=4), RNG.normal(size=(4, 6)), RNG.normal(size=(6, 3))


def number(value: float) -> str:
    return f"{value:.2f}".replace("-", "\u2212")


def test_the_partial_sums_are_those_of_its_columns_and_rows_and_the_sum_is_the_product() -> None:
    picture = viz.split_product(X, FIRST, SECOND, 3, title="T", caption="C.")
    partial = X @ FIRST[:, 2:4] @ SECOND[2:4]
    assert {number(each) for each in (*partial, *(X @ FIRST @ SECOND))} <= set(texts(picture))
    assert picture.alt.endswith("the whole product differs by nothing.")
    assert_readable(picture)


def test_a_process_has_columns_of_the_first_and_rows_of_the_second_matrix() -> None:
    picture = viz.split_product(X, FIRST, SECOND, 2)
    columns = {int(str(shape.get_gid()).split()[3]) for shape in named(picture, "first 1 ")}
    rows = {int(str(shape.get_gid()).split()[2]) for shape in named(picture, "second 1 ")}
    assert columns == rows == {3, 4, 5}
    assert len(named(picture, "first 0 ")) == 12
    assert len(named(picture, "x 0 ")) == 4, "all of x"
    assert faces(picture, "first 0 0 0") == faces(picture, "second 0 0 0") != faces(picture, "first 1 0 3")


def test_the_largest_has_room() -> None:
    ones = np.full((8, 8), -0.75)
    assert_readable(viz.split_product(ones[0], ones, ones, 4, title="T", caption="C."))


def test_what_cannot_be_split_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"x \[4\], first \[4, 6\], second \[4, 6\]: must be \[d\], \[d, f\] and \[f, e\]"
    ):
        viz.split_product(X, FIRST, FIRST, 2)
    with pytest.raises(ValueError, match="parts=4: must divide f=6"):
        viz.split_product(X, FIRST, SECOND, 4)
    with pytest.raises(ValueError, match=r"parts=5: must be an integer, 1\.\.4"):
        viz.split_product(X, FIRST, SECOND, 5)
    with pytest.raises(ValueError, match=r"sizes \[9, 6, 3\]: must be 1\.\.8"):
        viz.split_product(np.ones(9), np.ones((9, 6)), np.ones((6, 3)), 2)

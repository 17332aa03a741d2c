"""The picture of bytes: a cell per byte, a row per line, colours by part, and escapes for what cannot be printed."""

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from nanoinfer import viz
from tests.helpers.pictures import assert_readable, faces, named, texts

REQUEST = [
    ("request line", b"GET / HTTP/1.1\r\n"),
    ("headers", b"host: a\r\n"),
    ("empty line", b"\r\n"),
    ("body", b"ab"),
]


def test_every_byte_has_a_cell_in_the_colour_of_its_part() -> None:
    picture = viz.wire(REQUEST)
    assert len(named(picture, "byte ")) == 16 + 9 + 2 + 2
    looks = [faces(picture, f"byte {at}")[0] for at in (0, 16, 25, 27)]
    assert len(set(looks)) == 4
    assert faces(picture, "byte 15")[0] == looks[0], "a line's end belongs to its part"
    assert picture.alt == "29 bytes: request line 16, headers 9, empty line 2, body 2."
    assert_readable(picture)


def test_each_line_begins_a_row_and_a_long_one_is_continued() -> None:
    picture = viz.wire([("a", b"x\ny"), ("b", b"z" * 100)])
    tops = [named(picture, f"byte {at}")[0].get_y() for at in (0, 1, 2, 3, 65, 66)]
    assert tops[0] == tops[1] < tops[2] == tops[3] == tops[4] < tops[5]
    assert {"0", "2", "66"} <= set(texts(picture)), "the number of each row's first byte"


def test_what_cannot_be_printed_is_escaped() -> None:
    picture = viz.wire([("a", "é \t\r\n\0$".encode())])
    assert [text for text in texts(picture) if text in ("c3", "a9", "·", "\\t", "\\r", "\\n", "00", "$")] == [
        *("c3", "a9", "·", "\\t", "\\r", "\\n", "00", "$")
    ]
    assert_readable(picture)


def test_a_label_that_comes_again_keeps_its_colour_and_is_counted_together() -> None:
    picture = viz.wire([("size", b"2"), ("data", b"ab"), ("size", b"0"), ("nothing", b"")], title="T", caption="C.")
    assert faces(picture, "byte 0") == faces(picture, "byte 3") != faces(picture, "byte 1")
    assert {"T", "C.", "size: 2 bytes", "data: 2 bytes"} <= set(texts(picture))
    assert picture.alt == "C. 4 bytes: size 2, data 2."


def test_numbers_are_cells_as_wide_as_their_bytes_and_have_no_lines() -> None:
    numbers, raw = np.array([13, 700, -1], "<i4"), np.array([0x0A, 0x41, 0x0D], np.uint8)
    picture = viz.wire([("text", b"x" * 54), ("numbers", numbers), ("raw", raw)])
    place = dict(zip((*range(54), 54, 58, 62, 66, 67, 68), named(picture, "byte "), strict=True))
    assert place[54].get_width() == pytest.approx(4 * place[0].get_width())
    assert place[54].get_y() == place[58].get_y() == place[0].get_y()
    assert place[62].get_y() == place[66].get_y() == place[68].get_y() > place[0].get_y(), "a cell is in one row"
    assert [text for text in texts(picture) if text != "x"][1:9] == ["0", "13", "700", "62", "-1", "0a", "41", "0d"]
    assert picture.alt == "69 bytes: text 54, numbers 12, raw 3."
    assert_readable(picture)


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match=r"parts: 0 bytes; must be 1\.\.2048"):
        viz.wire([("a", b"")])
    with pytest.raises(ValueError, match=r"parts: 2049 bytes; must be 1\.\.2048"):
        viz.wire([("a", b"x" * 2049)])
    with pytest.raises(ValueError, match="parts: 5 labels; must be at most 4"):
        viz.wire([(str(i), b"x") for i in range(5)])
    with pytest.raises(ValueError, match=r"parts\[1\]: must be \(label, bytes or integers \[n\]\), got \(str, str\)"):
        viz.wire([("a", b"x"), ("b", "x")])  # type: ignore[list-item]
    with pytest.raises(
        ValueError, match=r"parts\[0\]: must be \(label, bytes or integers \[n\]\), got \(str, ndarray\)"
    ):
        viz.wire([("a", np.zeros(4))])
    with pytest.raises(ValueError, match=r"parts\[0\]: must be \(label, bytes or integers \[n\]\), got b'abc'"):
        viz.wire([b"abc"])  # type: ignore[list-item]

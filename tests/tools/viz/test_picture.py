"""A picture as an object: bytes, colours, captions, notebooks, and no state of matplotlib that it touches."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")

from PIL import Image

from nanoinfer import viz
from nanoinfer.viz.palette import REQUESTS, ROLES
from tests.helpers.pictures import (
    make_pool,
    make_rows,
    make_tree,
    take,
    texts,
    worked_example,
)


def test_the_same_objects_give_the_same_bytes_without_a_version_or_a_date(tmp_path: Path) -> None:
    pool = make_pool(64)
    owners = {"request 1": take(pool, 7)}
    pictures = [viz.slot_map(pool, owners) for _ in range(2)]
    pictures[0].save(tmp_path / "a.png")
    written = (tmp_path / "a.png").read_bytes()
    assert written == pictures[0].png() == pictures[1].png()
    image = Image.open(tmp_path / "a.png")
    image.load()
    assert set(image.info) <= {"dpi", "transparency"}
    assert not any(word in written for word in (b"matplotlib", b"Software", b"tEXt", b"tIME"))


def test_flat_colours_survive_in_the_file(tmp_path: Path) -> None:
    owners = {f"request {i}": [i] for i in range(8)}
    pool = make_pool(16)
    take(pool, 8)
    viz.slot_map(pool, owners).save(tmp_path / "a.png")
    colours = {colour for _, colour in Image.open(tmp_path / "a.png").convert("RGB").getcolors(100_000) or []}
    for style in (ROLES["free"], *REQUESTS):
        assert tuple(int(style.face[i : i + 2], 16) for i in (1, 3, 5)) in colours


def test_a_notebook_shows_the_png_and_folds_the_numbers_away_beneath() -> None:
    display = pytest.importorskip("IPython.display")
    shown: list[Any] = []
    picture = viz.slot_map(make_pool(16), {"<b>": [15]})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(display, "display", lambda *args, **kwargs: shown.append((args, kwargs)))
        picture._ipython_display_()
    ((data,), options), ((folded,), _) = shown
    assert set(data) == {"image/png", "text/plain"}
    assert data["text/plain"] == picture.alt
    assert options["raw"]
    assert options["metadata"]["image/png"] == {"width": 900, "alt": picture.alt}
    assert folded["text/plain"] == picture.alt
    assert folded["text/html"].startswith("<details><summary>the picture in words</summary>\n16 slots:")
    assert "<b>" not in folded["text/html"]


def test_sanitizers_let_the_folded_words_through() -> None:
    """GitHub and JupyterLab keep details and summary; bleach, which nbconvert uses, does so when it is told to."""
    bleach = pytest.importorskip("bleach")
    folded = viz.slot_map(make_pool(16))._alt_folded()
    assert bleach.clean(folded, tags={"details", "summary"}) == folded


def test_a_caption_is_beneath_the_picture_and_first_in_its_words() -> None:
    caption = "The first slot is taken."
    pictures = [
        viz.slot_map(make_pool(16), caption=caption),
        viz.bars({"a": 1}, unit="ms", caption=caption),
        viz.lines({"a": ([1], [2])}, x="x", y="y", caption=caption),
        viz.padded_batch([1, 2], caption=caption),
        viz.request_rows(make_rows(), {0: 9}, caption=caption),
        viz.input_metadata(worked_example(), caption=caption),
        viz.radix_tree(make_tree(), caption=caption),
    ]
    for picture in pictures:
        assert caption in texts(picture)
        assert picture.alt.startswith(caption + " ")


@pytest.mark.slow
def test_no_global_state_of_matplotlib_is_touched() -> None:
    code = (
        "import sys, nanoinfer; assert 'matplotlib' not in sys.modules\n"
        "import matplotlib\n"
        "def settings(): return {k: matplotlib.rcParams[k] for k in matplotlib.rcParams if k != 'backend'}\n"
        "before = settings()\n"
        "from nanoinfer import viz; viz.bars({'a': 1}, unit='ms').png()\n"
        "viz.lines({'a': ([1], [2])}, x='x', y='y').png()\n"
        "assert settings() == before and 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_without_matplotlib_the_import_says_what_to_install() -> None:
    code = "import sys; sys.modules['matplotlib'] = None\nfrom nanoinfer import viz"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "nanoinfer.viz draws with matplotlib: pip install" in run.stderr.splitlines()[-1]


def test_pictures_are_saved_as_png_only(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"path='.*a\.jpg': must end in \.png"):
        viz.slot_map(make_pool(16)).save(tmp_path / "a.jpg")


def test_what_the_font_cannot_draw_is_a_box_and_signs_of_mathematics_are_signs() -> None:
    picture = viz.bars({"$x_1$ 中文": 1}, unit="$")
    assert "$x_1$ ▯▯" in texts(picture)
    picture.png()

"""A picture as an object: bytes, captions, notebooks, and no state of matplotlib that it touches."""

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from PIL import Image

from nanoinfer import viz
from nanoinfer.viz import lettering
from nanoinfer.viz.palette import REQUESTS, ROLES
from tests.helpers.pictures import make_pool, make_tree, take, texts, worked_example

STYLE = {
    "text.usetex": True,
    "font.family": "serif",
    "axes.facecolor": "red",
    "path.sketch": (1, 100, 2),
    "text.hinting": "none",
}


def drawings() -> dict[str, viz.Picture]:
    return {
        "metadata": viz.input_metadata(worked_example(), tokens=["$a_1$"] * 12, caption="C."),
        "slots": viz.slot_map(make_pool(40), {"request 1": [2]}, caption="C."),
        "lines": viz.lines({"a": ([1, 2], [3, 4]), "b": ([1, 2], [4, 3])}, x="$x$", y="y", log=True, caption="C."),
        "padding": viz.padded_batch([3, 5], caption="C."),
        "tree": viz.radix_tree(make_tree(), caption="C."),
    }


def digests() -> dict[str, str]:
    return {name: hashlib.sha256(picture.png()).hexdigest() for name, picture in drawings().items()}


def test_the_same_objects_give_the_same_bytes_without_a_version_or_a_date(tmp_path: Path) -> None:
    pool = make_pool(64)
    owners = {f"request {i}": take(pool, 1) for i in range(8)}
    pictures = [viz.slot_map(pool, owners) for _ in range(2)]
    pictures[0].save(tmp_path / "a.png")
    written = (tmp_path / "a.png").read_bytes()
    assert written == pictures[0].png() == pictures[1].png()
    image = Image.open(tmp_path / "a.png")
    image.load()
    assert set(image.info) <= {"dpi", "transparency"}
    colours = {f"#{r:02x}{g:02x}{b:02x}" for _, (r, g, b) in image.convert("RGB").getcolors(100_000) or []}  # type: ignore[misc]
    assert {style.face for style in (ROLES["free"], *REQUESTS)} <= colours, "flat colours survive in the file"
    with pytest.raises(ValueError, match=r"path=.*a\.jpg"):
        pictures[0].save(tmp_path / "a.jpg")


def test_every_picture_has_its_caption_first_in_its_words() -> None:
    for picture in drawings().values():
        assert picture.alt.startswith("C. ")
        assert "C." in texts(picture)


def test_a_notebook_shows_the_png_and_folds_the_words_away_and_a_terminal_prints_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ipython, display = pytest.importorskip("IPython"), pytest.importorskip("IPython.display")
    shown: list[Any] = []
    picture = viz.slot_map(make_pool(16), {"<b>": [15]})
    with monkeypatch.context() as patch:
        patch.setattr(display, "display", lambda *args, **kwargs: shown.append((args, kwargs)))
        picture._ipython_display_()
    ((data,), options), ((folded,), _) = shown
    assert set(data) == {"image/png", "text/plain"}
    assert data["text/plain"] == options["metadata"]["image/png"]["alt"] == folded["text/plain"] == picture.alt
    assert "<b>" not in folded["text/html"]
    bleach = pytest.importorskip("bleach")  # as GitHub and JupyterLab do
    assert bleach.clean(folded["text/html"], tags={"details", "summary"}) == folded["text/html"]
    monkeypatch.setattr(ipython, "get_ipython", object)  # a shell without a kernel
    picture._ipython_display_()
    assert capsys.readouterr().out.strip() == picture.alt


@pytest.mark.slow
def test_the_style_of_the_user_changes_no_picture_and_no_picture_changes_the_style() -> None:
    before = digests()
    lettering.measure.cache_clear()
    lettering.font.cache_clear()
    with matplotlib.rc_context(STYLE):
        settings = dict(matplotlib.rcParams)
        assert digests() == before
        assert dict(matplotlib.rcParams) == settings


@pytest.mark.slow
def test_matplotlib_is_imported_by_pictures_only_and_without_pyplot() -> None:
    code = (
        "import sys, nanoinfer; assert 'matplotlib' not in sys.modules\n"
        "from nanoinfer import viz; viz.bars({'a': 1}, unit='ms').png()\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    run = subprocess.run(
        [sys.executable, "-c", "import sys; sys.modules['matplotlib'] = None\nfrom nanoinfer import viz"],
        capture_output=True,
        text=True,
    )
    assert "pip install" in run.stderr.splitlines()[-1]

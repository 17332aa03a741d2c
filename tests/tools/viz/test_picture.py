"""A picture as an object: bytes, captions, notebooks, and no state of matplotlib that it touches; and the palette of all of
them, seen with each colour blindness and in grey."""

import hashlib
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from PIL import Image

from nanoinfer import viz
from nanoinfer.viz import lettering
from nanoinfer.viz.palette import FETCHED, LINES, PHASE_STYLES, REQUESTS, ROLES, Style, owner_style
from notebooks.course.pictures.passes import ADAPTERS
from tests.helpers.pictures import make_pool, make_tree, take, texts, worked_example

EXAMPLE = Path(__file__).parents[3] / "data" / "trace" / "example.json"
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
        "bars": viz.bars({"a": 3, "b": 5}, unit="ms", caption="C."),
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
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "import nanoinfer.server.app\n"
        "from nanoinfer.viz.trace import Trace; print(Trace.load(sys.argv[1]).player().html()[:15])\n"
        "from nanoinfer import viz; viz.bars"
    )
    run = subprocess.run([sys.executable, "-c", code, EXAMPLE], capture_output=True, text=True)
    assert run.stdout == "<!doctype html>\n", run.stderr
    assert "pip install" in run.stderr.splitlines()[-1]


# --- the palette -----------------------------------------------------------------------------------------------------

# Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of Color Vision Deficiency" (2009),
# severity 1.0, for linear RGB.
VISION = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
LUMINANCE = np.array([0.2126729, 0.7151522, 0.0721750])
REQUEST_ROLES = {f"request {i}": style for i, style in enumerate(REQUESTS)}
PICTURES: dict[str, dict[str, Style]] = {
    "slot_map": {role: ROLES[role] for role in ("free", "tree", "tree_locked", "leaked", "conflict")} | REQUEST_ROLES,
    "slot_map, no owners given": {role: ROLES[role] for role in ("free", "in_use", "conflict")},
    "request_rows": {role: ROLES[role] for role in ("tree", "tree_locked", "leftover")} | REQUEST_ROLES,
    "input_metadata": {role: ROLES[role] for role in ("free", "tree", "new")} | REQUEST_ROLES,
    "extend_mask": {role: ROLES[role] for role in ("tree", "new", "hidden")},
    "padded_batch": {"used": ROLES["in_use"], "padding": ROLES["padding"]},
    "timeline": PHASE_STYLES | {f"from {tier}": style for tier, style in FETCHED.items()},
    "adapter_rows": {"free": ROLES["free"]} | {f"adapter {i}": style for i, style in enumerate(ADAPTERS)},
}


def linear(colour: str) -> np.ndarray:
    """#rrggbb → linear RGB [3]."""
    rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """Linear RGB → CIE L*a*b*, D65: distances in it are differences one sees."""
    to_xyz = np.array(
        [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    )
    xyz = to_xyz @ np.clip(rgb, 0, 1) / np.array([0.95047, 1.0, 1.08883])
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def difference(a: str, b: str, vision: str) -> float:
    return float(np.linalg.norm(lab(VISION[vision] @ linear(a)) - lab(VISION[vision] @ linear(b))))


def lightness(colour: str) -> float:
    """L*, 0..100: all that grey print keeps."""
    return float(lab(linear(colour))[0])


@pytest.mark.parametrize("picture", PICTURES)
def test_roles_that_meet_in_a_picture_differ_for_every_eye_and_in_grey(picture: str) -> None:
    for (a, one), (b, other) in combinations(PICTURES[picture].items(), 2):
        if one.hatch == other.hatch:
            assert min(difference(one.face, other.face, vision) for vision in VISION) >= 14, (a, b)
            assert abs(lightness(one.face) - lightness(other.face)) >= 8, (a, b)


def test_lines_of_a_chart_differ_for_every_eye_by_colour_or_dashes() -> None:
    for vision in VISION:
        for (i, a), (j, b) in combinations(enumerate(LINES), 2):
            assert i % 4 != j % 4 or difference(a, b, vision) >= 14, (vision, a, b)


def test_text_can_be_read_on_its_face() -> None:
    """The contrast ratio that WCAG asks of text, 4.5; of what is recessive on purpose, 3."""
    for role, style in (ROLES | REQUEST_ROLES | PHASE_STYLES).items():
        darker, lighter = sorted(float(LUMINANCE @ linear(colour)) for colour in (style.face, style.text))
        assert (lighter + 0.05) / (darker + 0.05) >= (3 if role == "leftover" else 4.5), role


def test_a_request_keeps_its_look_from_picture_to_picture_and_shares_it_with_no_role() -> None:
    looks = {owner_style(label, 5) for label in ("request 2", "row 7: request 2", "request 10", "row 2")}
    assert looks == {REQUESTS[2]}
    assert owner_style("tree of the teacher", 1) == REQUESTS[1]
    assert owner_style("set aside", 3) == ROLES["padding"]
    roles = [*ROLES.values(), *(style for style in PHASE_STYLES.values() if style not in ROLES.values()), *REQUESTS]
    assert len({(style.face, style.hatch) for style in roles}) == len(roles)

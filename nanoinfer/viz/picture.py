"""Picture: a matplotlib figure that brings its numbers along as a sentence."""

import base64
import html
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

WIDTH = 900  # CSS pixels in a notebook; one inch of the figure is 100 of them
PIXEL_RATIO = 1.5  # image pixels for each: sharp on a dense screen and on a projector
MAX_COLOURS = 96
PRINT_WIDTH = 110  # characters per line of what is printed beneath
SUMMARY = "the picture in words"


_ONE_AT_A_TIME = threading.RLock()  # matplotlib's settings are the whole process's


@contextmanager
def default_settings() -> Iterator[None]:
    """Matplotlib's default settings, whatever style its user has chosen; the user's are back afterwards."""
    with _ONE_AT_A_TIME, matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams["hatch.linewidth"] = 0.6
        yield


class Picture(Figure):
    """A figure made without pyplot, and `alt`: its numbers in words.

    In a notebook it shows as a PNG, and beneath it `alt`, folded away until a reader opens "the picture in words". Both
    have `alt` as their text/plain, so that a stale picture shows in a text comparison. Elsewhere it is an ordinary
    `matplotlib.figure.Figure`. The same objects give the same bytes: no version, no date, and nothing of the style that
    matplotlib is set to.
    """

    def __init__(self, width: float = WIDTH, height: float = 300, alt: str = "", **options: Any):
        size = width / 100, height / 100
        super().__init__(figsize=size, dpi=100 * PIXEL_RATIO, facecolor="white", layout=None, **options)
        self.set_layout_engine("none")
        FigureCanvasAgg(self)
        self.alt = alt

    def png(self) -> bytes:
        """The picture as PNG."""
        canvas = FigureCanvasAgg(self)
        with default_settings():
            canvas.draw()
        width, height = canvas.get_width_height()
        image = Image.frombuffer("RGBA", (width, height), canvas.buffer_rgba()).convert("RGB")
        if image.getcolors(maxcolors=MAX_COLOURS) is None:
            image = _fewer_colours(image)
        out = BytesIO()
        image.save(out, format="png", optimize=True)
        return out.getvalue()

    def save(self, path: str | Path) -> None:
        """Write the PNG. ValueError when `path` ends otherwise (other formats: `savefig`)."""
        if Path(path).suffix.lower() != ".png":
            raise ValueError(f"path={str(path)!r}: must end in .png")
        Path(path).write_bytes(self.png())

    def _ipython_display_(self) -> None:
        from IPython import get_ipython
        from IPython.display import display

        shell = get_ipython()
        if shell is not None and not hasattr(shell, "kernel"):  # a terminal shows text only
            print(self._alt_in_lines())
            return
        data = {"image/png": base64.b64encode(self.png()).decode(), "text/plain": self.alt}
        width = round(self.get_figwidth() * 100)
        display(data, raw=True, metadata={"image/png": {"width": width, "alt": self.alt}})
        display({"text/html": self._alt_folded(), "text/plain": self._alt_in_lines()}, raw=True)

    def _alt_folded(self) -> str:
        """Nothing but `details`, `summary` and text: what the sanitizers of JupyterLab and GitHub let through."""
        return f"<details><summary>{SUMMARY}</summary>\n{html.escape(self._alt_in_lines())}\n</details>"

    def _alt_in_lines(self) -> str:
        return textwrap.fill(self.alt, PRINT_WIDTH, break_long_words=False, break_on_hyphens=False)


def _fewer_colours(image: Image.Image) -> Image.Image:
    """The most frequent colours as they are, the others (edges of letters) as the nearest of them: a third of the bytes."""
    red, green, blue = np.moveaxis(np.asarray(image, dtype=np.int32), -1, 0)
    packed, places, counts = np.unique(red << 16 | green << 8 | blue, return_inverse=True, return_counts=True)
    colours = np.stack([packed >> 16, packed >> 8 & 255, packed & 255], axis=1)
    kept = colours[np.lexsort((packed, -counts))[:MAX_COLOURS]]
    distances = ((colours[:, None, :] - kept[None]) ** 2).sum(-1)
    indices = distances.argmin(axis=1).astype(np.uint8)[places].reshape(red.shape)
    few = Image.fromarray(indices, mode="P")
    few.putpalette(kept.astype(np.uint8).tobytes())
    return few

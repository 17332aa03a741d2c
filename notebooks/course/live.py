"""Panel: what the live widgets of the notebooks have in common; a still picture stands in where no kernel runs."""

import base64
import html
from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets

from nanoinfer.viz import Picture

WIDTH = "900px"  # as wide as the pictures


class Panel:
    """Controls above a message above pictures. As the last expression of a notebook cell it is shown; everything in it can
    be reached and pressed by keyboard.

    A saved notebook holds no widget: it holds the pictures as they were when the cell was run, and `hint`, which says
    what the student could do in a running notebook.
    """

    hint = ""

    def __init__(self, controls: Sequence[Any]):
        self.pictures: list[Picture] = []
        self.text = ""
        self._message, self._drawn = ipywidgets.HTML(), ipywidgets.HTML()
        self.root = ipywidgets.VBox([*controls, self._message, self._drawn], layout=ipywidgets.Layout(max_width=WIDTH))

    def show(self, *pictures: Picture) -> None:
        """Replace the pictures."""
        self.pictures = list(pictures)
        self._drawn.value = self._pictures_html()

    def say(self, text: str, *, error: bool = False) -> None:
        """Replace the message. An error is marked as such by more than its colour, and read out by screen readers."""
        self.text = text
        role, colour, mark = ("alert", "#a11200", "✗ ") if error else ("status", "inherit", "")
        self._message.value = f'<div role="{role}" style="color:{colour}">{mark}{html.escape(text)}</div>'

    def on_click(self, button: Any, action: Callable[[], None]) -> None:
        """Press `button` → `action`, whose exception becomes the message: nothing else would show it."""

        def pressed(_: object) -> None:
            try:
                action()
            except Exception as error:  # whatever it is, the student is to see it
                self.say(f"{type(error).__name__}: {error}", error=True)

        button.on_click(pressed)

    def still_html(self) -> str:
        """What stands in for the widget where no kernel runs."""
        text = f"<p>{html.escape(self.text)}</p>" if self.text else ""
        return f"<p><em>{html.escape(self.hint)}</em></p>\n{text}\n{self._pictures_html()}"

    def still_text(self) -> str:
        """The same as text."""
        return "\n".join(filter(None, [self.hint, self.text, *(picture.alt for picture in self.pictures)]))

    def _pictures_html(self) -> str:
        return "\n".join(
            f'<img alt="{html.escape(picture.alt)}" width="{round(picture.get_figwidth() * 100)}" style="max-width:100%" '
            f'src="data:image/png;base64,{base64.b64encode(picture.png()).decode()}">'
            for picture in self.pictures
        )

    def _ipython_display_(self) -> None:
        from IPython.display import display

        bundle = self.root._repr_mimebundle_()
        display({**bundle, "text/html": self.still_html(), "text/plain": self.still_text()}, raw=True)


def button(text: str, tooltip: str = "", width: str = "auto") -> Any:
    """A button as wide as its text."""
    return ipywidgets.Button(description=text, tooltip=tooltip or text, layout=ipywidgets.Layout(width=width))


def number(label: str, value: int, low: int, high: int) -> Any:
    """A field for a whole number; what is outside low..high becomes the nearest that is inside."""
    return ipywidgets.BoundedIntText(
        value, min=low, max=high, description=label, style={"description_width": "initial"}, layout={"width": "170px"}
    )

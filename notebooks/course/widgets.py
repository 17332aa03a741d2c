"""A live widget for notebooks, try_slots: allocate slots of a real pool and free them, by its public methods."""

import base64
import html
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import ipywidgets
from IPython.display import display

from nanoinfer import viz
from nanoinfer.cache.memory_pool import TokenToKVPool
from nanoinfer.viz import Picture
from nanoinfer.viz.palette import ROLES, owner_style
from nanoinfer.viz.words import count
from nanoinfer.viz.words import slots as slots_in_words

MOST_SLOTS = 64  # as many buttons
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


class TrySlots(Panel):
    """Allocate slots of `pool` by a button, and free them by pressing their numbers; what the pool refuses is shown in its
    own words. In a pool with pages, a press frees the slot's page. ValueError where the pool has more than 64 slots."""

    hint = "Run this cell in Jupyter to allocate slots yourself, and to free them by clicking on them."

    def __init__(self, pool: TokenToKVPool):
        if pool.size > MOST_SLOTS:
            raise ValueError(f"pool.size={pool.size}: must be at most {MOST_SLOTS}, since each slot is a button")
        self.pool, self.owners = pool, dict[str, list[int]]()
        self._requests = 0
        self.amount = number("How many", 4 * pool.page_size, 0, 2 * pool.size)
        self.alloc_button = button("Allocate", "The lowest free slots")
        self.neighbours_button = button("Allocate neighbours", "Slots in a row, without a gap")
        self.reset_button = button("Free all")
        self.slot_buttons = tuple(button(str(slot), width="48px") for slot in range(pool.size))
        for each in self.slot_buttons:
            each.layout.margin, each.layout.padding, each.layout.border = "1px", "0", "1px solid #9a9a9a"
        controls = ipywidgets.HBox([self.amount, self.alloc_button, self.neighbours_button, self.reset_button])
        grid = ipywidgets.Box(self.slot_buttons, layout=ipywidgets.Layout(flex_flow="row wrap"))
        super().__init__([controls, ipywidgets.HTML("Free a slot: press its number."), grid])
        self.on_click(self.alloc_button, self.alloc)
        self.on_click(self.neighbours_button, partial(self.alloc, neighbours=True))
        self.on_click(self.reset_button, self.reset)
        for slot, each in enumerate(self.slot_buttons):
            self.on_click(each, partial(self.free, slot))
        self._redraw()
        self.say(f"{count(pool.available_size(), 'slot')} free.")

    def alloc(self, *, neighbours: bool = False) -> None:
        """Allocate for a new request."""
        need, free = self.amount.value, self.pool.available_size()
        if neighbours:
            found = self.pool.alloc_contiguous(need)
            slots = None if found is None else found[0]
        else:
            slots = self.pool.alloc(need)
        if slots is None:
            apart = ", but not side by side" if neighbours and need <= free else ""
            self.say(f"None: {count(need, 'slot')} asked for, {free} free{apart}. No slot is taken.", error=True)
            return
        label = f"request {self._requests}"
        self._requests += 1
        self.owners[label] = slots.tolist()
        self._redraw()
        self.say(f"{label} gets {slots_in_words(self.owners[label])}; {self.pool.available_size()} free.")

    def free(self, slot: int) -> None:
        """Free one slot, or the page that it is in, whether or not that is right: the pool judges."""
        page = self.pool.page_size
        start = slot - slot % page
        taken = list(range(start, start + page))
        self.pool.free(taken)
        for label, slots in list(self.owners.items()):
            self.owners[label] = [each for each in slots if each not in taken]
            if not self.owners[label]:
                del self.owners[label]
        self._redraw()
        self.say(f"{slots_in_words(taken).capitalize()} freed; {self.pool.available_size()} free.")

    def reset(self) -> None:
        """Free what has been allocated here."""
        while self.owners:
            self.pool.free(self.owners.popitem()[1])
        self._requests = 0
        self._redraw()
        self.say(f"{count(self.pool.available_size(), 'slot')} free.")

    def _redraw(self) -> None:
        taken = [slot for slots in self.owners.values() for slot in slots]
        free = set(self.pool.free_slots().tolist())
        elsewhere = [slot for slot in range(self.pool.size) if slot not in free and slot not in taken]
        owners = {**self.owners, **({"allocated before": elsewhere} if elsewhere else {})}
        looks = {
            slot: (owner_style(label, i), label) for i, (label, slots) in enumerate(owners.items()) for slot in slots
        }
        for slot, each in enumerate(self.slot_buttons):
            style, label = looks.get(slot, (ROLES["free"], "free"))
            each.style.button_color, each.style.text_color = style.face, style.text
            each.tooltip = f"slot {slot}: {label}"
        self.show(viz.slot_map(self.pool, owners, title="The pool now"))


try_slots = TrySlots  # as notebooks call it

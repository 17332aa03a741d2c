"""timeline: the requests of a trace as lanes over steps, or over time."""

from collections.abc import Mapping
from typing import Any, Protocol

from nanoinfer.viz.picture import Picture


class HasTimeline(Protocol):
    """A nanoinfer.trace.Trace, which can draw its timeline (trace/timeline.py)."""

    def timeline(self, **options: Any) -> Picture: ...


def timeline(
    trace: HasTimeline,
    *,
    title: str | None = None,
    last: int | None = None,
    by: str = "step",
    steps: int | None = None,
    labels: Mapping[int, str] | None = None,
    highlight: int | None = None,
    occupancy: bool = False,
    caption: str | None = None,
) -> Picture:
    """When each request of a Trace waited, was extended (with the number of tokens), decoded, was retracted, and ended.

    `last`: only the last so many steps. `by="time"`: over milliseconds instead of steps of equal width. `steps`: how many
    steps wide the axis is, so that timelines of different runs can be compared. `labels`: `{number of the request: what its
    lane is called}`; `highlight`: the number of a request to mark; numbers as in `trace.requests`. `occupancy=True`: above
    the lanes, over the same steps, who has the pool's slots after each step, and where requests are retracted, so that the
    cause is seen. At most 32 requests are drawn. Raises ValueError for a trace without steps, for values that are none of
    these, and for fewer `steps` than drawn.
    """
    draw = getattr(trace, "timeline", None)  # pictures know of no traces: a trace knows how it is drawn
    if not callable(draw):
        raise ValueError(f"trace: must be Trace, got {type(trace).__name__}")
    options: dict[str, Any] = {"title": title, "last": last, "by": by, "steps": steps, "labels": labels}
    picture: Picture = draw(**options, highlight=highlight, occupancy=occupancy, caption=caption)
    return picture

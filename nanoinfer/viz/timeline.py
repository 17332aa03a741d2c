"""timeline: the requests of a trace as lanes over steps."""

from typing import Any

from nanoinfer.viz.picture import Picture


def timeline(trace: Any, **options: Any) -> Picture:
    """When each request of a Trace waited, was extended (with the number of tokens), decoded, was retracted, and ended.

    Options besides `title` and `caption`: `last`: only the last so many steps. `steps`: how many steps wide the axis is, so
    that timelines of different runs can be compared. `labels`: `{number of the request: what its lane is called}`;
    `highlight`: the number of a request to mark; numbers as in `trace.requests`. `occupancy=True`: above the lanes, over
    the same steps, who has the pool's slots after each step, and where requests are retracted, so that the cause is seen.
    At most 32 requests are drawn. Raises ValueError for a trace without steps.
    """
    picture: Picture = trace.timeline(**options)  # pictures know of no traces: a trace knows how it is drawn
    return picture

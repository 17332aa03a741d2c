"""Blocked: an optimisation, to be skipped on a first reading. Without it the scheduler decides the same."""

from typing import NamedTuple

from nanoinfer.requests.req import Req


class Blocked(NamedTuple):
    """The first request that did not fit, and the engine's state then.

    While the state is the same, admission would end at the same request again; the check costs no look-up in the tree.
    """

    req: Req
    state: tuple[int, int, int]  # requests that have arrived, requests that have ended, insertions into the tree
    covered: int  # tokens of its prefix that other requests keep locked: they take no room

    def still(self, state: tuple[int, int, int], room: int, outstanding: int) -> bool:
        """True when admission need not look. `room`: slots that can be had and are not promised; `outstanding`: those
        that the request would ask for with no prefix. A lower ratio makes room and asks for less.
        """
        return state == self.state and outstanding - self.covered > room

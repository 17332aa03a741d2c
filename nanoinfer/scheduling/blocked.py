"""Blocked: an optimisation that you can skip on a first reading. The scheduler decides the same without it."""

from typing import NamedTuple

from nanoinfer.requests.req import Req


class Blocked(NamedTuple):
    """The first request that did not fit, and the engine's state at that time.

    As long as the state is the same, admission would end at the same request again. Checking that needs no look-up in
    the tree.
    """

    req: Req
    state: tuple[int, int, int]  # requests that have arrived, requests that have ended, insertions into the tree
    covered: int  # tokens of its prefix that other requests have locked anyway, so they take no extra room

    def still(self, state: tuple[int, int, int], room: int, outstanding: int) -> bool:
        """True when the request still cannot fit. `room`: slots that can be allocated and are not promised.
        `outstanding`: slots that the request would need without its prefix. A lower ratio gives more room and needs less.
        """
        return state == self.state and outstanding - self.covered > room

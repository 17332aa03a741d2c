"""OpenRequests: the requests that have not ended, and the outputs that are still to be delivered to callers."""

from collections.abc import Iterable, Sequence
from weakref import WeakSet

from nanoinfer.requests.outputs import RequestOutput
from nanoinfer.requests.req import Req
from nanoinfer.requests.request_group import RequestGroup, Update, made


class OpenRequests:
    """Unfinished requests by id (`groups`), their deadlines, undelivered outputs, and counts of how requests ended."""

    def __init__(self) -> None:
        self.groups: dict[int, RequestGroup] = {}
        self.ends = dict.fromkeys(("finished", "aborted", "timed_out", "failed"), 0)
        self._expected: WeakSet[RequestGroup] = WeakSet()
        self._deadlines: dict[int, float] = {}  # of requests that have one, in seconds of the engine's clock
        self._undelivered: dict[int, Update] = {}  # a group: its output when it is delivered

    def __bool__(self) -> bool:
        """True while there are outputs to deliver."""
        return bool(self._undelivered)

    def ids(self) -> set[int]:
        """The ids of requests that have not ended, or that have an undelivered output. May be called from any thread."""
        return {*list(self.groups), *list(self._undelivered)}

    def expect(self, group: RequestGroup) -> RequestGroup:
        """Note that this request may be added, once; returns it."""
        self._expected.add(group)
        return group

    def check_expected(self, groups: Sequence[RequestGroup]) -> None:
        """ValueError for one that is not expected: it was added before, or it belongs to another engine."""
        for i, group in enumerate(groups):
            if group not in self._expected or group in groups[:i]:
                raise ValueError(
                    f"request_id={group.request_id}: was already submitted, or was prepared by another engine"
                )

    def add(self, groups: Sequence[RequestGroup], now: float) -> None:
        """Add requests that arrive at time `now`, in seconds, and are expected."""
        for group in groups:
            self._expected.discard(group)
            self.groups[group.request_id] = group
            if group.timeout_s is not None:
                self._deadlines[group.request_id] = now + group.timeout_s
            for req in group.reqs:
                req.arrival_time = now

    def overdue(self, now: float) -> list[int]:
        """The ids of requests whose time is up at `now`, earliest first. Each is returned only once."""
        due = sorted((end, request_id) for request_id, end in self._deadlines.items() if end <= now)
        for _, request_id in due:
            del self._deadlines[request_id]
        return [request_id for _, request_id in due]

    def next_deadline(self) -> float | None:
        """The earliest deadline; None when there is none."""
        return min(self._deadlines.values(), default=None)

    def remove(self, groups: Iterable[RequestGroup], counted_as: str) -> None:
        """Remove requests that have ended, and count them: `counted_as` is a key of `ends`."""
        for group in groups:
            del self.groups[group.request_id]
            self._deadlines.pop(group.request_id, None)
            self.ends[counted_as] += 1

    def collect(self, reqs: Sequence[Req]) -> None:
        """Hold an output for each request of `reqs`, which all have a new token, and remove those that have finished.

        The output itself is made on delivery, so that several passes of one step make it only once.
        """
        for req in reqs:
            group = self.groups.get(req.request_id)
            if group is None:
                continue  # removed below: another completion of it has ended in the same pass
            self._undelivered[req.request_id] = group
            if req.finish_reason is not None and group.finished:
                self.remove(
                    [group], "finished" if all(completion.error is None for completion in group.reqs) else "failed"
                )

    def hold(self, outputs: Sequence[RequestOutput]) -> None:
        """Keep outputs for the next `deliver`: only the latest one of each request."""
        self._undelivered.update((output.request_id, output) for output in outputs)

    def deliver(self) -> list[RequestOutput]:
        """Hand out everything that is held."""
        return [made(held) for held in self.deliver_updates()]

    def deliver_updates(self) -> list[Update]:
        """As `deliver`, with a group where the output is not made yet: whoever wants it makes it before the next pass."""
        updates, self._undelivered = list(self._undelivered.values()), {}
        return updates

    def withdraw(self, request_id: int) -> list[RequestOutput]:
        """Hand out the output held for one request, if there is one."""
        held = self._undelivered.pop(request_id, None)
        return [] if held is None else [made(held)]

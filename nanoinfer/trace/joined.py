"""Two traces of one engine as one, where the second begins at the moment at which the first ends."""

from dataclasses import replace
from typing import Any

from nanoinfer.trace.data import TraceData
from nanoinfer.trace.events import START, TraceEvent, TraceRequest
from nanoinfer.trace.state import ENDED


def joined(first: TraceData, second: TraceData, later_s: float) -> TraceData:
    """A trace with the steps of both. `later_s`: by how many seconds `second` began after `first`.

    ValueError if the second does not begin with what is in the pool, the tree and the queue at the end of the first.
    """
    renumber = _Renumber(first, second, later_s)
    whole = TraceData(first.engine, texts={**first.texts, **second.texts}, pieces=dict(first.pieces))
    whole.requests = [*first.requests, *renumber.arrived_later]
    for event in (*first.events, *map(renumber.event, second.events[1:])):
        whole.add_event(event)
    for index, pieces in second.pieces.items():
        known = whole.requests[renumber.requests[index]]
        before = 0 if known in renumber.arrived_later else len(known.prompt)
        whole.pieces.setdefault(renumber.requests[index], {}).update(
            {at: text for at, text in pieces.items() if at >= before}
        )
    return whole


class _Renumber:
    """Gives the requests and nodes of the second trace the numbers that they have in the first, or new ones."""

    def __init__(self, first: TraceData, second: TraceData, later_s: float):
        end, start = first.state(), second.events[0]
        self._steps, self._later_s = first.num_steps, later_s
        used = [
            rest[0 if what == "add" else 1]
            for event in first.events
            for what, *rest in event.tree
            if what in ("add", "split")
        ]
        self._new_nodes = max(used, default=0)  # what is added to the number of a node that is new
        at_slot = {node.value[0]: number for number, node in end.nodes.items() if number}  # a slot has one owner
        self._nodes = {0: 0}
        opened = {
            (req.request.request_id, req.request.completion): index
            for index, req in end.requests.items()
            if req.status != ENDED
        }
        self.requests: dict[int, int] = {}
        self.arrived_later: list[TraceRequest] = []
        try:
            if start.mode != START:
                raise KeyError(start.mode)
            for _, number, _, _, runs, *_ in start.tree:
                self._nodes[number] = at_slot.pop(runs[0])
            for index in start.arrived:
                request = second.requests[index]
                self.requests[index] = opened.pop((request.request_id, request.completion))
        except KeyError as error:
            raise ValueError(f"second: does not begin where the first ends: {error} is not there") from error
        if at_slot or opened:
            raise ValueError(f"second: does not begin where the first ends: it lacks {[*at_slot, *opened][0]}")
        for index, request in enumerate(second.requests):
            if index not in self.requests:
                self.requests[index] = len(first.requests) + len(self.arrived_later)
                self.arrived_later.append(replace(request, time=request.time + later_s))

    def event(self, event: TraceEvent) -> TraceEvent:
        """The same event in the numbers of the whole trace."""
        requests, tree = self.requests, [self._operation(*operation) for operation in event.tree]
        return replace(
            event,
            step=event.step + self._steps,
            time=event.time + self._later_s,
            tree=tree,
            nodes=[each._replace(node=self._nodes[each.node]) for each in event.nodes],
            fetched=[each._replace(request=requests[each.request]) for each in event.fetched],
            admitted=[
                each._replace(request=requests[each.request], node=self._nodes[each.node]) for each in event.admitted
            ],
            paths=[each._replace(request=requests[each.request], node=self._nodes[each.node]) for each in event.paths],
            batch=[each._replace(request=requests[each.request]) for each in event.batch],
            ended=[each._replace(request=requests[each.request]) for each in event.ended],
            arrived=[requests[index] for index in event.arrived],
            retracted=[requests[index] for index in event.retracted],
            paused=[requests[index] for index in event.paused],
            resumed=[requests[index] for index in event.resumed],
        )

    def _operation(self, what: str, number: int, *rest: Any) -> list[Any]:
        if what == "add":
            return [what, self._new(number), self._nodes[rest[0]], *rest[1:]]
        if what == "split":
            return [what, self._nodes[number], self._new(rest[0]), *rest[1:]]
        return [what, self._nodes[number], *rest]

    def _new(self, number: int) -> int:
        self._nodes[number] = self._new_nodes + number
        return self._nodes[number]


def copied(trace: TraceData) -> TraceData:
    """The same trace as it is now, which does not grow. The events that are packed in `trace` are packed in it, too."""
    if trace.writer is not None:
        trace.writer.settle()
    copy = TraceData(trace.engine, decode=trace._decode)
    copy.requests, copy._events, copy.num_steps = list(trace.requests), list(trace._events), trace.num_steps
    return copy

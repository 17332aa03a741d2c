"""RequestGroup: a request as its caller sees it, from which its outputs are made; and OpenRequests: those that have not
ended."""

from collections.abc import Iterable, Sequence

from nanoinfer.outputs import CompletionOutput, RequestOutput
from nanoinfer.requests.req import Req
from nanoinfer.requests.request import Prompt


class RequestGroup:
    """A request as its caller sees it: one prompt and `params.n` completions, one Req per completion."""

    def __init__(self, request_id: int, reqs: list[Req], timeout_s: float | None = None, prompt: Prompt | None = None):
        self.request_id, self.reqs, self.timeout_s = request_id, reqs, timeout_s
        self.expected_by: OpenRequests | None = None  # until it is added
        self._prompt = prompt if isinstance(prompt, str) else None
        self._prompt_ids = reqs[0].token_ids[: reqs[0].prompt_len]

    @property
    def finished(self) -> bool:
        return all(req.finished for req in self.reqs)

    def output(self) -> RequestOutput:
        """The request's current state."""
        reqs, arrival = self.reqs, self.reqs[0].arrival_time
        first_tokens = [req.first_token_time for req in reqs if req.first_token_time]
        ends = [req.finish_time for req in reqs if req.finish_reason is not None]
        errors = [req.error for req in reqs if req.error is not None]
        return RequestOutput(
            self.request_id,
            [_completion(i, req) for i, req in enumerate(reqs)],
            min(first_tokens) - arrival if first_tokens else None,
            max(ends) - arrival if len(ends) == len(reqs) else None,
            errors[0] if errors else None,
            self._prompt,
            self._prompt_ids,
            reqs[0].prompt_logprobs,
            reqs[0].prompt_top_logprobs,
        )


# What a step says of a request: its output or, while it goes on, only its group, of which an output can be made.
Update = RequestOutput | RequestGroup


def materialize(update: Update) -> RequestOutput:
    """The output, which is made now if it was not."""
    return update.output() if isinstance(update, RequestGroup) else update


def _completion(index: int, req: Req) -> CompletionOutput:
    entries = None if req.params.logprobs is None else req.output_logprobs
    counts = req.cached_tokens, req.drafted_tokens, req.accepted_tokens
    tokens = req.token_ids, req.prompt_len, req.num_tokens
    return CompletionOutput(index, req.text, req.finish_reason, req.stop_reason, *counts, *tokens, entries, req.fetched)


class OpenRequests:
    """Unfinished requests by id (`groups`), their deadlines, undelivered outputs, and counts of how requests ended."""

    def __init__(self) -> None:
        self.groups: dict[int, RequestGroup] = {}
        self.ends = dict.fromkeys(("finished", "aborted", "timed_out", "failed"), 0)
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
        group.expected_by = self
        return group

    def check_expected(self, groups: Sequence[RequestGroup]) -> None:
        """ValueError for one that is not expected: it was added before, or it belongs to another engine."""
        for i, group in enumerate(groups):
            if group.expected_by is not self or group in groups[:i]:
                raise ValueError(f"request_id={group.request_id}: was submitted before, or is another engine's")

    def add(self, groups: Sequence[RequestGroup], now: float) -> None:
        """Add requests that arrive at time `now`, in seconds, and are expected."""
        for group in groups:
            group.expected_by = None
            self.groups[group.request_id] = group
            if group.timeout_s is not None:
                self._deadlines[group.request_id] = now + group.timeout_s
            for req in group.reqs:
                req.arrival_time = now

    def overdue(self, now: float) -> list[int]:
        """The ids of requests whose time is up at `now`, earliest first; they are to be removed."""
        due = [request_id for request_id, end in self._deadlines.items() if end <= now]
        return sorted(due, key=self._deadlines.__getitem__)

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
                self.remove([group], "failed" if any(each.error is not None for each in group.reqs) else "finished")

    def hold(self, outputs: Sequence[RequestOutput]) -> None:
        """Keep outputs for the next delivery: only the latest one of each request."""
        self._undelivered.update((output.request_id, output) for output in outputs)

    def deliver_updates(self) -> list[Update]:
        """Hand out everything that is held: a group where the output is not made yet. Whoever wants it makes it before the
        next pass."""
        updates, self._undelivered = list(self._undelivered.values()), {}
        return updates

    def withdraw(self, request_id: int) -> list[RequestOutput]:
        """Hand out the output held for one request, if there is one."""
        held = self._undelivered.pop(request_id, None)
        return [] if held is None else [materialize(held)]

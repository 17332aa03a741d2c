"""RequestGroup: a request as its caller sees it, from which its outputs are made."""

from nanoinfer.requests.outputs import CompletionOutput, RequestOutput
from nanoinfer.requests.req import Req
from nanoinfer.requests.request import Prompt


class RequestGroup:
    """A request as its caller sees it: one prompt and `params.n` completions, one Req per completion."""

    def __init__(self, request_id: int, reqs: list[Req], timeout_s: float | None = None, prompt: Prompt | None = None):
        self.request_id, self.reqs, self.timeout_s = request_id, reqs, timeout_s
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


def made(update: Update) -> RequestOutput:
    """The output, which is made now if it was not."""
    return update.output() if isinstance(update, RequestGroup) else update


def _completion(index: int, req: Req) -> CompletionOutput:
    entries = None if req.params.logprobs is None else req.output_logprobs
    counts = req.cached_tokens, req.drafted_tokens, req.accepted_tokens
    tokens = req.token_ids, req.prompt_len, req.num_tokens
    return CompletionOutput(index, req.text, req.finish_reason, req.stop_reason, *counts, *tokens, entries, req.fetched)

"""A drafter that knows what each request will get, and spoils it where a test says so."""

from collections.abc import Callable, Sequence

from nanoinfer.requests.req import Req

Key = tuple[tuple[int, ...], int | None]
# of a request and the most drafts it may get: how many drafts to propose, and how many of them are right
Plan = Callable[[Req, int], tuple[int, int]]


def key_of(req: Req) -> Key:
    """What a request's tokens depend on in these tests: its prompt and, if they are drawn, its seed."""
    return tuple(req.token_ids[: req.prompt_len].tolist()), None if req.params.greedy else req.seed


class Foreknowing:
    """Proposes as much as it may, or by `plan`; `known` holds the tokens of each request. Wrong drafts are the right ones
    plus one."""

    def __init__(self, vocab_size: int):
        self.vocab_size, self.known = vocab_size, dict[Key, list[int]]()
        self.plan: Plan = lambda req, most: (most, most)

    def remember(self, reqs: Sequence[Req]) -> None:
        """Keep the tokens of requests that have ended, in an engine without drafts."""
        for req in reqs:
            self.known[key_of(req)] = req.output_ids

    def propose(self, reqs: Sequence[Req], most: Sequence[int]) -> list[list[int]]:
        return [self._drafts(req, count) for req, count in zip(reqs, most, strict=True)]

    def _drafts(self, req: Req, most: int) -> list[int]:
        count, right = self.plan(req, most)
        coming = self.known[key_of(req)][req.num_output_tokens :][:count]
        coming += [0] * (count - len(coming))  # behind the end of the output
        return [token if i < right else (token + 1) % self.vocab_size for i, token in enumerate(coming)]

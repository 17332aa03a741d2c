"""GrammarDrafter: tokens that a request's grammar forces. No others are allowed, so they are always accepted."""

from collections.abc import Sequence

from nanoinfer.requests.req import Req


class GrammarDrafter:
    """Where a grammar allows one continuation only, such as the next key of a JSON object, it is the draft."""

    def propose(self, reqs: Sequence[Req], most: Sequence[int]) -> list[list[int]]:
        return [
            [] if req.matcher is None else req.matcher.forced_tokens()[:count]
            for req, count in zip(reqs, most, strict=True)
        ]

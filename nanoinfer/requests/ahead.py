"""Ahead: a request as it will be if its next drafts are accepted."""

from typing import Any

from nanoinfer.requests.req import Req


class Ahead:
    """A view of `req` with `drafts` more tokens: those that are in its `token_ids` behind its own. Everything else is the
    request's, so that what chooses a token (random number, penalties, minimum length) is what it would be then."""

    __slots__ = ("_req", "drafts", "num_output_tokens", "num_tokens")

    def __init__(self, req: Req, drafts: int):
        self._req, self.drafts = req, drafts
        self.num_tokens = req.num_tokens + drafts
        self.num_output_tokens = req.num_output_tokens + drafts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._req, name)

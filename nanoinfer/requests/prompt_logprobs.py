"""PromptLogprobs: the log-probabilities of one prompt's tokens, collected chunk by chunk."""

from collections.abc import Sequence


class PromptLogprobs:
    """One entry per prompt token: its log-probability given the tokens before it. The first token has none: None."""

    def __init__(self, prompt_len: int):
        self._prompt_len = prompt_len
        self._known: list[float | None] = []
        self._likeliest: list[dict[int, float] | None] = []

    @property
    def values(self) -> list[float | None] | None:
        """All entries; None until the last one is known."""
        return self._known if len(self._known) == self._prompt_len else None

    @property
    def likeliest(self) -> list[dict[int, float] | None] | None:
        """At each token's position, the likeliest tokens and their log-probabilities; None at the first. None until all are
        known, or if none were added."""
        return self._likeliest if len(self._likeliest) == self._prompt_len else None

    @property
    def reusable_len(self) -> int:
        """How many prompt tokens a prefix match may cover, because their logits are no longer needed."""
        return max(len(self._known) - 1, 0)

    def add(
        self,
        start: int,
        logprobs: Sequence[float],
        next_logprob: float | None,
        likeliest: Sequence[dict[int, float]] | None = None,
    ) -> None:
        """Add the results of a pass over the prompt's tokens from position `start` on.

        `logprobs`: one per token of the pass. The first is ignored: only the pass before it could compute it.
        `next_logprob`: that of the token after the pass's last; None at the prompt's end. `likeliest`: what to keep beside
        them, for each of these tokens but the first; None if nothing is. Known entries stay as they are, so a retracted
        request may compute them again.
        """
        known = len(self._known) - start
        self._known += [None, *logprobs[1:], *([] if next_logprob is None else [next_logprob])][known:]
        if likeliest is not None:
            self._likeliest += [None, *likeliest][known:]

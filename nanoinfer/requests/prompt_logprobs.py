"""PromptLogprobs: the log-probabilities of one prompt's tokens, gathered chunk by chunk."""

from collections.abc import Sequence


class PromptLogprobs:
    """One entry per prompt token: its log-probability under the tokens before it; None for the first, which has none."""

    def __init__(self, prompt_len: int):
        self._prompt_len = prompt_len
        self._known: list[float | None] = []

    @property
    def values(self) -> list[float | None] | None:
        """All entries; None until the last one is known."""
        return self._known if len(self._known) == self._prompt_len else None

    @property
    def reusable_len(self) -> int:
        """Prompt tokens that a prefix match may cover, because their logits are not needed any more."""
        return max(len(self._known) - 1, 0)

    def add(self, start: int, logprobs: Sequence[float], next_logprob: float | None) -> None:
        """Take what a pass over the prompt's tokens from position `start` on yields.

        `logprobs`: one per token of the pass; the first one's is not known to the pass, only to the one before.
        `next_logprob`: of the token after the last, None at the prompt's end. Entries that are known stay as they are, so
        that a retracted request may compute them again.
        """
        values = [None, *logprobs[1:], *([] if next_logprob is None else [next_logprob])]
        self._known += values[len(self._known) - start :]

"""PrefillBudget: limits how many prompt tokens are computed before running requests decode again."""


class PrefillBudget:
    """How many prompt tokens EXTEND passes may compute before the next DECODE pass: `chunked_prefill_size`; None: no limit.

    EXTEND passes spend the budget. A DECODE pass refills it, and it is also full when no request is decoding. So between
    two tokens of a running request, at most `chunked_prefill_size` prompt tokens are computed, in one pass or in several.
    A prompt that needs more than what is left is computed in chunks: the first chunk ends where the budget does, and the
    next one comes after the refill (Sarathi's chunked prefill, Agrawal et al., 2023, without mixing both kinds of pass).

    A chunk ends on a page boundary. The tree takes whole pages, so everything computed so far goes into it: other
    requests can share it at once, and after a retraction it is found again unless it was evicted.
    """

    def __init__(self, chunked_prefill_size: int | None, page_size: int):
        self._size, self._page_size = chunked_prefill_size, page_size
        self._left = chunked_prefill_size

    def refill(self) -> None:
        """Fill the budget up, because a DECODE pass was made or no request is decoding."""
        self._left = self._size

    def chunk_end(self, start: int, end: int) -> int:
        """Where a chunk that begins at token `start` ends: at `end` if the budget allows, else at the last page boundary
        within the budget. If that is `start` itself, there is nothing to compute now. `start` is on a page boundary.
        """
        if self._left is None or end - start <= self._left:
            return end
        return start + self._left - self._left % self._page_size

    def spend(self, num_tokens: int) -> None:
        """Use up `num_tokens` of the budget: no more than `chunk_end` allowed."""
        if self._left is not None:
            self._left -= num_tokens

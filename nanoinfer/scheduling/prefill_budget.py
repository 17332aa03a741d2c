"""PrefillBudget: how much of a prompt is computed before running requests decode again."""


class PrefillBudget:
    """Prompt tokens that EXTEND passes may compute until the next DECODE pass: `chunked_prefill_size`, or no limit
    (None).

    EXTEND passes spend it; a DECODE pass refills it, and so does a time without requests to decode. So between two
    tokens of a running request at most `chunked_prefill_size` prompt tokens are computed, in one pass or in several. A
    prompt that does not fit into what is left is computed chunk by chunk: this chunk ends there, and the next one
    follows the refill (Sarathi's chunked prefill, Agrawal et al., 2023, without mixing the two kinds of pass).

    A chunk ends on a page boundary. The tree takes whole pages, so all that has been computed goes into it, is shared
    at once, and is found again after a retraction unless it was evicted.
    """

    def __init__(self, chunked_prefill_size: int | None, page_size: int):
        self._size, self._page_size = chunked_prefill_size, page_size
        self._left = chunked_prefill_size

    def refill(self) -> None:
        """A DECODE pass has been made, or no request decodes."""
        self._left = self._size

    def chunk_end(self, start: int, end: int) -> int:
        """Where the chunk of the tokens `start..end` ends: at `end`, at the last page boundary within the budget, or at
        `start`, which means not now. `start` is on a page boundary.
        """
        if self._left is None or end - start <= self._left:
            return end
        return start + self._left - self._left % self._page_size

    def spend(self, num_tokens: int) -> None:
        """Take what `chunk_end` allowed."""
        if self._left is not None:
            self._left -= num_tokens

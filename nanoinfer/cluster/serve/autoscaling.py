"""QueuedTokens: how many replicas there should be, by the tokens that wait at them."""

from math import ceil
from typing import Any


class QueuedTokens:
    """Serve's autoscaler calls it with what replicas have recorded (`Replica.record_autoscaling_stats`).

    Prompt tokens that wait are seconds that requests wait, whatever their number; requests are not, since one prompt may be
    as long as a hundred others. `per_replica`: so many queued tokens per replica are fine. There are at least as many
    replicas as would bring it down to that; one goes when the others would still be at half of it.
    """

    def __init__(self, per_replica: float):
        self._per_replica = per_replica

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """The number of replicas that there should be, and the policy's state, which is empty."""
        queued = sum((context.aggregated_metrics or {}).get("queued_tokens", {}).values())
        return self.wanted(queued, context.target_num_replicas), {}

    def wanted(self, queued_tokens: float, replicas: int) -> int:
        """The number for so many queued tokens, if there are so many `replicas` now. Serve keeps it in its limits."""
        enough = max(ceil(queued_tokens / self._per_replica), 1)
        if enough >= replicas:
            return enough
        calm = queued_tokens <= self._per_replica * (replicas - 1) / 2
        return max(replicas - 1, enough) if calm else replicas

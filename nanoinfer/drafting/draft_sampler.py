"""DraftSampler: the Sampler of a draft model, whose wrong logits are no reason to end a request."""

from collections.abc import Sequence

import torch

from nanoinfer.model.layers.logits_processor import Likeliest
from nanoinfer.requests.req import NO_TOKEN, Req
from nanoinfer.sampling.sampler import Sampler, chooses_by_itself, likeliest_of


class DraftSampler(Sampler):
    """Chooses drafts as a Sampler chooses tokens. Where logits hold NaN or infinity, the request gets NO_TOKEN and nothing
    is raised: a draft may be missing."""

    def sample(self, logits: torch.Tensor | Likeliest, reqs: Sequence[Req]) -> torch.Tensor:
        """As in Sampler. No logits processor gets to see logits that are not finite."""
        if isinstance(logits, Likeliest) or all(chooses_by_itself(req) for req in reqs):
            return super().sample(logits, reqs)
        finite = likeliest_of(logits).logits.isfinite()
        if finite.all():
            return super().sample(logits, reqs)
        rows = finite.nonzero()[:, 0].tolist()
        token_ids = torch.full((len(reqs),), NO_TOKEN)
        if rows:
            token_ids[rows] = super().sample(logits[rows], [reqs[row] for row in rows]).cpu()
        return token_ids

    def _checked(self, token_ids: torch.Tensor, numbers: torch.Tensor, reqs: Sequence[Req]) -> torch.Tensor:
        return token_ids.where(numbers.isfinite(), NO_TOKEN)

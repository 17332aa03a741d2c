"""A request that another engine has begun: its first output tokens are known, and this engine samples the rest.

What a request's next token depends on is all in its Req: tokens, seed, penalties, text, the state of its grammar. So the
known tokens are appended one by one, as if passes had sampled them, and then the Req looks like one that was retracted:
its first EXTEND computes prompt and known output together. Token `i` of the output takes the request's random number `i`
wherever it is sampled, so both engines together sample what one alone would have.
"""

from collections.abc import Sequence

import numpy as np

from nanoinfer.errors import InvalidRequestError
from nanoinfer.requests.req import Req
from nanoinfer.requests.request import Request


def check_output_ids(request: Request, vocab_size: int) -> None:
    """InvalidRequestError unless `request.output_ids` are token ids that leave something to sample, of one completion."""
    ids, params, name = request.output_ids, request.params, request.name
    if not len(ids):
        return
    if not all(isinstance(token, int | np.integer) and 0 <= token < vocab_size for token in ids):
        raise InvalidRequestError(f"{name}: output_ids: must be token ids in 0..{vocab_size - 1}")
    if len(ids) >= params.max_new_tokens:
        raise InvalidRequestError(
            f"{name}: output_ids: {len(ids)} tokens: must be fewer than max_new_tokens={params.max_new_tokens}"
        )
    if params.n > 1:
        raise InvalidRequestError(f"{name}: output_ids: n={params.n}: must be 1, for they are of one completion")
    if params.prompt_logprobs:
        raise InvalidRequestError(f"{name}: output_ids: prompt_logprobs must be False: they came with the first token")


def replay(req: Req, output_ids: Sequence[int], name: str = "prompt") -> None:
    """Append `output_ids` to a new `req`. Its log-probabilities of these tokens are empty, and its pieces begin behind
    them. InvalidRequestError when one of them, or the text that they make, ends the request."""
    for i, token in enumerate(output_ids):
        req.append(int(token))
        if req.finished:
            raise InvalidRequestError(f"{name}: output_ids: the request ends with token {i} of {len(output_ids)}")
        if req.params.logprobs is not None:
            req.output_logprobs.append({})
    req.given_chars, req.given_tokens = len(req.text), req.num_output_tokens

"""How well a model predicts texts, and what other weights cost it: `compared(scores(a, texts), scores(b, texts))`."""

from collections.abc import Sequence

import numpy as np

from nanoinfer.llm import LLM
from nanoinfer.sampling_params import SamplingParams

HEAD = f"{'':26}{'more nats per token':>18}{'same token':>12}"
Scores = tuple[np.ndarray, np.ndarray]


def scores(judge: LLM, texts: Sequence[tuple[int, list[int]]]) -> Scores:
    """Of each token of the texts, (first scored position, token ids): its log-probability, and the likeliest one there."""
    params = SamplingParams(max_new_tokens=1, temperature=0, prompt_logprobs=True, prompt_top_logprobs=1)
    outputs = judge.generate([ids for _, ids in texts], params, use_tqdm=False)
    logprobs, likeliest = list[float | None](), list[int]()
    for (start, _), output in zip(texts, outputs, strict=True):
        assert output.prompt_logprobs is not None
        assert output.prompt_top_logprobs is not None
        logprobs += output.prompt_logprobs[start:]
        likeliest += [next(iter(top or {})) for top in output.prompt_top_logprobs[start:]]
    return np.array(logprobs, float), np.array(likeliest)


def compared(right: Scores, got: Scores) -> str:
    """One line under HEAD: the change, twice its standard error, and how many likeliest tokens are the same."""
    change = right[0] - got[0]
    margin = 2 * change.std() / len(change) ** 0.5
    return f"{change.mean():+9.4f} ± {margin:.4f}{100 * (right[1] == got[1]).mean():10.1f} %"

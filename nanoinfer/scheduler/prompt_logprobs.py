"""gather_prompt_logprobs: after an EXTEND, the log-probabilities of prompt tokens for the requests that want them."""

from nanoinfer.model.layers.logits_processor import LogitsOutput, likeliest_of
from nanoinfer.scheduler.batch import Batch


def gather_prompt_logprobs(batch: Batch, output: LogitsOutput) -> None:
    """Hand the log-probabilities of the prompt tokens in this pass, and of the likeliest tokens at their positions, to the
    requests that want them. The logits of a request's last token predict the first token of its next chunk."""
    assert output.prompt_logprobs is not None
    assert batch.prefix_lens is not None
    values = output.prompt_logprobs.float().cpu().split(batch.new_lens.tolist())
    for i, (req, start) in enumerate(zip(batch.reqs, batch.prefix_lens.tolist(), strict=True)):
        if req.wants_prompt_logprobs:
            likeliest = None if output.prompt_likeliest is None else output.prompt_likeliest[i]
            next_logprob = None
            if req.chunk_end < req.prompt_len:
                table = output.logits[i].float().log_softmax(-1)
                next_logprob = float(table[int(req.token_ids[req.chunk_end])])
                if likeliest is not None:
                    likeliest = likeliest + likeliest_of(table[None], req.params.prompt_top_logprobs)
            req.add_prompt_logprobs(start, values[i].tolist(), next_logprob, likeliest)

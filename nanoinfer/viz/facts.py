"""Facts: an InputMetadata as plain lists, with names and texts for what it is about; and how to get those of an Engine."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from nanoinfer.engine.engine import Engine
from nanoinfer.model.input_metadata import InputMetadata
from nanoinfer.requests.req import Req
from nanoinfer.requests.tokenizer import Tokenizer, token_text
from nanoinfer.scheduler.batch import Batch
from nanoinfer.viz.palette import Style, owner_style
from nanoinfer.viz.words import visible

MOST_REQUESTS = 8


def last_input_metadata(engine: Engine) -> InputMetadata:
    """The InputMetadata of the engine's last pass, made again from `engine.last_batch`. ValueError when there is none.

    Made from the rows as they are now: where the tree had a token's K/V already, the row names the tree's slot by now.
    """
    return InputMetadata.of(engine.model_runner, _last_batch(engine))


def last_tokens(engine: Engine) -> list[str]:
    """Texts of all tokens of the engine's last pass, request after request: `tokens=` of the pictures of its metadata.

    Token ids where the model has no tokenizer files. ValueError when there was no pass.
    """
    batch, tokenizer = _last_batch(engine), engine.builder.tokenizer
    token_ids, new = [], batch.input_ids.tolist()  # drafts are not in the requests any more
    starts = batch.seq_lens - 1 if batch.prefix_lens is None else batch.prefix_lens
    for req, start, end in zip(batch.reqs, starts.tolist(), batch.seq_lens.tolist(), strict=True):
        token_ids.append(req.token_ids[:start].tolist() + new[: end - start])
        new = new[end - start :]
    return [
        str(token_id) if tokenizer is None else token_text(tokenizer, [token_id])
        for ids in token_ids
        for token_id in ids
    ]


def last_labels(engine: Engine) -> list[str]:
    """The engine's names of the requests in its last pass, `request 3`: `labels=` of the pictures of its metadata."""
    return request_labels(engine, _last_batch(engine).reqs)


def request_labels(engine: Engine, reqs: Sequence[Req]) -> list[str]:
    """`request 3`; the completions of one request are `request 3`, `request 3 (2)`, ... as long as any of them runs, and
    counted from the first of `reqs` afterwards."""
    seen: dict[int, int] = {}
    labels = []
    for req in reqs:
        seen[req.request_id] = copy = seen.get(req.request_id, 0) + 1
        group = engine.open_requests.groups.get(req.request_id)
        copy = copy if group is None else group.reqs.index(req) + 1
        labels.append(f"request {req.request_id}" + (f" ({copy})" if copy > 1 else ""))
    return labels


def decoder_of(tokenizer: Tokenizer | None) -> Callable[[list[int]], str] | None:
    """Token ids → text with the special tokens in it, where the tokenizer knows of any: they have slots, too."""
    if tokenizer is None:
        return None
    hf_tokenizer = getattr(tokenizer, "hf_tokenizer", None)
    if hf_tokenizer is None:
        return tokenizer.decode
    return partial(hf_tokenizer.decode, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def _last_batch(engine: Engine) -> Batch:
    if engine.last_batch is None:
        raise ValueError("engine.last_batch=None: the last step made no pass; take a step with something to do")
    return engine.last_batch


class Facts:
    """The fields as plain lists and numbers. Request i: the one at place i of the batch; the first 8 are drawn."""

    def __init__(
        self, metadata: InputMetadata, tokens: Sequence[str] | None = None, labels: Sequence[str] | None = None
    ):
        self.of = metadata
        self.batch_size, self.shown = metadata.batch_size, min(metadata.batch_size, MOST_REQUESTS)
        self.seq_lens: list[int] = metadata.seq_lens.tolist()
        self.kv_indptr: list[int] = metadata.kv_indptr.tolist()
        self.qo_indptr: list[int] = metadata.qo_indptr.tolist()
        self.kv_indices: list[int] = metadata.kv_indices.tolist()
        self.out_cache_loc: list[int] = metadata.out_cache_loc.tolist()
        self.positions: list[int] = metadata.positions.tolist()
        self.new_lens: list[int] = np.diff(self.qo_indptr).tolist()
        self.prefixes = [seq - new for seq, new in zip(self.seq_lens, self.new_lens, strict=True)]
        self.num_new = self.qo_indptr[-1]
        for name, texts, number in (("tokens", tokens, metadata.total_num_tokens), ("labels", labels, self.batch_size)):
            if texts is not None and len(texts) != number:
                raise ValueError(f"{name}: {len(texts)} texts; must be {number}")
        self.tokens = None if tokens is None else [visible(str(text)) for text in tokens]
        self.labels = [f"request {i}" for i in range(self.batch_size)] if labels is None else list(map(str, labels))

    def token(self, request: int, position: int) -> str:
        """The text of one token, where texts are given."""
        return "" if self.tokens is None else self.tokens[self.kv_indptr[request] + position]

    def style(self, request: int) -> Style:
        return owner_style(self.labels[request], request)

"""SplitRunner: the ModelRunner of rank 0. Each of its passes is made by all ranks."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from nanoinfer.config import EngineConfig
from nanoinfer.model.attention import AttentionBackend
from nanoinfer.model.input_metadata import InputMetadata
from nanoinfer.model.layers.logits_processor import LogitsOutput
from nanoinfer.model.loader import LoadedModel
from nanoinfer.model.model_runner import ModelRunner
from nanoinfer.model.parallel.load import ModelShare
from nanoinfer.model.parallel.messages import Message, SentAdapters, pass_message


class SplitRunner(ModelRunner):
    """Runs rank 0's share of `model`, and tells the other ranks every pass before it begins.

    They get the pass's arrays as they are, `kv_indices` included, so they need no rows of `req_to_token`, no tree and no
    free list. Whatever the engine does with slots is known to rank 0 alone.
    """

    def __init__(
        self,
        model: LoadedModel,
        config: EngineConfig,
        req_to_token_pool: ReqToTokenPool,
        token_to_kv_pool: TokenToKVPool,
        attention_backend: AttentionBackend,
    ):
        assert isinstance(model.split, ModelShare)
        assert model.split.ranks is not None
        self._ranks = ranks = model.split.ranks
        super().__init__(model.model, req_to_token_pool, token_to_kv_pool, attention_backend)
        self.tp_size = ranks.size
        self.unrecordable = f"the model is split over {ranks.size} processes"
        self._sent = SentAdapters()
        names = ("max_total_tokens", "page_size", "kv_cache_dtype", "attention_backend", "max_adapters_on_device")
        with ranks.doing(Message("serve", {name: getattr(config, name) for name in names})):
            ranks.communicator.barrier()

    @property
    def broken(self) -> BaseException | None:
        """As in ModelRunner: a rank has ended, or a pass was not finished by all."""
        return self._ranks.why_broken()

    def run(self, input_ids: torch.Tensor, metadata: InputMetadata) -> LogitsOutput:
        """As in ModelRunner, by all ranks, which have to leave it together: if one does not, the model is `broken`, also
        when Ctrl-C interrupts a manual step. RankError if a rank has ended."""
        for message in self._sent.news(self.adapters):
            with self._ranks.doing(message):
                pass
        with self._ranks.doing(pass_message(input_ids, metadata)), on_threads(self._ranks.threads):
            return super().run(input_ids, metadata)

    def close(self) -> None:
        """As in ModelRunner: ends the other ranks."""
        self._ranks.close()


@contextmanager
def on_threads(count: int | None) -> Iterator[None]:
    """Compute on `count` processors in this block, because the other ranks need theirs."""
    before = torch.get_num_threads()
    if count is None or count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)

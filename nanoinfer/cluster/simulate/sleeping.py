"""SleepingRunner: a model that only takes its time, behind a real engine: to try out schedulers and routers for real."""

import time

import torch

from nanoinfer.cluster.costs import PassCosts, pass_of
from nanoinfer.cluster.simulate.replica import make_pools
from nanoinfer.cluster.simulate.sessions import VOCAB_SIZE
from nanoinfer.config import EngineConfig
from nanoinfer.engine.engine import Engine
from nanoinfer.model.attention import TorchNativeBackend
from nanoinfer.model.forward_batch import ForwardBatch, ForwardMode
from nanoinfer.model.input_metadata import InputMetadata
from nanoinfer.model.layers.logits_processor import Likeliest, LogitsOutput
from nanoinfer.model.model_runner import ModelRunner
from nanoinfer.scheduler.batch import Batch


class SleepingRunner(ModelRunner):
    """Runs no model. A pass takes what `costs` says, asleep. After token t comes t + 1."""

    def __init__(self, config: EngineConfig, costs: PassCosts, vocab_size: int = VOCAB_SIZE):
        super().__init__(_no_model, *make_pools(config), TorchNativeBackend())
        self.costs, self.vocab_size = costs, vocab_size

    def forward_batch(self, batch: ForwardBatch) -> LogitsOutput:
        """Sleep; return the next token of each request that gets one. NotImplementedError for what needs logits."""
        if batch.wants_prompt_logprobs or batch.forward_mode is ForwardMode.VERIFY:
            raise NotImplementedError("a sleeping model has neither log-probabilities nor drafts to check")
        time.sleep(self.costs.seconds(pass_of(batch)))
        new = torch.ones_like(batch.seq_lens) if batch.prefix_lens is None else batch.seq_lens - batch.prefix_lens
        ends = new.cumsum(0) - 1
        if isinstance(batch, Batch):
            ends = ends[: len(batch.sampled_reqs)]  # none for a prompt that goes on in the next pass
        newest = batch.input_ids[ends]
        likeliest = Likeliest((newest + 1) % self.vocab_size, torch.zeros(len(ends)))
        return LogitsOutput(likeliest.logits, likeliest=likeliest)


def sleeping_engine(config: EngineConfig, costs: PassCosts, vocab_size: int = VOCAB_SIZE) -> Engine:
    """A real engine whose model sleeps. Its requests must be greedy."""
    return Engine(SleepingRunner(config, costs, vocab_size), config, vocab_size)


def _no_model(input_ids: torch.Tensor, positions: torch.Tensor, input_metadata: InputMetadata) -> LogitsOutput:
    raise RuntimeError("a sleeping model computes nothing")

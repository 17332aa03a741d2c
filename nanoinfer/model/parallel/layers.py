"""The layers of a split model that work together with those of the other ranks.

Column-split layers (q, k, v, gate, up) are ordinary ones, with fewer outputs. So are attention, which has fewer heads, and
norms, which are whole. What is left:

    VocabEmbedding   a rank has the rows of some tokens: zeros for the others, then all-reduce
    RowLinear        a rank has some inputs: a part of each sum, then all-reduce
    GatheredLinear   all ranks gather the inputs; a rank has some outputs, and all gather these
    SplitHead        a rank has the logits of some tokens: rank 0 gathers them
"""

import ctypes
from contextlib import suppress
from typing import Any

import torch

from nanoinfer.errors import UnsupportedModelError
from nanoinfer.model.adapter_rows import AdapterRows
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.kernels import Kernels
from nanoinfer.model.layers.linear import Embedding, FusedLinear, Linear, LMHead
from nanoinfer.model.parallel.communicator import Communicator
from nanoinfer.model.parallel.shard import input_widths, shard_specs_of
from nanoinfer.model.split import ShardSpec


def give_back() -> None:
    """Have the C library keep nothing of what has been freed. Without glibc, nothing happens.

    While weights are packed, layer by layer, the old ones leave holes that are too small for the next layer. Together they
    would come to a quarter of a rank's share.
    """
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


class VocabEmbedding(Embedding):
    """The rows of the tokens `shard_spec.ranges[0]` of a table with `shard_spec.total` rows."""

    def __init__(
        self, shard_spec: ShardSpec, size: int, dtype: torch.dtype, device: torch.device, communicator: Communicator
    ):
        super().__init__(shard_spec.size, size, dtype, device)
        self.shard_specs, self._communicator = {"": shard_spec}, communicator
        self._first, self._num_tokens = shard_spec.ranges[0][0], shard_spec.total

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """As in Embedding."""
        if input_ids.device.type == "cpu" and not ((input_ids >= 0) & (input_ids < self._num_tokens)).all():
            raise IndexError(f"input_ids: must be in 0..{self._num_tokens - 1}")
        own = input_ids - self._first
        missing = (own < 0) | (own >= len(self.weight))
        x = super().forward(own.masked_fill(missing, 0)).masked_fill(missing[:, None], 0)
        return self._communicator.all_reduce(x)


class RowLinear(Linear):
    """`x @ weight.T + bias`, of which each rank has the inputs of `shard_spec`.

    The bias and what adapters add come to the sum once: all ranks have the whole bias, and an adapter's A is cut like `x`.
    """

    def __init__(
        self,
        shard_spec: ShardSpec,
        out_features: int,
        bias: bool,
        dtype: torch.dtype,
        device: torch.device,
        communicator: Communicator,
    ):
        super().__init__(shard_spec.size, out_features, bias, dtype, device)
        self.shard_specs, self._communicator = {"": shard_spec}, communicator

    def pack(self, kernels: Kernels, quantization: str | None, name: str) -> None:
        """As in Linear."""
        bias, self.bias = self.bias, None  # a part of a sum has no bias
        super().pack(kernels, quantization, name)
        self.bias = bias
        give_back()

    def forward(self, x: torch.Tensor, adapters: AdapterRows | None = None) -> torch.Tensor:
        """This rank's part of the inputs, [T, its inputs] → [T, out_features], the same in all ranks."""
        y = self._communicator.all_reduce(super().forward(x, adapters))
        return y if self.bias is None else y + self.bias


class GatheredLinear(Linear):
    """`x @ weight.T + bias`, of which each rank has the outputs of `shard_spec`, and computes `widths[rank]` of the inputs.

    For quantized weights. What one process rounds together, such as a group of activations, may be split over ranks: so
    every rank gets all of `x` first. Then each output has the bits of a single process.
    """

    def __init__(
        self,
        shard_spec: ShardSpec,
        widths: list[int],
        bias: bool,
        dtype: torch.dtype,
        device: torch.device,
        communicator: Communicator,
    ):
        super().__init__(sum(widths), shard_spec.size, bias, dtype, device)
        self.shard_specs, self._communicator = {"": shard_spec}, communicator
        self._widths, self._parts = widths, communicator.shard.parts(shard_spec.total)

    def pack(self, kernels: Kernels, quantization: str | None, name: str) -> None:
        """As in Linear."""
        super().pack(kernels, quantization, name)
        give_back()

    def forward(self, x: torch.Tensor, adapters: AdapterRows | None = None) -> torch.Tensor:
        """This rank's part of the inputs, [T, widths[rank]] → all outputs, the same in all ranks."""
        y = super().forward(self._communicator.all_gather_columns(x, self._widths), adapters)
        return self._communicator.all_gather_columns(y, self._parts)


class SplitHead(LMHead):
    """The logits of the tokens of `shard_spec`. What is done to logits is done to each by itself, so it can be done before
    they are gathered."""

    def __init__(
        self,
        shard_spec: ShardSpec,
        config: ModelConfig,
        dtype: torch.dtype,
        device: torch.device,
        communicator: Communicator,
    ):
        super().__init__(config, dtype, device, shard_spec.size)
        self.shard_specs, self._communicator = {"": shard_spec}, communicator
        self._widths = communicator.shard.parts(shard_spec.total)

    def likeliest(self, x: torch.Tensor) -> None:
        """None: a rank does not know the other ranks' logits."""

    def forward(self, x: torch.Tensor, adapters: AdapterRows | None = None) -> torch.Tensor:
        """`x` [k, hidden_size] → [k, V] in rank 0. In the others, whose result nobody reads, zeros that take no memory."""
        logits = super().forward(x, adapters)
        gathered = self._communicator.gather_columns(logits, self._widths)
        return logits.new_zeros(()).expand(len(x), sum(self._widths)) if gathered is None else gathered


def install(network: Any, config: ModelConfig, quantized: bool, communicator: Communicator) -> None:
    """Put these layers into `network`, which was made with the share's configuration and has no weights yet, and give every
    layer that is cut its `shard_specs`. `config`: that of the whole model. `quantized`: whether weights are to be in few
    bits.

    UnsupportedModelError for a family whose head or embedding is one of its own, or with a layer whose cut is not known.
    """
    shard = communicator.shard
    specs, widths = shard_specs_of(shard, config, quantized), input_widths(shard, config)
    if type(network.lm_head) is not LMHead or type(network.model.embed_tokens) is not Embedding:
        raise UnsupportedModelError(
            f"tensor_parallel_size={shard.size}: {type(network).__name__} has a head of its own"
        )
    table = network.model.embed_tokens.weight
    embedding = VocabEmbedding(specs["embed_tokens"], table.shape[1], table.dtype, table.device, communicator)
    network.model.embed_tokens = embedding
    head_device = torch.device("meta") if config.tie_word_embeddings else table.device
    network.lm_head = SplitHead(specs["lm_head"], config, table.dtype, head_device, communicator)
    if config.tie_word_embeddings:
        network.lm_head.weight = embedding.weight
    for path, module in list(network.named_modules()):
        parent, _, name = path.rpartition(".")
        if isinstance(module, FusedLinear) and module.parts.keys() <= specs.keys():
            module.shard_specs = {part: specs[part] for part in module.parts}
        elif name in widths and type(module) is Linear:
            assert module.weight is not None
            rest = module.bias is not None, module.weight.dtype, module.weight.device, communicator
            split: Linear
            if quantized:
                split = GatheredLinear(specs[name], widths[name], *rest)
            else:
                split = RowLinear(specs[name], module.out_features, *rest)
            setattr(network.get_submodule(parent), name, split)
        elif isinstance(module, Linear) and not isinstance(module, SplitHead):
            raise UnsupportedModelError(
                f"tensor_parallel_size={shard.size}: {type(network).__name__} has a layer {path} that cannot be split"
            )
    network.num_parameters = sum(parameter.numel() for parameter in network.parameters())

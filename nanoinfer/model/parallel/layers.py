"""The layers of a split model that work together with those of the other ranks.

Column-split layers (q, k, v, gate, up) are ordinary ones, with fewer outputs. So are attention, which has fewer heads, and
norms, which are whole. What is left:

    VocabEmbedding   a rank has the rows of some tokens: zeros for the others, then all-reduce
    RowLinear        a rank has some inputs: a part of each sum, then all-reduce
    SplitHead        a rank has the logits of some tokens: rank 0 gathers them
"""

import ctypes
from contextlib import suppress
from typing import Any

import torch
from torch.nn.functional import pad

from nanoinfer.errors import UnsupportedModelError
from nanoinfer.model.adapter_rows import AdapterRows
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.kernels import Kernels
from nanoinfer.model.kernels.select import Selection
from nanoinfer.model.layers.int8_weights import MOST_INPUTS, exact_sums, finish, quantize
from nanoinfer.model.layers.linear import Embedding, FusedLinear, Linear, LMHead
from nanoinfer.model.parallel.communicator import Communicator
from nanoinfer.model.parallel.shard import Range, cuts_of, row_inputs
from nanoinfer.model.split import Cut


class RowSplitInt8Weights:
    """`weight` [out, this rank's inputs]; the rest, and the errors, as for Int8Weights. Plain torch multiplies.

    Weights and activations get the scales that they would have in one process: those of the largest magnitude over all
    ranks. Then every rank has a part of the same whole numbers, and the sums of its products are whole numbers, too. They
    are added up exactly, so the result has the bits of a single process.
    """

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        name: str,
        communicator: Communicator,
    ):
        self._communicator = communicator
        self.whole, self.scale = quantize(weight, self._largest_of_all(weight))
        if not self.scale.isfinite().all():
            raise ValueError(f"quantization='int8': {name}.weight has inf or NaN, must be finite")
        inputs = int(communicator.all_reduce(torch.tensor([weight.shape[1]], dtype=torch.int32)))
        if inputs > MOST_INPUTS:
            raise ValueError(f"quantization='int8': {name} has {inputs} inputs, must be at most {MOST_INPUTS}")
        self.bias = torch.zeros_like(self.scale) if bias is None else bias.float()
        self.selection = Selection("int8", "")

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        """`x` [T, this rank's inputs] → [T, out], complete, the same in all ranks."""
        q, row_scale = quantize(x, self._largest_of_all(x))
        sums = self._communicator.all_reduce(exact_sums(q, self.whole))
        return finish(sums, row_scale, self.scale, self.bias, x.dtype)

    def _largest_of_all(self, rows: torch.Tensor) -> torch.Tensor:
        """The largest magnitude in each row of which all ranks have parts, float32 [n]. NaN counts as the largest."""
        return self._communicator.all_reduce_max(rows.float().abs().amax(dim=1))


def give_back() -> None:
    """Have the C library keep nothing of what has been freed. Without glibc, nothing happens.

    While weights are packed, layer by layer, the old ones leave holes that are too small for the next layer. Together they
    would come to a quarter of a rank's share.
    """
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


class VocabEmbedding(Embedding):
    """The rows of the tokens `cut.ranges[0]` of a table with `cut.total` rows."""

    def __init__(self, cut: Cut, size: int, dtype: torch.dtype, device: torch.device, communicator: Communicator):
        super().__init__(cut.size, size, dtype, device)
        self.cuts, self._communicator = {"": cut}, communicator
        self._first, self._num_tokens = cut.ranges[0][0], cut.total

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """As in Embedding."""
        if input_ids.device.type == "cpu" and not ((input_ids >= 0) & (input_ids < self._num_tokens)).all():
            raise IndexError(f"input_ids: must be in 0..{self._num_tokens - 1}")
        own = input_ids - self._first
        missing = (own < 0) | (own >= len(self.weight))
        x = super().forward(own.masked_fill(missing, 0)).masked_fill(missing[:, None], 0)
        return self._communicator.all_reduce(x)


class RowLinear(Linear):
    """`x @ weight.T + bias`, of which each rank has the inputs `inputs` (start, end). Its weight may have more columns,
    those of `cut`: `x` is then filled up with zeros.

    The bias and what adapters add come to the sum once: all ranks have the whole bias, and an adapter's A is cut like `x`.
    """

    def __init__(
        self,
        cut: Cut,
        inputs: Range,
        out_features: int,
        bias: bool,
        dtype: torch.dtype,
        device: torch.device,
        communicator: Communicator,
    ):
        super().__init__(cut.size, out_features, bias, dtype, device)
        self.cuts, self._communicator = {"": cut}, communicator
        ((start, end),) = cut.ranges
        self._padding = (inputs[0] - start, end - inputs[1])
        self._is_complete = False  # whether the weights' `multiply` returns sums over all ranks, with the bias

    def pack(self, kernels: Kernels, quantization: str | None, name: str) -> None:
        """As in Linear."""
        self._is_complete = quantization == "int8"
        if not self._is_complete:
            bias, self.bias = self.bias, None  # a part of a sum has no bias
            super().pack(kernels, quantization, name)
            self.bias = bias
        else:
            assert self.weight is not None, "packed already"
            bias_data = None if self.bias is None else self.bias.data
            self.weights = RowSplitInt8Weights(self.weight.data, bias_data, name, self._communicator)
            self.weight = None
        give_back()

    def forward(self, x: torch.Tensor, adapters: AdapterRows | None = None) -> torch.Tensor:
        """This rank's part of the inputs, [T, its inputs] → [T, out_features], the same in all ranks."""
        assert self.weights is not None, "not packed yet"
        if any(self._padding):
            x = pad(x, self._padding)
        y = self.weights.multiply(x)
        table = None if adapters is None else adapters.tables.get(self)
        if self._is_complete:
            if table is not None and adapters is not None:
                y = y + self._communicator.all_reduce(table.add(x, torch.zeros_like(y), adapters))
            return y
        if table is not None and adapters is not None:
            y = table.add(x, y, adapters)
        y = self._communicator.all_reduce(y)
        return y if self.bias is None else y + self.bias


class SplitHead(LMHead):
    """The logits of the tokens of `cut`. What is done to logits is done to each by itself, so it can be done before they
    are gathered."""

    def __init__(
        self, cut: Cut, config: ModelConfig, dtype: torch.dtype, device: torch.device, communicator: Communicator
    ):
        super().__init__(config, dtype, device, cut.size)
        self.cuts, self._communicator = {"": cut}, communicator
        self._widths = communicator.shard.parts(cut.total)

    def likeliest(self, x: torch.Tensor) -> None:
        """None: a rank does not know the other ranks' logits."""

    def forward(self, x: torch.Tensor, adapters: AdapterRows | None = None) -> torch.Tensor:
        """`x` [k, hidden_size] → [k, V] in rank 0. In the others, whose result nobody reads, zeros that take no memory."""
        logits = super().forward(x, adapters)
        gathered = self._communicator.gather_columns(logits, self._widths)
        return logits.new_zeros(()).expand(len(x), sum(self._widths)) if gathered is None else gathered


def install(network: Any, config: ModelConfig, quantization: str | None, communicator: Communicator) -> None:
    """Put these layers into `network`, which was made with the share's configuration and has no weights yet, and give every
    layer that is cut its `cuts`. `config`: that of the whole model.

    UnsupportedModelError for a family whose head or embedding is one of its own, or with a layer whose cut is not known.
    """
    shard = communicator.shard
    cuts, inputs = cuts_of(shard, config, quantization), row_inputs(shard, config)
    if type(network.lm_head) is not LMHead or type(network.model.embed_tokens) is not Embedding:
        raise UnsupportedModelError(
            f"tensor_parallel_size={shard.size}: {type(network).__name__} has a head of its own"
        )
    table = network.model.embed_tokens.weight
    embedding = VocabEmbedding(cuts["embed_tokens"], table.shape[1], table.dtype, table.device, communicator)
    network.model.embed_tokens = embedding
    head_device = torch.device("meta") if config.tie_word_embeddings else table.device
    network.lm_head = SplitHead(cuts["lm_head"], config, table.dtype, head_device, communicator)
    if config.tie_word_embeddings:
        network.lm_head.weight = embedding.weight
    for path, module in list(network.named_modules()):
        parent, _, name = path.rpartition(".")
        if isinstance(module, FusedLinear) and module.parts.keys() <= cuts.keys():
            module.cuts = {part: cuts[part] for part in module.parts}  # type: ignore[assignment]
        elif name in inputs and type(module) is Linear:
            assert module.weight is not None
            of_weight = module.out_features, module.bias is not None, module.weight.dtype, module.weight.device
            setattr(network.get_submodule(parent), name, RowLinear(cuts[name], inputs[name], *of_weight, communicator))
        elif isinstance(module, Linear) and not isinstance(module, SplitHead):
            raise UnsupportedModelError(
                f"tensor_parallel_size={shard.size}: {type(network).__name__} has a layer {path} that cannot be split"
            )
    network.num_parameters = sum(parameter.numel() for parameter in network.parameters())

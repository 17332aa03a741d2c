"""Modules of transformers' networks that become ours: the same numbers from our kernels.

Linear layers and embeddings do so by their type. Of other modules, only a trial tells what they compute: a norm, an MLP or
an attention layer is replaced if ours, with its weights, has the results that it has. So what has a turn of its own stays.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.functional import gelu, linear, silu
from transformers.pytorch_utils import Conv1D

from nanoinfer.model.kernels import Kernels, TorchKernels
from nanoinfer.model.layers.linear import Embedding, FusedLinear, GatedLinear, Linear, LMHead
from nanoinfer.model.layers.rms_norm import RMSNorm
from nanoinfer.model.transformers_attention import now

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu_and_mul": silu,
    "gelu_tanh_and_mul": lambda gate: gelu(gate, approximate="tanh"),
}
# What a module raises if it cannot be called as in a trial: then it stays.
FAILURES = (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
SIZES = (1e-3, 1.0, 30.0, 1000.0)  # of the rows of a trial's input: what clamps or has an epsilon shows


class WrappedLinear(Linear):
    """A Linear in place of an nn.Linear, or of GPT-2's Conv1D: for inputs of any shape, and the pass tells the adapters."""

    def __init__(self, of: nn.Module):
        nn.Module.__init__(self)
        weight: torch.Tensor = of.weight.T if isinstance(of, Conv1D) else of.weight  # type: ignore[assignment]
        self.out_features, self.in_features = weight.shape
        self.weight, self.bias = nn.Parameter(weight, requires_grad=False), of.bias  # type: ignore[assignment]
        self.weights = None

    def pack(self, kernels: Kernels, quantization: str | None, name: str) -> None:
        """As in Linear. An empty `weight` stays: transformers' code may ask for its dtype."""
        assert self.weight is not None, "packed already"
        empty = self.weight.data.new_empty(0)
        super().pack(kernels, quantization, name)
        del self._parameters["weight"]
        self.weight = empty  # type: ignore[assignment]

    def forward(self, x: torch.Tensor, adapters: Any = None) -> torch.Tensor:
        """`x` [..., in_features] → [..., out_features]."""
        rows = x.reshape(-1, self.in_features)
        y = Linear.forward(self, rows, None if isinstance(self, LMHead) else adapters_of_pass())
        return y.view(*x.shape[:-1], self.out_features)


class WrappedHead(WrappedLinear, LMHead):
    """An LMHead: no adapter adds to it. A scale and a softcap of the logits are its own where `known_head` finds them."""

    def __init__(self, of: nn.Module, scale: float = 1.0, softcap: float | None = None):
        WrappedLinear.__init__(self, of)
        self.scale, self.softcap = scale, softcap
        self.kernels: Kernels = TorchKernels()

    def forward(self, x: torch.Tensor, adapters: Any = None) -> torch.Tensor:
        """`x` [..., in_features] → [..., V]."""
        logits = LMHead.forward(self, x.reshape(-1, self.in_features))
        return logits.view(*x.shape[:-1], self.out_features)


class WrappedEmbedding(Embedding):
    """For token ids of any shape. `scale` multiplies the rows."""

    def __init__(self, of: nn.Embedding, scale: float):
        nn.Module.__init__(self)
        self.kernels: Kernels = TorchKernels()
        self.scale = torch.tensor(scale, dtype=of.weight.dtype).item()  # rounded like the table
        self.weight = nn.Parameter(of.weight, requires_grad=False)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """`input_ids` [...] int64 → [..., size]."""
        rows = super().forward(input_ids.reshape(-1))
        return (rows if self.scale == 1.0 else self.kernels.scale(rows, self.scale)).view(*input_ids.shape, -1)


class WrappedNorm(RMSNorm):
    """For inputs of any shape, and of another dtype than the weight's: a residual stream may be in float32."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x` [..., size] → the same shape."""
        kernels = self.kernels if x.dtype is self.weight.dtype else TorchKernels()
        return kernels.rms_norm(x, self.weight, self.eps)


class WrappedMLP(nn.Module):
    """`down(activation(gate(x)) * up(x))`."""

    def __init__(self, of: Any, activation: str):
        super().__init__()
        gate, up = of.gate_proj, of.up_proj
        like = gate.weight.dtype, torch.device("meta")
        self.gate_up_proj = GatedLinear(gate.in_features, gate.out_features, activation, gate.bias is not None, *like)
        fill(self.gate_up_proj, [gate, up])
        self.down_proj = WrappedLinear(of.down_proj)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x` [..., hidden] → [..., hidden]."""
        gated = self.gate_up_proj(x.reshape(-1, self.gate_up_proj.in_features), adapters_of_pass())
        return self.down_proj(gated).view(x.shape)


class WrappedExperts(nn.Module):
    """The MLPs of a mixture of experts, each on its tokens. What a token gets does not depend on the others: its experts'
    results are added in the router's order, in float32."""

    def __init__(self, of: Any, activation: str):
        super().__init__()
        gate_up, down = of.gate_up_proj, of.down_proj
        like = gate_up.dtype, torch.device("meta")
        for i in range(len(gate_up)):
            expert = nn.Module()
            expert.gate_up_proj = GatedLinear(gate_up.shape[2], down.shape[2], activation, False, *like)
            expert.down_proj = Linear(down.shape[2], down.shape[1], False, *like)
            for own, weight in ((expert.gate_up_proj, gate_up[i]), (expert.down_proj, down[i])):
                own.weight = nn.Parameter(weight, requires_grad=False)
            self.add_module(str(i), expert)

    def forward(self, x: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor) -> torch.Tensor:
        """`x` [T, hidden], and which experts each token has, with which weights, both [T, k] → [T, hidden]."""
        results, adapters = x.new_zeros(*top_k_index.shape, x.shape[1]), adapters_of_pass()
        for number in top_k_index.unique().tolist():
            rows, place = torch.where(top_k_index == number)
            of_rows = None if adapters is None else adapters.of(rows)
            expert: Any = getattr(self, str(number))
            results[rows, place] = expert.down_proj(expert.gate_up_proj(x[rows], of_rows), of_rows)
        total = results[:, 0].float() * top_k_weights[:, 0, None]
        for k in range(1, top_k_index.shape[1]):
            total += results[:, k].float() * top_k_weights[:, k, None]
        return total.to(x.dtype)


def adapters_of_pass() -> Any:
    """The adapters of this thread's pass."""
    return None if now.metadata is None else now.metadata.adapters


def is_all(dtype: torch.dtype, module: nn.Module) -> bool:
    """Whether our kernels, which are for one `dtype`, can compute `module`. Some routers are in float32 in any network."""
    return all(parameter.dtype is dtype for parameter in module.parameters())


def adopt_norms(network: nn.Module, whole: Any, dtype: torch.dtype) -> None:
    """Replace, in place, what is an RMSNorm or an embedding like ours."""
    for name, module in list(network.named_modules()):
        new: nn.Module | None = None
        if not is_all(dtype, module):
            continue
        if "RMSNorm" in type(module).__name__:
            new = _norm(module)
        elif isinstance(module, nn.Embedding):
            new = _embedding(module)
        if new is not None:
            replace_module(network, whole, name, new)


def known_head(
    head: nn.Module | None, dtype: torch.dtype, logits: Callable[[torch.Tensor], torch.Tensor], config: Any
) -> WrappedHead | None:
    """What computes the `logits` of hidden states [k, hidden]: `head`, with a scale or a softcap that `config` names. None
    if they are something else."""
    if type(head) is not nn.Linear or not is_all(dtype, head):
        return None
    x, kernels = trial_rows(head.in_features, head.weight)[0], TorchKernels()
    theirs = logits(x)
    factors = 1.0, getattr(config, "logit_scale", None), 1 / (getattr(config, "logits_scaling", None) or 1.0)
    for scale in filter(None, factors):
        for cap in (None, getattr(config, "final_logit_softcapping", None)):
            ours = kernels.scale(head(x), scale)
            if same(ours if cap is None else kernels.softcap(ours, cap), theirs):
                return WrappedHead(head, scale, cap)
    return None


def adopt_linear(network: nn.Module, whole: Any, dtype: torch.dtype, kernels: Kernels, kind: str | None) -> None:
    """Replace MLPs, experts, and what else is linear, and pack all weights for `kernels`, which compute in `dtype`, as the
    quantization `kind`. Last of all: transformers' own modules are not to be tried any more."""
    for name, module in list(network.named_modules()):
        if is_all(dtype, module) and (new := _mlp(module) or _experts(module)) is not None:
            replace_module(network, whole, name, new)
    for name, module in list(network.named_modules()):
        if type(module) in (nn.Linear, Conv1D) and is_all(dtype, module):
            replace_module(network, whole, name, WrappedLinear(module))
    for name, module in network.named_modules():
        if isinstance(module, Linear):
            module.pack(kernels, kind, name)
        if hasattr(module, "kernels"):
            module.kernels = kernels


def replace_module(network: nn.Module, whole: Any, name: str, new: nn.Module) -> None:
    """Put `new` where `network`, which has the modules of transformers' `whole`, has the module `name`."""
    parent, _, own = name.rpartition(".")
    setattr(network.get_submodule(parent), own, new)
    if not parent:
        setattr(whole, own, new)


def fill(fused: FusedLinear, parts: list[nn.Linear]) -> None:
    fused.weight = nn.Parameter(torch.cat([part.weight for part in parts]), requires_grad=False)
    if fused.bias is not None:
        fused.bias = nn.Parameter(torch.cat([part.bias for part in parts]), requires_grad=False)


def trial_rows(size: int, like: torch.Tensor) -> torch.Tensor:
    """The input of a trial, [1, len(SIZES), `size`]."""
    rows = torch.randn(len(SIZES), size, generator=torch.Generator().manual_seed(0))
    return (rows * torch.tensor(SIZES)[:, None]).to(like)[None]


def same(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Whether every row is the same, up to the rounding of its dtype."""
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return False
    tolerance = 2e-5 if theirs.dtype is torch.float32 else 3e-2
    ours, theirs = (x.float().reshape(len(SIZES), -1) for x in (ours, theirs))
    return bool(((ours - theirs).abs().amax(-1) <= tolerance * theirs.abs().amax(-1)).all())


def _norm(module: Any) -> WrappedNorm | None:
    weight, eps = getattr(module, "weight", None), getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if weight is None or not isinstance(eps, float):
        return None
    x = trial_rows(len(weight), weight)
    theirs = module(x)
    for offset in (0.0, 1.0):
        ours = WrappedNorm(len(weight), eps, weight.dtype, weight.device)
        ours.weight.copy_(weight + offset)
        if same(ours(x), theirs):
            return ours
    return None


def _embedding(module: nn.Embedding) -> WrappedEmbedding | None:
    scale = getattr(module, "scalar_embed_scale", 1.0)
    ids = torch.arange(min(4, module.num_embeddings), device=module.weight.device)
    try:
        ours = WrappedEmbedding(module, scale)
        return ours if torch.equal(ours(ids), module(ids)) else None
    except FAILURES:
        return None


def _mlp(module: Any) -> WrappedMLP | None:
    projections: list[Any] = [getattr(module, part, None) for part in ("gate_proj", "up_proj", "down_proj")]
    if any(type(projection) is not nn.Linear for projection in projections):
        return None
    own = {id(parameter) for projection in projections for parameter in projection.parameters()}
    if {id(parameter) for parameter in module.parameters()} != own or (projections[0].bias is None) != (
        projections[1].bias is None
    ):
        return None
    x = trial_rows(projections[0].in_features, projections[0].weight)
    theirs = module(x)
    for name, activation in ACTIVATIONS.items():
        if same(module.down_proj(activation(module.gate_proj(x)) * module.up_proj(x)), theirs):
            return WrappedMLP(module, name)
    return None


def _experts(module: Any) -> WrappedExperts | None:
    """If its experts are MLPs with a gate and without biases, which the router's choice is given to."""
    parameters = dict(module.named_parameters())
    if parameters.keys() != {"gate_up_proj", "down_proj"} or any(each.ndim != 3 for each in parameters.values()):
        return None
    gate_up, down = module.gate_up_proj, module.down_proj
    size, hidden = down.shape[2], down.shape[1]
    if gate_up.shape != (len(down), 2 * size, hidden):
        return None
    x = trial_rows(hidden, gate_up)[0]
    weights, chosen = x.new_full((len(x), 1), 0.25), torch.arange(len(x), device=x.device)[:, None] % len(down)
    try:
        theirs = module(x, chosen, weights)
    except FAILURES:
        return None
    for name, activation in ACTIVATIONS.items():
        gates, ups = zip(
            *(linear(row, gate_up[i]).split(size) for row, i in zip(x, chosen[:, 0], strict=True)), strict=True
        )
        each = zip(gates, ups, chosen[:, 0], strict=True)
        ours = torch.stack([linear(activation(gate) * up, down[i]) * 0.25 for gate, up, i in each])
        if same(ours, theirs):
            return WrappedExperts(module, name)
    return None

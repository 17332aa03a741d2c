"""What a network keeps of its weights once they are packed: of which kind they are, and how much memory they take."""

import torch
from torch import nn

from nanoinfer.kernels import Selection
from nanoinfer.model.layers.linear import Linear


def quantization_of(network: nn.Module) -> Selection:
    """The kind of quantized weights of `network`, and why plain torch multiplies by them, if it does. No name: none."""
    weights = (module.weights for module in network.modules() if isinstance(module, Linear))
    selections = (getattr(kept, "selection", None) for kept in weights)
    return next((selection for selection in selections if isinstance(selection, Selection)), Selection(""))


def weight_bytes(network: nn.Module) -> int:
    """The memory that `network`'s parameters and linear weights take; what is shared counts once."""
    linear = [module for module in network.modules() if isinstance(module, Linear)]
    kept = (value for module in linear for value in vars(module.weights).values())
    packed = [value for value in kept if isinstance(value, torch.Tensor)]
    tensors = (*network.parameters(), *packed)
    places = {id(tensor) if tensor.is_mkldnn else tensor.data_ptr(): tensor for tensor in tensors}
    return sum(tensor.numel() * tensor.itemsize for tensor in places.values())

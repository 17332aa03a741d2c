"""What a network keeps of its weights once they are packed: of which kind they are, and how much memory they take."""

import torch
from torch import nn

from nanoinfer.kernels import Selection
from nanoinfer.model.layers.linear import Linear


def quantization_of(network: nn.Module) -> Selection:
    """The kind of quantized weights of `network`, and why plain torch multiplies by them, if it does. No name: none."""
    weights = (module.weights for module in network.modules() if isinstance(module, Linear))
    found = (getattr(each, "selection", None) for each in weights)
    return next((each for each in found if isinstance(each, Selection)), Selection(""))


def weight_bytes(network: nn.Module) -> int:
    """The memory that `network`'s parameters and linear weights take; what is shared counts once."""
    linear = [module for module in network.modules() if isinstance(module, Linear)]
    packed = [each for module in linear for each in vars(module.weights).values() if isinstance(each, torch.Tensor)]
    places = {id(each) if each.is_mkldnn else each.data_ptr(): each for each in (*network.parameters(), *packed)}
    return sum(each.numel() * each.itemsize for each in places.values())

"""forward_tensor: runs the model over blocks that the caller owns (Ascend's view of the same pools)."""

from nanoinfer.paged.generator import GeneratorTorch

__all__ = ["GeneratorTorch"]

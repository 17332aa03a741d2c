"""Ascend's interfaces over the same pools: forward_tensor runs the model over blocks that the caller owns, and advance_step
moves a batch on by one token."""

from nanoinfer.ascend.advance_step import npu_advance_step_flashattn
from nanoinfer.ascend.generator import GeneratorTorch

__all__ = ["GeneratorTorch", "npu_advance_step_flashattn"]

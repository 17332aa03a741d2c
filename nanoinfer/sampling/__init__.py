"""Sampling: from logits to the next token."""

from nanoinfer.sampling.sampler import Sampler

__all__ = ["Sampler"]

"""Weights in 8 and 4 bits for tests, and the bits of their products."""

import hashlib

import torch
from torch.nn.functional import pad

from nanoinfer.model.kernels import select_kernels
from nanoinfer.model.kernels.cpp import CppKernels
from nanoinfer.model.layers.grouped_weights import GroupedWeights
from nanoinfer.model.layers.int4_weights import Int4Weights
from nanoinfer.model.layers.int8_weights import Int8Weights
from nanoinfer.model.layers.linear_weights import LinearWeights
from tests.helpers.kernels import CPU, DTYPES, random

Kind = type[Int8Weights] | type[Int4Weights]
KINDS: dict[str, Kind] = {"int8": Int8Weights, "int4": Int4Weights}


def layer(inputs: int, outputs: int, dtype: torch.dtype, bias: bool = True) -> tuple[torch.Tensor, torch.Tensor | None]:
    """A random weight and, if wanted, a bias."""
    return random(outputs, inputs, dtype=dtype, seed=1), random(outputs, dtype=dtype, seed=2) if bias else None


def activations(rows: int, inputs: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows of very different sizes."""
    return random(rows, inputs, dtype=dtype) * torch.logspace(-3, 3, rows)[:, None].to(dtype)


def in_groups_of_8_bits(
    weight: torch.Tensor, bias: torch.Tensor | None, kernels: CppKernels, name: str
) -> LinearWeights:
    """Weights of Q8_0's form, made of any numbers."""
    groups = pad(weight.float(), (0, -weight.shape[1] % 32)).view(len(weight), -1, 32)
    scale = (groups.abs().amax(dim=2) / 127).half()
    return GroupedWeights(
        8, (groups / scale[..., None]).round().to(torch.int8), scale, None, bias, kernels, name, weight.shape[1]
    )


def product_bits() -> dict[str, str]:
    """Of some products in C++, in each dtype that the kernels support here: a digest of the numbers."""
    found = {}
    for dtype in DTYPES:
        if CppKernels.why_not(dtype, CPU) is not None:
            continue
        kernels = select_kernels("cpp", dtype, CPU)
        for name, kind in {**KINDS, "8 bits in groups": in_groups_of_8_bits}.items():
            for inputs, outputs in ((224, 96), (70, 130)):
                weights = kind(*layer(inputs, outputs, dtype), kernels, "it")
                for rows in (1, 3, 40):
                    y = weights.multiply(activations(rows, inputs, dtype))
                    digest = hashlib.sha256(y.float().numpy().tobytes()).hexdigest()[:16]
                    found[f"{dtype} {name} {inputs} {outputs} {rows}"] = digest
    return found

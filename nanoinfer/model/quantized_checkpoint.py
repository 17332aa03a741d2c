"""Reads checkpoints whose linear weights were quantized before: GPTQ, AWQ, compressed-tensors and FP8.

In each of these formats a Linear's weight is several tensors: numbers of a few bits, and what they stand for,

    w[o, i] = scale[o, g] * (q[o, i] - zero[o, g]), for input i in group g

Here they become floating-point numbers again, in float32. Activations stay precise, whatever the checkpoint says of them.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch

from nanoinfer.errors import UnsupportedModelError, WeightMismatchError
from nanoinfer.model.layers.int4_weights import GROUP, Int4Weights
from nanoinfer.model.layers.linear_weights import FewBits
from nanoinfer.requests.tokenizer_files import read_object

QUANTIZE_CONFIG = "quantize_config.json"  # AutoGPTQ writes it beside a config.json that need not say anything of it
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # output channel k of eight is nibble AWQ_ORDER[k] of its word
WEIGHT_PARTS = ("qweight", "weight_packed", "weight")  # one of these is in every quantized weight; in this order
OTHER_PARTS = (
    *("qzeros", "scales", "g_idx"),  # GPTQ, AWQ
    *("weight_scale", "weight_scale_inv", "weight_zero_point", "weight_shape", "weight_g_idx"),  # the others
    *("input_scale", "input_zero_point", "k_scale", "v_scale"),  # of activations and K/V: not used
)
Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Quantized:
    """One weight: its numbers `q` [out, in], with a `scale` and perhaps a `zero` point [out, groups], or [1, groups] for
    all outputs. `group` [in] int64 says in which group each input is; None: in groups of equal size, in order."""

    q: torch.Tensor
    scale: torch.Tensor
    zero: torch.Tensor | None = None
    group: torch.Tensor | None = None

    def dequantize(self) -> torch.Tensor:
        """The weight, [out, in] float32."""
        inputs, groups = self.q.shape[1], self.scale.shape[1]
        if self.group is None and inputs % groups:
            raise ValueError(f"{groups} groups for {inputs} inputs")
        group = torch.arange(inputs) // (inputs // groups) if self.group is None else self.group
        q = self.q.float()
        if self.zero is not None:
            q = q - self.zero.float()[:, group]
        return q * self.scale.float()[:, group]

    def groups(self) -> dict[str, torch.Tensor] | None:
        """The same weight as Int4Weights takes it, if that has exactly these numbers."""
        (outputs, inputs), size = self.q.shape, self.q.shape[1] // self.scale.shape[1]
        ordered = self.group is None or torch.equal(self.group, torch.arange(inputs) // size)
        scale = self.scale.half().repeat_interleave(size // GROUP, dim=1)
        if self.q.is_floating_point() or size % GROUP or inputs % size or len(self.scale) < outputs or not ordered:
            return None
        zero = 0 if self.zero is None else self.zero.int().repeat_interleave(size, dim=1)
        whole = self.q.int() - zero
        if whole.min() < -8 or whole.max() > 7 or not torch.equal(self.scale.half().float(), self.scale.float()):
            return None
        return {"whole": whole.to(torch.int8).view(outputs, -1, GROUP), "scale": scale}


@dataclass(frozen=True)
class CheckpointFormat:
    """How a checkpoint stores a quantized weight. `name`: for people. `per_word`: how many numbers are in one of its
    integers. `decode` reads a weight's tensors, each under the last part of its name."""

    name: str
    per_word: int
    decode: Callable[[Tensors], Quantized]

    def shape(self, part: str, stored: list[int]) -> list[int]:
        """The shape [out, in] of a weight whose tensor `part` of WEIGHT_PARTS is stored with this shape."""
        rows, columns = stored
        if part == "qweight":
            return [columns * self.per_word, rows] if self.name == "AWQ" else [columns, rows * self.per_word]
        return [rows, columns * self.per_word]


@dataclass(frozen=True)
class QuantizedTensor:
    """A StoredTensor (see weights.py) that a checkpoint has as several, its `parts`, StoredTensors, too."""

    format: CheckpointFormat
    parts: Mapping[str, Any]
    dtype: ClassVar[str] = "F32"

    @property
    def file(self) -> Path:
        return self.parts[self._main].file

    @property
    def shape(self) -> list[int]:
        return self.format.shape(self._main, self.parts[self._main].shape)

    @property
    def _main(self) -> str:
        return next(part for part in WEIGHT_PARTS if part in self.parts)

    def read(self) -> torch.Tensor:
        """Float32. WeightMismatchError if parts are missing or do not fit together."""
        return self._decode().dequantize()

    def _decode(self) -> Quantized:
        try:
            quantized = self.format.decode({part: stored.read() for part, stored in self.parts.items()})
            quantized.dequantize()  # fails if the tensors do not fit together
            return quantized
        except (KeyError, IndexError, RuntimeError, ValueError, StopIteration) as error:
            name = getattr(self.parts[self._main], "name", "")
            raise WeightMismatchError(f"{self.file}: {name} is not as {self.format.name} has it: {error!r}") from error

    def slices(self) -> torch.Tensor:
        return self.read()

    def few_bits(self) -> FewBits | None:
        groups = self._decode().groups()
        return None if groups is None else (FOUR_BITS, groups)


def join_parts(where: Mapping[str, Any], quantized: CheckpointFormat, names: Collection[str]) -> dict[str, Any]:
    """A checkpoint's tensors `where`, with one QuantizedTensor in place of those that are its parts. `names`: those that
    the model has parameters for."""
    layers: dict[str, dict[str, Any]] = {}
    for name, stored in where.items():
        layer, _, part = name.rpartition(".")
        if part in (*WEIGHT_PARTS, *OTHER_PARTS):
            layers.setdefault(layer, {})[part] = stored
    joined = dict(where)
    for layer, parts in layers.items():
        if parts.keys() == {"weight"}:
            continue  # it was not quantized
        for part in parts:
            del joined[f"{layer}.{part}"]
        if not parts.keys().isdisjoint(WEIGHT_PARTS):
            joined[f"{layer}.weight"] = QuantizedTensor(quantized, parts)
        bias = f"{layer}.bias"  # AutoGPTQ writes one for every layer
        if bias in joined and bias not in names and not joined[bias].read().any():
            del joined[bias]
    return joined


def checkpoint_format(path: Path) -> CheckpointFormat | None:
    """The format of the checkpoint in the folder `path`; None if its weights are plain numbers.

    UnsupportedModelError naming the field that cannot be read.
    """
    raw = read_object(path / "config.json") or {}
    text = raw.get("text_config")
    said = raw.get("quantization_config") or (text.get("quantization_config") if isinstance(text, dict) else None)
    if not said and (path / QUANTIZE_CONFIG).is_file():
        said = {"quant_method": "gptq", **(read_object(path / QUANTIZE_CONFIG) or {})}
    return read_format(said) if said else None


def read_format(said: Any) -> CheckpointFormat:
    """From a config's `quantization_config`. UnsupportedModelError as `checkpoint_format`."""
    said = said if isinstance(said, dict) else {}
    _check("quant_method", said.get("quant_method"), METHODS)
    return METHODS[said["quant_method"]](said)


def unpack(words: torch.Tensor, bits: int, dim: int) -> torch.Tensor:
    """int32 words → the unsigned numbers of `bits` in each of them, the lowest first, side by side along `dim`; uint8."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32).view(-1, *(1,) * (words.ndim - 1 - dim))
    numbers = words.unsqueeze(dim + 1) >> shifts & (1 << bits) - 1
    return numbers.to(torch.uint8).flatten(dim, dim + 1)


def _gptq(said: dict[str, Any]) -> CheckpointFormat:
    bits = _check("bits", said.get("bits"), (2, 4, 8))
    below = 0 if said.get("checkpoint_format") == "gptq_v2" else 1  # version 1 stores zero - 1

    def decode(tensors: Tensors) -> Quantized:
        zero = unpack(tensors["qzeros"], bits, 1).int() + below
        group = tensors["g_idx"].long() if "g_idx" in tensors else None
        return Quantized(unpack(tensors["qweight"], bits, 0).T, tensors["scales"].T, zero.T, group)

    return CheckpointFormat("GPTQ", 32 // bits, decode)


def _awq(said: dict[str, Any]) -> CheckpointFormat:
    bits = _check("bits", said.get("bits", said.get("w_bit")), (4,))
    _check("version", str(said.get("version", "gemm")).lower(), ("gemm",))

    def numbers(words: torch.Tensor) -> torch.Tensor:
        return unpack(words, bits, 1).view(len(words), -1, 8)[:, :, AWQ_ORDER].flatten(1).T

    def decode(tensors: Tensors) -> Quantized:
        return Quantized(numbers(tensors["qweight"]), tensors["scales"].T, numbers(tensors["qzeros"]))

    return CheckpointFormat("AWQ", 32 // bits, decode)


def _compressed_tensors(said: dict[str, Any]) -> CheckpointFormat:
    weights = [group.get("weights") or {} for group in (said.get("config_groups") or {}).values()]
    _check("the number of config_groups", len(weights), (1,))
    layout = _check("format", said.get("format"), ("pack-quantized", *PLAIN_LAYOUTS))
    if layout in PLAIN_LAYOUTS:
        return _with_scales("compressed-tensors", weights[0].get("block_structure"))
    bits = _check("num_bits", weights[0].get("num_bits"), (2, 4, 8))
    middle = 1 << bits - 1  # added to all numbers, so that none is negative

    def decode(tensors: Tensors) -> Quantized:
        q, zero = unpack(tensors["weight_packed"], bits, 1).int() - middle, tensors.get("weight_zero_point")
        if zero is not None and zero.dtype == torch.int32:
            zero = unpack(zero, bits, 0).int() - middle
        group = tensors["weight_g_idx"].long() if "weight_g_idx" in tensors else None
        return Quantized(q, tensors["weight_scale"], zero, group)

    return CheckpointFormat("compressed-tensors", 32 // bits, decode)


def _fp8(said: dict[str, Any]) -> CheckpointFormat:
    return _with_scales("FP8", said.get("weight_block_size"))


def _with_scales(name: str, block: Any) -> CheckpointFormat:
    """The weight has a number of 8 bits for each of the model's, and one scale in all, one for each output, or one for
    each `block` [outputs, inputs]."""

    def decode(tensors: Tensors) -> Quantized:
        q = tensors["weight"]
        scale = next(tensors[part] for part in ("weight_scale", "weight_scale_inv") if part in tensors)
        scale, zero = scale.reshape(-1, 1) if scale.ndim < 2 else scale, tensors.get("weight_zero_point")
        if not block:
            return Quantized(q, scale, zero)
        rows, columns = (torch.arange(size) // side for size, side in zip(q.shape, block, strict=True))
        return Quantized(q, scale[rows], None if zero is None else zero[rows], columns)

    return CheckpointFormat(name, 1, decode)


def _check(field: str, value: Any, allowed: Any) -> Any:
    if value not in allowed:
        one_of = ", ".join(map(str, allowed))
        raise UnsupportedModelError(f"quantization_config: {field}={value!r}, must be one of {one_of}")
    return value


FOUR_BITS = partial(Int4Weights.from_groups, minimum=None)
PLAIN_LAYOUTS = ("int-quantized", "float-quantized", "naive-quantized")
METHODS: dict[str, Callable[[dict[str, Any]], CheckpointFormat]] = {
    "gptq": _gptq,
    "awq": _awq,
    "compressed-tensors": _compressed_tensors,
    "fp8": _fp8,
    "fbgemm_fp8": _fp8,
}

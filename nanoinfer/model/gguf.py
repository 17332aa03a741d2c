"""The tensors of a GGUF file, with the names, the order of rows and the values of the original checkpoint: decoded to
float32, or in few bits as they are."""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nanoinfer.errors import UnsupportedModelError, WeightMismatchError
from nanoinfer.model.layers.int4_weights import Int4Weights
from nanoinfer.model.layers.int8_weights import Int8Weights
from nanoinfer.model.layers.linear_weights import FewBits, LinearWeights
from nanoinfer.requests.gguf_header import GGUFHeader, TensorInfo, read_header

FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}  # the types that are not quantized
ROPE_FACTORS = "rope_freqs.weight"  # gguf_config.py reads it
EXPERT = re.compile(r"\.experts\.(\d+)\.")
SHARED_GATE = "ffn_gate_inp_shexp.weight"  # some files have its one row as a vector
# The types that are used as they are, in groups of 32 numbers with a scale, and what makes weights of them.
GROUPS: dict[str, Callable[..., LinearWeights]] = {
    "Q4_0": partial(Int4Weights.from_groups, minimum=None),
    "Q4_1": Int4Weights.from_groups,
    "Q8_0": Int8Weights.from_groups,
}


@dataclass(frozen=True)
class GGUFTensor:
    """A StoredTensor of a GGUF file (see weights.py). `kind`: its gguf.GGMLQuantizationType. `heads`: of a query or key
    projection whose rows are in llama.cpp's order, how many heads it has; 0: the rows are in order. `offset` is added."""

    file: Path
    info: TensorInfo
    kind: Any
    heads: int = 0
    offset: float = 0.0
    dtype = "F32"

    @property
    def shape(self) -> list[int]:
        return self.info.shape

    def rows(self) -> np.ndarray:
        """The numbers as they are stored: uint8 [rows, bytes of a row]."""
        count = self.shape[0] if len(self.shape) > 1 else 1
        stored: np.ndarray = np.memmap(self.file, np.uint8, "c", self.info.start, (count, self._num_bytes() // count))
        if not self.heads:
            return stored
        # Rotary pairs are neighbouring rows in llama.cpp, and rows (i, i + D/2) of a head in Hugging Face's checkpoints.
        if count == 1:
            stored = stored.reshape(self.shape[0], -1)
        return stored.reshape(self.heads, -1, 2, stored.shape[1]).swapaxes(1, 2).reshape(stored.shape)

    def read(self) -> torch.Tensor:
        """Decoded, float32."""
        from gguf.quants import dequantize

        rows = np.ascontiguousarray(self.rows())
        decoded = torch.from_numpy(dequantize(rows, self.kind).reshape(self.shape))
        return decoded + self.offset if self.offset else decoded

    def slices(self) -> torch.Tensor:
        return self.read()

    def few_bits(self) -> FewBits | None:
        """For one of GROUPS: `whole` [out, groups, 32] int8, `scale` and Q4_1's `minimum` [out, groups] float16.

        A group is stored as scale, minimum and numbers: 32 bytes, or 16 with the first half of the numbers in their low
        halves and the second in the high ones.
        """
        if self.kind.name not in GROUPS:
            return None
        names = ("scale", "minimum") if self.kind.name == "Q4_1" else ("scale",)
        groups = torch.from_numpy(self.rows().copy()).view(self.shape[0], self.shape[1] // 32, -1)
        halves = groups[..., : 2 * len(names)].contiguous().view(torch.float16).unbind(-1)
        whole = groups[..., 2 * len(names) :]
        if self.kind.name != "Q8_0":
            whole = torch.cat((whole & 15, whole >> 4), dim=-1)
        signed = whole.contiguous().view(torch.int8) - (8 if self.kind.name == "Q4_0" else 0)
        return GROUPS[self.kind.name], {"whole": signed, **dict(zip(names, halves, strict=True))}

    def expert(self, number: int) -> "GGUFTensor":
        """That of one expert, of those of all experts of a layer, [experts, out, in]."""
        start = self.info.start + number * (self._num_bytes() // self.shape[0])
        return replace(self, info=replace(self.info, shape=self.shape[1:], start=start))

    def _num_bytes(self) -> int:
        from gguf import GGML_QUANT_SIZES

        block, size = GGML_QUANT_SIZES[self.kind]
        return int(np.prod(self.shape)) // block * size

    def check(self) -> None:
        """WeightMismatchError if the file ends before the tensor does."""
        if self.info.start + self._num_bytes() > self.file.stat().st_size:
            raise WeightMismatchError(f"{self.file}: ends within its tensors; get it once more")


def gguf_tensors(path: Path, names: Collection[str]) -> dict[str, GGUFTensor]:
    """The tensors of the file `path`, by those of the checkpoint's `names` that they have, or else by llama.cpp's.
    WeightMismatchError if the file is damaged, UnsupportedModelError without the package gguf or for an unknown type."""
    header = read_header(path)
    gguf = import_gguf(path)
    arch = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}[header.architecture]
    known = gguf.get_tensor_name_map(arch, header.get("{arch}.block_count"))
    theirs: dict[str | None, list[str]] = {}
    for name in names:
        theirs.setdefault(known.get_name(EXPERT.sub(".experts.", name), (".weight", ".bias")), []).append(name)
    tensors: dict[str, GGUFTensor] = {}
    for name in (name for name in header.tensors if name != ROPE_FACTORS):
        tensor, ours = _tensor(header, gguf, name), theirs.get(name, [name])
        tensor.check()
        numbers = [int(match[1]) for match in map(EXPERT.search, ours) if match]
        if not numbers:
            tensors[ours[0]] = tensor
        elif len(tensor.shape) != 3 or sorted(numbers) != [*range(tensor.shape[0])]:
            raise WeightMismatchError(
                f"{path}: {name}: shape {tensor.shape}, must be [{len(numbers)} experts, out, in]"
            )
        else:
            tensors |= {our: tensor.expert(number) for our, number in zip(ours, numbers, strict=True)}
    return tensors


def _tensor(header: GGUFHeader, gguf: Any, name: str) -> GGUFTensor:
    heads = header.get("{arch}.attention.head_count")
    of_layer = {"attn_q": heads, "attn_k": header.get("{arch}.attention.head_count_kv") or heads}
    llama = header.architecture == "llama"
    shifted = header.architecture == "gemma3" and name.endswith("norm.weight")  # there, 1 is added to the weights
    info = header.tensors[name]
    return GGUFTensor(
        header.path,
        replace(info, shape=[1, *info.shape]) if name.endswith(SHARED_GATE) and len(info.shape) == 1 else info,
        _kind(header, gguf, name),
        of_layer.get(name.rpartition(".")[0].rpartition(".")[2], 0) if llama else 0,
        -1.0 if shifted else 0.0,
    )


def _kind(header: GGUFHeader, gguf: Any, name: str) -> Any:
    number = header.tensors[name].kind
    try:
        return gguf.GGMLQuantizationType(number)
    except ValueError:
        raise UnsupportedModelError(
            f"{header.path}: {name} has the type {number}, which gguf {version('gguf')} does not know"
        ) from None


def decoded_dtype(path: Path) -> torch.dtype:
    """The dtype to which the tensors of the file `path` are decoded where none is asked for: that of its matrices, if they
    all have one, or else bfloat16."""
    header = read_header(path)
    gguf = import_gguf(path)
    kinds = {_kind(header, gguf, name).name for name, info in header.tensors.items() if len(info.shape) > 1}
    return FLOATS.get(kinds.pop(), torch.bfloat16) if len(kinds) == 1 else torch.bfloat16


def import_gguf(path: Path) -> Any:
    """The package gguf. UnsupportedModelError that says how to install it."""
    try:
        import gguf
    except ImportError as error:
        raise UnsupportedModelError(f"{path}: needs the package gguf: pip install 'nanoinfer[gguf]'") from error
    return gguf

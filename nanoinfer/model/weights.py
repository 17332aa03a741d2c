"""Loads parameters from a checkpoint's files, strictly: every tensor must be used and every parameter filled.

A checkpoint is what StoredTensors it has: those of safetensors files, found here, or those of a GGUF file (see gguf.py).
"""

import json
import logging
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from nanoinfer.errors import WeightMismatchError
from nanoinfer.model.layers.linear import FusedLinear, Linear
from nanoinfer.model.layers.linear_weights import FewBits
from nanoinfer.model.other_formats import INDEX, SINGLE, weight_files
from nanoinfer.model.quantized_checkpoint import checkpoint_format, join_parts
from nanoinfer.model.split import ShardSpec, shard_spec_of
from nanoinfer.requests.gguf_header import SUFFIX

logger = logging.getLogger("nanoinfer.model")

SHARD = re.compile(r"(.*-)(\d+)(-of-(\d+)\.safetensors)")
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


@dataclass(frozen=True)
class Target:
    """Where a checkpoint's tensor, or this process's `shard_spec` of it, goes: to rows `start..end` of a parameter. The
    tensor must have this `shape`."""

    parameter: torch.Tensor
    start: int
    end: int
    shard_spec: ShardSpec | None = None

    @property
    def shape(self) -> list[int]:
        own = [self.end - self.start, *self.parameter.shape[1:]]
        return own if self.shard_spec is None else self.shard_spec.whole_shape(own)

    def fill(self, stored: "StoredTensor") -> None:
        """Copy a tensor of a checkpoint to where it goes. Of a cut one, no more is read than is kept, if that can be."""
        rows = self.parameter[self.start : self.end]
        rows.copy_(stored.read() if self.shard_spec is None else self.shard_spec.of(stored.slices(), rows.ndim))


class StoredTensor(Protocol):
    """A tensor of a checkpoint. `dtype`: a name, as safetensors has them, of what `read` returns."""

    @property
    def file(self) -> Path: ...
    @property
    def shape(self) -> list[int]: ...
    @property
    def dtype(self) -> str: ...
    def read(self) -> torch.Tensor: ...
    def slices(self) -> Any:
        """What gives a part of the tensor when it is indexed."""
        ...

    def few_bits(self) -> FewBits | None:
        """What is stored, if a Linear can use it as it is."""
        ...


@dataclass(frozen=True)
class SafeTensor:
    """A StoredTensor of a safetensors file, where its name is `name`."""

    file: Path
    name: str
    shape: list[int]
    dtype: str

    def read(self) -> torch.Tensor:
        return _open(self.file).get_tensor(self.name)

    def slices(self) -> Any:
        return _open(self.file).get_slice(self.name)

    def few_bits(self) -> None:
        return None


def load_weights(model: nn.Module, path: str | Path, as_stored: bool = False) -> None:
    """Fill `model`'s parameters in place from the safetensors files in the directory `path`, or from the GGUF file `path`.

    A checkpoint of a base model (LlamaModel) names its tensors without `model.`. A tied model's one table may be stored as
    the embedding, as the head, or as both (see `has_own_head`). With `as_stored`, linear layers use matrices in few
    bits as they are, where they can.

    Raises FileNotFoundError if there are no such files, and WeightMismatchError naming every tensor that is missing,
    surplus or has another shape, or a damaged file. All names and shapes are checked before the first parameter is written.
    """
    targets = checkpoint_targets(model)
    where, problems = _stored_tensors(Path(path), targets)
    if HEAD not in targets and HEAD in where:
        where.setdefault(EMBEDDING, where.pop(HEAD))
    for name, stored in where.items():
        if name in targets:
            if stored.dtype not in ("F64", "F32", "F16", "BF16"):
                problems.append(f"{name}: {stored.dtype} numbers, must be floating-point")
            if stored.shape != targets[name].shape:
                problems.append(f"{name}: shape {stored.shape}, must be {targets[name].shape}")
        elif not name.endswith(".rotary_emb.inv_freq"):  # old checkpoints have these, needlessly
            problems.append(f"{name}: surplus, this model has no such parameter")
    missing = [name for name in targets if name not in where]
    problems += [f"{name}: missing" for name in missing]
    if missing == [HEAD]:
        problems.append("a base model, without its language-model head, cannot generate")
    if problems:
        shown = "; ".join(problems[:10]) + (f"; and {len(problems) - 10} more" if len(problems) > 10 else "")
        raise WeightMismatchError(f"{path}: {shown}")
    used = use_few_bits(model, where) if as_stored else set()
    matrices = {name for name, stored in where.items() if not isinstance(stored, SafeTensor) and len(stored.shape) > 1}
    if matrices:
        counts = len(matrices & used), len(matrices - used)
        logger.info("%s: %d matrices are used in few bits, as they are, and %d are decoded", path, *counts)
    for name, target in targets.items():
        if name not in used:
            target.fill(where[name])
    _open.cache_clear()


def use_few_bits(model: nn.Module, where: Mapping[str, StoredTensor]) -> set[str]:
    """Have each linear layer of `model` use its matrices in `where` as they are stored, if all of them are in few bits of
    one kind. Returns the names of those that need not be decoded then."""
    used, renamed = set[str](), getattr(model, "checkpoint_name", str)
    for path, module in model.named_modules():
        if isinstance(module, Linear) and module.weight is not None:
            parent = path.rpartition(".")[0]
            parts = module.parts if isinstance(module, FusedLinear) else {"": 0}
            names = [renamed(f"{f'{parent}.{part}' if part else path}.weight") for part in parts]
            stored = [(where.get(name) or where[EMBEDDING]).few_bits() for name in names]  # a tied head is not there
            makers = {id(few and few[0]) for few in stored}
            if len(makers) == 1 and stored[0] is not None:
                specs = [shard_spec_of(module, part) for part in parts]
                matrices = [_shard(few[1], spec) for few, spec in zip(stored, specs, strict=True) if few is not None]
                whole = {name: torch.cat([matrix[name] for matrix in matrices]) for name in matrices[0]}
                module.as_stored = partial(stored[0][0], **whole)
                used |= where.keys() & set(names)
    return used


def _shard(matrix: Mapping[str, torch.Tensor], shard_spec: ShardSpec | None) -> dict[str, torch.Tensor]:
    """This process's outputs of a matrix in few bits."""
    assert shard_spec is None or shard_spec.dim == 0, "groups of inputs are not cut"
    return {
        name: tensor if shard_spec is None else shard_spec.of(tensor, tensor.ndim) for name, tensor in matrix.items()
    }


def may_be_in_few_bits(path: Path) -> bool:
    """Whether a checkpoint is of a kind whose matrices may be stored in few bits."""
    return path.suffix == SUFFIX or checkpoint_format(path) is not None


def has_own_head(path: str | Path) -> bool:
    """Whether a checkpoint stores a head that differs from its embedding. As in transformers, these two are then not tied,
    whatever its config says."""
    where, _ = _stored_tensors(Path(path), (EMBEDDING, HEAD))
    return {EMBEDDING, HEAD} <= where.keys() and not torch.equal(where[HEAD].read(), where[EMBEDDING].read())


def resize_vocabulary(model: Any, size: int) -> None:
    """Have a loaded `model` serve `size` tokens, before it packs its weights. The last rows of embedding and head are
    dropped, or some are added: with the mean of the others, so that an added token is never the likeliest."""
    model.config = replace(model.config, vocab_size=size)
    model.lm_head.out_features = size
    for table in (model.model.embed_tokens, model.lm_head):
        rows = table.weight.data[:size]
        added = rows.mean(0, keepdim=True).expand(size - len(rows), -1)
        table.weight = nn.Parameter(torch.cat([rows, added]), requires_grad=False)
    if model.config.tie_word_embeddings:
        model.lm_head.weight = model.model.embed_tokens.weight


def checkpoint_targets(model: nn.Module) -> dict[str, Target]:
    """Every tensor name that a checkpoint of `model` must have. A fused parameter has one name for each of its parts."""
    targets = {}
    names = {name for name, _ in model.named_parameters()}  # a tied head is not listed a second time
    for module_name, module in model.named_modules():
        for name, parameter in module.named_parameters(prefix=module_name, recurse=False):
            if name not in names:
                continue
            if not isinstance(module, FusedLinear):
                targets[name] = Target(parameter.data, 0, len(parameter), shard_spec_of(module, ""))
                continue
            parent, kind, start = module_name.rpartition(".")[0], name.rpartition(".")[2], 0
            for part, size in module.parts.items():
                rows = start, start + size
                targets[f"{parent}.{part}.{kind}"] = Target(parameter.data, *rows, shard_spec_of(module, part))
                start += size
    renamed = getattr(model, "checkpoint_name", str)
    return {renamed(name): target for name, target in targets.items()}


def _stored_tensors(path: Path, names: Collection[str]) -> tuple[dict[str, StoredTensor], list[str]]:
    """What the checkpoint stores, by the names that a model with parameters `names` has for it; and what is there twice."""
    if path.suffix == SUFFIX:
        from nanoinfer.model.gguf import gguf_tensors

        return dict(gguf_tensors(path, names)), []
    where: dict[str, StoredTensor] = {}
    problems = []
    _open.cache_clear()  # a file may have been written anew
    for file in _checkpoint_files(path):
        tensors = _open(file)
        for name in tensors.keys():  # noqa: SIM118 (safe_open is not a mapping)
            whole = f"model.{name}"
            known_as = whole if whole in names and name not in names else name
            if known_as in where:
                problems.append(f"{known_as}: in both {where[known_as].file.name} and {file.name}")
            stored = tensors.get_slice(name)
            where[known_as] = SafeTensor(file, name, stored.get_shape(), stored.get_dtype())
    quantized = checkpoint_format(path)
    return where if quantized is None else join_parts(where, quantized, names), problems


def _checkpoint_files(path: Path) -> list[Path]:
    index, names = path / INDEX, [file.name for file in weight_files(path)]
    if SINGLE in names:
        names = [SINGLE]
    elif index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
            raise WeightMismatchError(f"{index}: has no weight_map from tensors to files") from error
    else:
        names = _all_shards(names) or [SINGLE]
    elsewhere = [name for name in names if Path(name).name != name]
    if elsewhere:
        raise WeightMismatchError(f"{index}: file {elsewhere[0]!r} must be in the same folder")
    missing = [name for name in names if not (path / name).is_file()]
    if missing:
        raise FileNotFoundError(f"{path}: no {', '.join(missing)} there; only safetensors checkpoints are supported")
    return [path / name for name in names]


def _all_shards(names: list[str]) -> list[str]:
    """`names`, and those of shards that are not among them, but that others count: model-00001-of-00002.safetensors."""
    shards = set(names)
    for first, number, last, count in (match.groups() for match in map(SHARD.fullmatch, names) if match):
        shards |= {f"{first}{i:0{len(number)}}{last}" for i in range(1, int(count) + 1)}
    return sorted(shards)


def checkpoint_dtype(path: str | Path) -> torch.dtype:
    """The dtype of the first tensor that is not quantized in the directory `path`, for configs that do not name one; of a
    GGUF file, the one to which its tensors are decoded."""
    if Path(path).suffix == SUFFIX:
        from nanoinfer.model.gguf import decoded_dtype

        return decoded_dtype(Path(path))
    _open.cache_clear()  # the file may have been written anew
    tensors = _open(_checkpoint_files(Path(path))[0])
    dtypes = (tensors.get_tensor(name).dtype for name in tensors.keys())  # noqa: SIM118
    return next((dtype for dtype in dtypes if dtype.is_floating_point and dtype.itemsize > 1), torch.bfloat16)


@lru_cache(maxsize=1)  # one at a time: what has been read of an open file counts as this process's memory
def _open(file: Path) -> safe_open:
    try:
        return safe_open(file, framework="pt")
    except SafetensorError as error:
        raise WeightMismatchError(f"{file}: is not a complete safetensors file: {error}") from error

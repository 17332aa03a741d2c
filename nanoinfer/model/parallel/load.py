"""Rank 0 loads a model that is split: it starts the other ranks, and all load their shares at the same time."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from nanoinfer.cache.kv_storage import kv_storage_kind
from nanoinfer.config import EngineConfig
from nanoinfer.device import resolve_device
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.families import find_family
from nanoinfer.model.kernels.select import check_name
from nanoinfer.model.loader import LoadedModel, check_model_impl, load_model, resolve_model_path
from nanoinfer.model.parallel.communicator import Communicator
from nanoinfer.model.parallel.layers import install
from nanoinfer.model.parallel.messages import Message
from nanoinfer.model.parallel.ranks import Ranks
from nanoinfer.model.parallel.shard import Shard
from nanoinfer.registry import ATTENTION_BACKENDS, QUANTIZATIONS


class ModelShare:
    """The share of this rank, whose layers use `communicator`. `ranks`: in rank 0, all others."""

    def __init__(self, communicator: Communicator, ranks: "Ranks | None" = None):
        self.communicator, self.ranks = communicator, ranks

    @property
    def size(self) -> int:
        """As in ModelSplit."""
        return self.communicator.shard.size

    @property
    def leads(self) -> bool:
        """As in ModelSplit."""
        return self.communicator.shard.rank == 0

    def own_config(self, config: ModelConfig) -> ModelConfig:
        """As in ModelSplit."""
        return self.communicator.shard.own_config(config)

    def install(self, network: Any, config: ModelConfig, quantized: bool) -> None:
        """As in ModelSplit."""
        install(network, config, quantized, self.communicator)


def device_of(kind: str, rank: int) -> str:
    """The device of a rank: each has one of its own, except that the CPU is shared."""
    return kind if kind == "cpu" else f"{kind}:{rank}"


def check_options(size: int, config: EngineConfig, quantization: str | None, model_impl: str = "auto") -> None:
    """ValueError for what cannot be had together with a split model. Nothing else is refused because of it, except families
    from outside the package (see `load_split_model`)."""
    check_model_impl(model_impl)
    if model_impl == "transformers":
        raise ValueError(f"model_impl='transformers': must be 'auto' or 'nanoinfer' with tensor_parallel_size={size}")
    if config.capture is True:
        raise ValueError(
            f"capture=True: passes cannot be recorded with tensor_parallel_size={size}; use 'auto' or False"
        )
    for field in ("host_cache_tokens", "cache_dir"):
        if getattr(config, field) is not None:
            raise ValueError(f"{field}={getattr(config, field)!r}: must be None with tensor_parallel_size={size}")
    QUANTIZATIONS.check(quantization)
    for option, name, chosen in (
        ("quantization", quantization, QUANTIZATIONS[quantization]),
        ("kv_cache_dtype", config.kv_cache_dtype, kv_storage_kind(config.kv_cache_dtype)),
        ("attention_backend", config.attention_backend, ATTENTION_BACKENDS[config.attention_backend]),
    ):
        _check_inside(size, f"{option}={name!r}", chosen)


def _check_inside(size: int, what: str, chosen: Any) -> None:
    if not chosen.__module__.startswith("nanoinfer."):
        raise ValueError(
            f"{what}: with tensor_parallel_size={size}, must be of the package, not of {chosen.__module__}"
        )


def load_split_model(
    size: int,
    model: str | Path,
    dtype: str | torch.dtype | None,
    device: str | torch.device,
    max_context_len: int | None,
    kernels: str,
    quantization: str | None,
    generation_config: str | None = "auto",
) -> LoadedModel:
    """Rank 0's share of a model over `size` ranks, whose `split.ranks` are running. Arguments and errors as in
    `load_model`; ValueError if the model cannot be split so, RankError if another rank ends. No process is left then."""
    check_name(kernels)
    path = resolve_model_path(model).absolute()
    config = ModelConfig.from_pretrained(path)
    Shard(0, size).own_config(config)  # before processes are started
    family = find_family(config.architecture)
    _check_inside(size, f"architecture {config.architecture}", family)
    if not family.can_be_split:
        raise ValueError(f"tensor_parallel_size={size}: must be 1, {config.architecture} cannot be split")
    resolved = resolve_device(device)
    if resolved.index is not None:
        raise ValueError(
            f"device={device!r}: must have no index with tensor_parallel_size={size}: ranks take devices 0 to {size - 1}"
        )
    options: dict[str, Any] = {
        "dtype": str(dtype).removeprefix("torch.") if isinstance(dtype, torch.dtype) else dtype,
        "max_context_len": max_context_len,
        "kernels": kernels,
        "quantization": quantization,
        "generation_config": generation_config,
        "model_impl": "nanoinfer",
    }
    ranks = Ranks.start(size)
    values = {"model": str(path), "device": resolved.type, "threads": ranks.threads, **options}
    try:
        with ranks.doing(Message("load", values)):
            share = ModelShare(ranks.communicator, ranks)
            loaded = load_model(path, device=device_of(resolved.type, 0), split=share, **options)
            ranks.communicator.barrier()
    except BaseException:
        ranks.close()
        raise
    return replace(loaded, name=str(model))

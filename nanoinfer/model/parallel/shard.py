"""Shard: which of several equal processes this one is; and which part of each of a checkpoint's tensors it has.

A weight is [out, in]. A column split cuts the outputs, dimension 0, and a row split cuts the inputs, dimension 1. (The
names are Megatron's, where a weight is [in, out].) Norms are whole in every rank.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from nanoinfer.model.config import ModelConfig
from nanoinfer.model.split import ShardSpec

Range = tuple[int, int]  # start, end


@dataclass(frozen=True)
class Shard:
    """Rank `rank` of `size`."""

    rank: int
    size: int

    def part(self, total: int) -> Range:
        """This rank's range of `total` things. The ranks' ranges are one behind the other, and differ by at most one."""
        return total * self.rank // self.size, total * (self.rank + 1) // self.size

    def parts(self, total: int) -> list[int]:
        """How many of `total` things each rank has."""
        bounds = [Shard(rank, self.size).part(total) for rank in range(self.size)]
        return [end - start for start, end in bounds]

    def kv_heads(self, num_kv_heads: int) -> Range:
        """This rank's key/value heads. With fewer of them than ranks, several ranks have the same one."""
        if num_kv_heads >= self.size:
            return self.part(num_kv_heads)
        first = self.rank * num_kv_heads // self.size
        return first, first + 1

    def own_config(self, config: ModelConfig) -> ModelConfig:
        """The configuration of this rank's share: fewer heads, and a narrower MLP. ValueError if there is no such share.

        A rank's query heads must have the same number of key/value heads each, as all heads of the model have.
        """
        heads, kv_heads, size = config.num_attention_heads, config.num_key_value_heads, self.size
        name = f"tensor_parallel_size={size}"
        if heads % size:
            raise ValueError(f"{name}: must divide the model's {heads} query heads")
        if kv_heads % size and size % kv_heads:
            raise ValueError(f"{name}: must divide the model's {kv_heads} key/value heads, or be a multiple of them")
        for field, total in (("intermediate_size", config.intermediate_size), ("vocab_size", config.vocab_size)):
            if total < size:
                raise ValueError(f"{name}: must be at most {field}={total}")
        start, end = self.kv_heads(kv_heads)
        return replace(
            config,
            num_attention_heads=heads // size,
            num_key_value_heads=end - start,
            intermediate_size=self.parts(config.intermediate_size)[self.rank],
        )


def shard_specs_of(shard: Shard, config: ModelConfig, quantized: bool = False) -> dict[str, ShardSpec]:
    """The ShardSpec of every projection that is cut, by its name in checkpoints, for a model of `config`. Fused ones
    (Phi-3's) are cut part by part: a rank's q, k and v are not side by side in the file.

    Quantized weights are cut by their outputs only (see GatheredLinear)."""
    dim, heads, kv_heads = config.head_dim, config.num_attention_heads, config.num_key_value_heads
    q = _times(shard.part(heads), dim)
    kv = _times(shard.kv_heads(kv_heads), dim)
    mlp, vocabulary = shard.part(config.intermediate_size), shard.part(config.vocab_size)
    q_size, kv_size, mlp_size = heads * dim, kv_heads * dim, config.intermediate_size
    qkv = (q, _behind(q_size, kv), _behind(q_size + kv_size, kv))
    outputs = ShardSpec(0, (shard.part(config.hidden_size),), config.hidden_size)
    return {
        "q_proj": ShardSpec(0, (q,), q_size),
        "k_proj": ShardSpec(0, (kv,), kv_size),
        "v_proj": ShardSpec(0, (kv,), kv_size),
        "qkv_proj": ShardSpec(0, qkv, q_size + 2 * kv_size),
        "gate_proj": ShardSpec(0, (mlp,), mlp_size),
        "up_proj": ShardSpec(0, (mlp,), mlp_size),
        "gate_up_proj": ShardSpec(0, (mlp, _behind(mlp_size, mlp)), 2 * mlp_size),
        "o_proj": outputs if quantized else ShardSpec(1, (q,), q_size),
        "down_proj": outputs if quantized else ShardSpec(1, (mlp,), mlp_size),
        "embed_tokens": ShardSpec(0, (vocabulary,), config.vocab_size),
        "lm_head": ShardSpec(0, (vocabulary,), config.vocab_size),
    }


def input_widths(shard: Shard, config: ModelConfig) -> dict[str, list[int]]:
    """How many of its inputs each rank computes, for every projection whose inputs are split."""
    heads = shard.parts(config.num_attention_heads)
    return {"o_proj": [count * config.head_dim for count in heads], "down_proj": shard.parts(config.intermediate_size)}


def _times(part: Range, factor: int) -> Range:
    return part[0] * factor, part[1] * factor


def _behind(offset: int, part: Range) -> Range:
    return offset + part[0], offset + part[1]


VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def torchrun_rank(environment: Mapping[str, str] = os.environ) -> Shard | None:
    """Which rank of how many this process is; None if torchrun has not started it, or it is the only one."""
    if any(name not in environment for name in VARIABLES):
        return None
    shard = Shard(int(environment["RANK"]), int(environment["WORLD_SIZE"]))
    return shard if shard.size > 1 else None

"""Which part of each of a checkpoint's tensors a rank has, by the name of the projection.

A weight is [out, in]. A column split cuts the outputs, dimension 0, and a row split cuts the inputs, dimension 1. (The
names are Megatron's, where a weight is [in, out].) Norms are whole in every rank.
"""

from nanoinfer.model.config import ModelConfig
from nanoinfer.model.split import Cut
from nanoinfer.parallel.shard import Range, Shard

# Kinds of quantized weights in which so many neighbouring inputs share a scale. Such a group is quantized as a whole, even
# if a rank needs a part of it, so that its numbers are those of a single process.
GROUPS = {"int4": 32}


def cuts_of(shard: Shard, config: ModelConfig, quantization: str | None = None) -> dict[str, Cut]:
    """The Cut of every projection that is cut, by its name in checkpoints, for a model of `config`. Fused ones (Phi-3's)
    are cut part by part: a rank's q, k and v are not side by side in the file."""
    dim, heads, kv_heads = config.head_dim, config.num_attention_heads, config.num_key_value_heads
    q = _times(shard.part(heads), dim)
    kv = _times(shard.kv_heads(kv_heads), dim)
    mlp, vocabulary = shard.part(config.intermediate_size), shard.part(config.vocab_size)
    q_size, kv_size, mlp_size = heads * dim, kv_heads * dim, config.intermediate_size
    qkv = (q, _behind(q_size, kv), _behind(q_size + kv_size, kv))
    group = GROUPS.get(quantization or "", 1)
    return {
        "q_proj": Cut(0, (q,), q_size),
        "k_proj": Cut(0, (kv,), kv_size),
        "v_proj": Cut(0, (kv,), kv_size),
        "qkv_proj": Cut(0, qkv, q_size + 2 * kv_size),
        "gate_proj": Cut(0, (mlp,), mlp_size),
        "up_proj": Cut(0, (mlp,), mlp_size),
        "gate_up_proj": Cut(0, (mlp, _behind(mlp_size, mlp)), 2 * mlp_size),
        "o_proj": Cut(1, (_widened(q, group, q_size),), q_size),
        "down_proj": Cut(1, (_widened(mlp, group, mlp_size),), mlp_size),
        "embed_tokens": Cut(0, (vocabulary,), config.vocab_size),
        "lm_head": Cut(0, (vocabulary,), config.vocab_size),
    }


def row_inputs(shard: Shard, config: ModelConfig) -> dict[str, Range]:
    """The inputs that a rank computes for each row-split projection. Its Cut may begin earlier and end later."""
    return {
        "o_proj": _times(shard.part(config.num_attention_heads), config.head_dim),
        "down_proj": shard.part(config.intermediate_size),
    }


def _times(part: Range, factor: int) -> Range:
    return part[0] * factor, part[1] * factor


def _behind(offset: int, part: Range) -> Range:
    return offset + part[0], offset + part[1]


def _widened(part: Range, group: int, total: int) -> Range:
    """The smallest range of whole groups that contains `part`."""
    return part[0] // group * group, min(-(-part[1] // group) * group, total)

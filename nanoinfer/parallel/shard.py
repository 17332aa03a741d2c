"""Shard: which of several equal processes this one is, and which part of a number of things it has."""

from dataclasses import dataclass, replace

from nanoinfer.model.config import ModelConfig

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

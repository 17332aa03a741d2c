"""The same on an H100 with an 8B model: what a pass must at least take, by data sheets and arithmetic.

A pass reads all weights and the K/V of its requests once, and multiplies every weight by every token. It takes at least the
longer of the two. Schedulers, launches, and kernels that stay below the peak come on top.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """`memory` in bytes, `bandwidth` in bytes per second, `compute` in floating-point operations per second."""

    name: str
    memory: float
    bandwidth: float
    compute: float


@dataclass(frozen=True)
class ModelShape:
    """What counts for memory and time. `value_bytes`: of one weight and of one value of K/V."""

    name: str
    parameters: float
    num_layers: int
    num_kv_heads: int
    head_dim: int
    value_bytes: int = 2

    @property
    def weight_bytes(self) -> float:
        return self.parameters * self.value_bytes

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.value_bytes

    def pass_seconds(self, device: Device, tokens: float, context: float = 0) -> float:
        """A pass of `tokens` new tokens in all, whose attention reads the K/V of `context` tokens in all."""
        read = self.weight_bytes + context * self.kv_bytes_per_token
        return max(read / device.bandwidth, 2 * self.parameters * tokens / device.compute)


H100 = Device("H100 SXM", 80e9, 3.35e12, 989e12)  # NVIDIA's data sheet; compute in bfloat16 without sparsity
LLAMA_8B = ModelShape("Llama 3.1 8B", 8.03e9, 32, 8, 128)

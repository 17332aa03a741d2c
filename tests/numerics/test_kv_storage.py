"""A storage of K/V that is registered from outside serves an engine; the plain one is what it always was."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from nanoinfer import LLM, SamplingParams
from nanoinfer.cache.kv_storage import KVStorage, PlainKVStorage, lazy_zeros
from nanoinfer.cache.memory_pool import TokenToKVPool
from nanoinfer.config import EngineConfig
from nanoinfer.errors import KernelsUnavailableError
from nanoinfer.model.attention import TorchNativeBackend, select_attention_backend
from nanoinfer.model.attention.base import ENCODED_KV
from nanoinfer.paged import GeneratorTorch
from nanoinfer.registry import KV_STORAGES
from tests.helpers.kernels import CPU, need_cpp

PROMPTS = ["Once upon a time", "Once upon a time, there was a dog", "The cat", "One day, Tom and his mom"]
GREEDY = SamplingParams(max_new_tokens=12, temperature=0, ignore_eos=True)
Slots = torch.Tensor | slice


def quantized(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`x` [T, Hk, D] as int8 with a scale per token and head."""
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-8) / 127
    return (x / scale).round().to(torch.int8), scale


class Int8Storage(KVStorage):
    """K and V as int8, with a float32 scale per token and head."""

    def __init__(
        self, size: int, dtype: torch.dtype, head_num: int, head_dim: int, layer_num: int, device: torch.device
    ):
        self.dtype = dtype
        self.numbers = [lazy_zeros((2, size, head_num, head_dim), torch.int8, device) for _ in range(layer_num)]
        self.scales = [lazy_zeros((2, size, head_num, 1), torch.float32, device) for _ in range(layer_num)]

    @staticmethod
    def bytes_per_token(dtype: torch.dtype, head_num: int, head_dim: int, layer_num: int) -> int:
        return 2 * layer_num * head_num * (head_dim + 4)

    def write(self, layer_id: int, slots: Slots, keys: torch.Tensor, values: torch.Tensor) -> None:
        for kind, x in enumerate((keys, values)):
            self.numbers[layer_id][kind, slots], self.scales[layer_id][kind, slots] = quantized(x)

    def read(self, layer_id: int, slots: Slots) -> tuple[torch.Tensor, torch.Tensor]:
        kv = self.numbers[layer_id][:, slots] * self.scales[layer_id][:, slots]
        return kv[0].to(self.dtype), kv[1].to(self.dtype)


class RoundedStorage(PlainKVStorage):
    """The oracle: plain buffers with the numbers that Int8Storage would give back."""

    def write(self, layer_id: int, slots: Slots, keys: torch.Tensor, values: torch.Tensor) -> None:
        rounded = [numbers * scale for numbers, scale in (quantized(keys), quantized(values))]
        super().write(layer_id, slots, rounded[0], rounded[1])


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    KV_STORAGES.update(int8_test=Int8Storage, rounded_test=RoundedStorage)
    yield
    del KV_STORAGES["int8_test"], KV_STORAGES["rounded_test"]


def served(kv_cache_dtype: str | None, **options: object) -> tuple[LLM, list[list[int]]]:
    """An engine with little room, so that K/V is shared, evicted and computed again, and what it completes."""
    options = {"max_running_requests": 3, "max_total_tokens": 64, "kv_cache_dtype": kv_cache_dtype, **options}
    llm = LLM("story", dtype="float32", **options)  # type: ignore[arg-type]
    outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    llm.engine.check_integrity()
    return llm, [output.token_ids for output in outputs]


@pytest.mark.parametrize("options", [{}, {"page_size": 4}, {"disable_radix_cache": True}, {"chunked_prefill_size": 4}])
def test_a_storage_from_outside_serves_an_engine(options: dict[str, object]) -> None:
    llm, tokens = served("int8_test", **options)
    pool = llm.engine.model_runner.token_to_kv_pool
    assert isinstance(pool.kv_storage, Int8Storage)
    assert llm.config.kv_cache_dtype == "int8_test"
    assert pool.kv_storage.numbers[0].any()
    _, expected = served("rounded_test", attention_backend="torch_native")
    assert tokens == expected


def test_plain_is_the_name_of_the_default() -> None:
    llm, tokens = served("plain")
    assert type(llm.engine.model_runner.token_to_kv_pool.kv_storage) is PlainKVStorage
    assert tokens == served(None)[1]


def test_what_is_written_to_the_plain_storage_is_read_bit_for_bit() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        pool = TokenToKVPool(16, dtype, 2, 8, 3)
        keys, values = torch.randn(2, 4, 2, 8).to(dtype)
        slots = torch.tensor([[9, 1], [4, 12]])
        pool.set_kv_buffer(2, slots.flatten(), keys, values)
        read = pool.read(2, slots)
        assert torch.equal(read[0], keys.view(2, 2, 2, 8))
        assert torch.equal(read[1], values.view(2, 2, 2, 8))
        assert torch.equal(pool.read(2, slice(4, 5))[0], keys[2:3])
        assert torch.equal(pool.get_key_buffer(2)[slots], read[0])
        assert not pool.read(0, slots)[0].any()


def test_the_pool_is_as_large_as_the_storage_lets_memory_hold(monkeypatch: pytest.MonkeyPatch, story: LLM) -> None:
    plain, small = story.model.kv_bytes_per_token(), story.model.kv_bytes_per_token("int8_test")
    assert plain == story.model.config.kv_bytes_per_token(story.model.dtype)
    assert small < plain
    monkeypatch.setattr("nanoinfer.frontends.llm.memory_for_kv", lambda device, share: 100 * small)
    assert LLM("story", kv_cache_dtype="int8_test").config.max_total_tokens == 100
    assert LLM("story").config.max_total_tokens == 100 * small // plain


def test_without_plain_buffers_auto_attends_in_torch_and_cpp_is_refused() -> None:
    assert isinstance(select_attention_backend("auto", torch.float32, CPU, {ENCODED_KV}), TorchNativeBackend)
    need_cpp("float32")
    with pytest.raises(KernelsUnavailableError, match=r"attention_backend='cpp'.*kv_cache_dtype"):
        LLM("story", kv_cache_dtype="int8_test", attention_backend="cpp")


def test_a_storage_without_plain_buffers_shows_none(story: LLM) -> None:
    pool = story.model.new_kv_pool(16, 4, "int8_test")
    for show in (pool.get_key_buffer, pool.get_value_buffer):
        with pytest.raises(ValueError, match=r"Int8Storage.*no plain buffers"):
            show(0)
    with pytest.raises(ValueError, match="no plain buffers"):
        GeneratorTorch(story.model).pool_as_blocks(pool)


@pytest.mark.parametrize("name", ["fp3", 8, ["plain"]])
def test_an_unknown_storage_is_refused_before_anything_is_loaded(name: object) -> None:
    with pytest.raises(ValueError, match=r"kv_cache_dtype=.*plain"):
        LLM("no/such-model", kv_cache_dtype=name)
    with pytest.raises(ValueError, match=r"kv_cache_dtype=.*plain"):
        EngineConfig(1, 16, 16, kv_cache_dtype=name)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"kv_cache_dtype=.*plain"):
        TokenToKVPool(16, torch.float32, 1, 1, 1, kv_cache_dtype=name)  # type: ignore[arg-type]


class HalfBuffers(PlainKVStorage):
    """Wrong: it says that its buffers are plain, and they are not of the model's dtype."""

    def __init__(self, size: int, dtype: torch.dtype, *shape: Any):
        super().__init__(size, torch.float16, *shape)


class HalfRead(Int8Storage):
    """Wrong: it gives K/V in another dtype than the model's."""

    def read(self, layer_id: int, slots: Slots) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = super().read(layer_id, slots)
        return keys.half(), values.half()


class FewerHeads(Int8Storage):
    """Wrong: one head is missing."""

    def read(self, layer_id: int, slots: Slots) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = super().read(layer_id, slots)
        return keys[..., 1:, :], values[..., 1:, :]


@pytest.mark.parametrize("backend", ["auto", "torch_native"])
@pytest.mark.parametrize(
    ("storage", "message"),
    [
        (HalfBuffers, r"HalfBuffers: .* is torch.float16 .*, must be torch.float32"),
        (HalfRead, r"HalfRead: read is torch.float16 .*, must be torch.float32"),
        (FewerHeads, r"FewerHeads: read is torch.float32 \[1, 1, .*, must be torch.float32 \[1, 2,"),
    ],
)
def test_a_storage_that_gives_something_else_is_refused_when_the_pool_is_made(
    storage: type[KVStorage], message: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel would read memory that is not there, or numbers that mean something else."""
    monkeypatch.setitem(KV_STORAGES, "wrong", storage)
    with pytest.raises(ValueError, match=message):
        LLM("story", dtype="float32", kv_cache_dtype="wrong", attention_backend=backend)

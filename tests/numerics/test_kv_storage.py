"""How K/V is stored: a storage that is registered from outside serves an engine, and kv_cache_dtype="int8" takes half of
the memory and gives the same bits however requests are batched, chunked, retracted and cached."""

from typing import Any

import pytest
import torch

from nanoinfer import LLM, SamplingParams
from nanoinfer.ascend import GeneratorTorch
from nanoinfer.cache.kv_storage import Int8KVStorage, KVStorage, PlainKVStorage, lazy_zeros
from nanoinfer.cache.memory_pool import TokenToKVPool
from nanoinfer.errors import KernelsUnavailableError
from nanoinfer.model.attention import TorchNativeBackend, select_attention_backend
from nanoinfer.model.attention.base import ENCODED_KV, AttentionLayer
from nanoinfer.model.attention.cpp import CppAttention
from nanoinfer.model.input_metadata import InputMetadata
from nanoinfer.model.kernels.select import selection_of
from nanoinfer.registry import ATTENTION_BACKENDS, KV_STORAGES
from tests.helpers.kernels import CPU, need_cpp

PROMPTS = ["Once upon a time", "Once upon a time, there was a dog", "The cat", "One day, Tom and his mom"]
GREEDY = SamplingParams(max_new_tokens=12, temperature=0, ignore_eos=True)
Slots = torch.Tensor | slice


class NegatedStorage(KVStorage):
    """K and V with the other sign: read as plain buffers, they would give other tokens."""

    def __init__(
        self, size: int, dtype: torch.dtype, head_num: int, head_dim: int, layer_num: int, device: torch.device
    ):
        self.negated = [lazy_zeros((2, size, head_num, head_dim), dtype, device) for _ in range(layer_num)]

    @staticmethod
    def bytes_per_token(dtype: torch.dtype, head_num: int, head_dim: int, layer_num: int) -> int:
        return 2 * layer_num * head_num * head_dim * dtype.itemsize

    def write(self, layer_id: int, slots: Slots, keys: torch.Tensor, values: torch.Tensor) -> None:
        self.negated[layer_id][:, slots] = -torch.stack((keys, values))

    def read(self, layer_id: int, slots: Slots) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = -self.negated[layer_id][:, slots]
        return keys, values


class RoundedInt8(PlainKVStorage):
    """The oracle of int8: plain buffers with the numbers that Int8KVStorage gives back."""

    def __init__(self, size: int, dtype: torch.dtype, *shape: Any):
        super().__init__(size, dtype, *shape)
        self._make = lambda num: Int8KVStorage(num, dtype, *shape)

    def write(self, layer_id: int, slots: Slots, keys: torch.Tensor, values: torch.Tensor) -> None:
        rounded, every = self._make(len(keys)), slice(0, len(keys))
        rounded.write(layer_id, every, keys, values)
        super().write(layer_id, slots, *rounded.read(layer_id, every))


class ThroughWrite(CppAttention):
    """The kernel, but K/V is stored by the storage's `write`."""

    def store(self, k: torch.Tensor, v: torch.Tensor, layer: AttentionLayer, metadata: InputMetadata) -> None:
        metadata.token_to_kv_pool.set_kv_buffer(layer.layer_id, metadata.out_cache_index, k, v)


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KV_STORAGES, "negated", NegatedStorage)
    monkeypatch.setitem(KV_STORAGES, "rounded", RoundedInt8)
    monkeypatch.setitem(ATTENTION_BACKENDS, "through_write", lambda dtype, device: ThroughWrite(dtype))


def served(kv_cache_dtype: str | None, **options: object) -> tuple[LLM, list[list[int]]]:
    """An engine with little room, so that K/V is shared, evicted and computed again, and what it completes."""
    options = {"max_running_requests": 3, "max_total_tokens": 64, "kv_cache_dtype": kv_cache_dtype, **options}
    llm = LLM("story", dtype="float32", **options)  # type: ignore[arg-type]
    outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    llm.engine.check_integrity()
    return llm, [output.token_ids for output in outputs]


@pytest.mark.parametrize("options", [{}, {"page_size": 4}, {"disable_radix_cache": True}, {"chunked_prefill_size": 4}])
def test_a_storage_from_outside_serves_an_engine(options: dict[str, object]) -> None:
    llm, tokens = served("negated", **options)
    storage = llm.engine.model_runner.token_to_kv_pool.kv_storage
    assert isinstance(storage, NegatedStorage)
    assert llm.config.kv_cache_dtype == "negated"
    assert storage.negated[0].any()
    assert tokens == served(None, attention_backend="torch_native")[1]


def test_the_pool_is_as_large_as_the_storage_lets_memory_hold(monkeypatch: pytest.MonkeyPatch, story: LLM) -> None:
    plain, small = story.model.kv_bytes_per_token(), story.model.kv_bytes_per_token("int8")
    assert plain == story.model.config.kv_bytes_per_token(story.model.dtype)
    assert small < plain
    monkeypatch.setattr("nanoinfer.llm.memory_for_kv", lambda device, share: 100 * small)
    assert LLM("story", kv_cache_dtype="int8").config.max_total_tokens == 100
    assert LLM("story").config.max_total_tokens == 100 * small // plain


def test_without_plain_buffers_auto_attends_in_torch_and_cpp_is_refused() -> None:
    assert isinstance(select_attention_backend("auto", torch.float32, CPU, {ENCODED_KV}), TorchNativeBackend)
    need_cpp("float32")
    with pytest.raises(KernelsUnavailableError, match=r"attention_backend='cpp'.*kv_cache_dtype"):
        LLM("story", kv_cache_dtype="negated", attention_backend="cpp")


def test_a_storage_without_plain_buffers_shows_none(story: LLM) -> None:
    pool = story.model.new_kv_pool(16, 4, "negated")
    for show in (pool.get_key_buffer, pool.get_value_buffer):
        with pytest.raises(ValueError, match=r"NegatedStorage.*no plain buffers"):
            show(0)
    with pytest.raises(ValueError, match="no plain buffers"):
        GeneratorTorch(story.model).pool_as_blocks(pool)


DTYPES = ("float32", "bfloat16")
PARAMS = SamplingParams(max_new_tokens=12, temperature=0, ignore_eos=True, logprobs=2)


@pytest.fixture(params=DTYPES)
def dtype(request: pytest.FixtureRequest) -> str:
    need_cpp(request.param)
    return str(request.param)


def engine(dtype: str, **options: object) -> LLM:
    """Little room, so that K/V is shared, evicted and computed again."""
    options = {"max_running_requests": 3, "max_total_tokens": 64, "kv_cache_dtype": "int8", **options}
    return LLM("story", dtype=dtype, **options)  # type: ignore[arg-type]


def results(llm: LLM) -> list[Any]:
    outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    llm.engine.check_integrity()
    return [(output.token_ids, output.logprobs) for output in outputs]


def test_auto_attends_in_cpp_and_gives_the_bits_of_the_rounded_numbers(dtype: str) -> None:
    llm = engine(dtype)
    assert selection_of(llm.engine.model_runner.attention_backend).name == "cpp"
    assert isinstance(llm.engine.model_runner.token_to_kv_pool.kv_storage, Int8KVStorage)
    assert results(llm) == results(engine(dtype, kv_cache_dtype="rounded", attention_backend="through_write"))
    assert results(llm) == results(engine(dtype, attention_backend="through_write")), (
        "the kernel stores what `write` does"
    )
    assert results(engine(dtype)) != results(engine(dtype, kv_cache_dtype="plain"))


@pytest.mark.parametrize(
    "options",
    [
        {"page_size": 4},
        {"chunked_prefill_size": 4},
        {"disable_radix_cache": True},
        {"max_running_requests": 1},
        {"capture": False},
        {"num_scheduler_steps": 3},
        {"max_total_tokens": 512, "max_running_requests": 4},
    ],
    ids=str,
)
def test_bits_do_not_depend_on_pages_chunks_cache_and_company(dtype: str, options: dict[str, object]) -> None:
    llm = engine(dtype, **options)
    cold = results(llm)
    assert cold == results(engine(dtype))
    assert results(llm) == cold, "from a warm cache"
    alone = engine(dtype)
    for prompt, result in zip(PROMPTS, cold, strict=True):
        (output,) = alone.generate(prompt, PARAMS, use_tqdm=False)
        assert (output.token_ids, output.logprobs) == result
        alone.engine.flush_cache()


def test_a_retracted_request_gets_the_same_bits(dtype: str) -> None:
    params = SamplingParams(max_new_tokens=30, temperature=0, ignore_eos=True, logprobs=2)
    roomy, tight = (
        LLM("story", dtype=dtype, kv_cache_dtype="int8", max_total_tokens=size, max_running_requests=4, **optimistic)
        for size, optimistic in ((512, {}), (80, {"schedule_conservativeness": 0.001}))  # type: dict[str, Any]
    )
    wanted, got = (
        [(out.token_ids, out.logprobs) for out in llm.generate(PROMPTS, params, use_tqdm=False)]
        for llm in (roomy, tight)
    )
    assert tight.engine.stats().retractions > 0
    assert got == wanted


def test_numbers_are_rounded_to_the_nearest_of_255() -> None:
    storage = Int8KVStorage(4, torch.float32, 1, 4, 1, CPU)
    keys = torch.tensor([[[127.0, 0.5, 1.5, -2.5]], [[-254.0, 3.0, 1.0, 0.0]], [[0.0, 0.0, 0.0, 0.0]]])
    storage.write(0, slice(1, 4), keys, keys / 4)
    assert storage.key_numbers[0][1:, 0].tolist() == [[127, 0, 2, -2], [-127, 2, 0, 0], [0, 0, 0, 0]]
    assert storage.key_scales[0][:, 0].tolist() == [0.0, 1.0, 2.0, 0.0]
    read_keys, read_values = storage.read(0, torch.tensor([3, 2]))
    assert read_keys[:, 0].tolist() == [[0, 0, 0, 0], [-254, 4, 0, 0]]
    assert torch.equal(read_values, read_keys / 4)


def test_the_same_memory_holds_nearly_twice_the_tokens() -> None:
    plain, small = (
        KV_STORAGES[name].bytes_per_token(torch.bfloat16, head_num=2, head_dim=64, layer_num=24)
        for name in ("plain", "int8")
    )
    assert plain / small >= 1.8
    storage = TokenToKVPool(32, torch.bfloat16, 2, 64, 3, kv_cache_dtype="int8").kv_storage
    tensors = [tensor for buffers in vars(storage).values() if isinstance(buffers, list) for tensor in buffers]
    kept = sum(tensor.nbytes for tensor in tensors)
    assert kept == 32 * Int8KVStorage.bytes_per_token(torch.bfloat16, 2, 64, 3)

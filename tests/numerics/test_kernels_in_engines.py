"""Engines with any kernels: the tokens of plain torch, and the same bits alone and in company, cold and cached."""

import pytest
import torch

from nanoinfer import LLM, SamplingParams
from nanoinfer.cache.memory_pool import ReqToTokenPool
from nanoinfer.model.attention import select_attention_backend
from nanoinfer.model.loader import load_model
from nanoinfer.model.model_runner import ModelRunner
from nanoinfer.paged.generator import GeneratorTorch
from tests.helpers.checkpoints import FAMILIES
from tests.helpers.kernels import need_cpp, need_kernels


@pytest.mark.parametrize("family", FAMILIES)
def test_every_setting_gives_the_tokens_of_plain_torch(checkpoint, family: str):
    changes = {"sliding_window": 24} if family in ("mistral", "phi3") else {}
    path = checkpoint(family, **changes)
    prompts = [list(range(3, 3 + n)) for n in (1, 30, 77)]
    params = SamplingParams(temperature=0.0, max_new_tokens=20, ignore_eos=True)

    def tokens(**settings: str) -> list[list[int]]:
        llm = LLM(path, max_total_tokens=1024, **settings)
        return [out.token_ids for out in llm.generate(prompts, params, use_tqdm=False)]

    wanted = tokens(kernels="torch", attention_backend="torch_native")
    for kernels in ("cpp", "onednn"):
        need_kernels(kernels, torch.float32)
        assert tokens(kernels=kernels, attention_backend="torch_native") == wanted
    assert tokens(kernels="torch", attention_backend="cpp") == wanted
    assert tokens() == wanted


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_forward_tensor_gives_the_engines_logits_to_the_last_bit(checkpoint, dtype: str):
    need_cpp(dtype)
    llm = LLM(checkpoint("llama"), dtype=dtype, max_total_tokens=128, page_size=4)
    runner, generator = llm.engine.model_runner, GeneratorTorch(llm.model)
    ids, table = torch.arange(3, 73), torch.randperm(20, generator=torch.Generator().manual_seed(0))
    slots = (table[:, None] * 4 + torch.arange(4)).flatten()[: len(ids)]
    kv_cache = generator.new_kv_cache(20, 4)
    paged = generator.forward_tensor(
        ids, torch.arange(70), True, kv_cache, table[None], slots, torch.tensor([70]), 70, torch.tensor([69])
    )
    engines, _ = runner.forward_extend(ids, [0], [70], [0], slots)
    assert torch.equal(paged, engines)
    step = torch.tensor([7, 0]), torch.tensor([70, 0])  # and a row of padding
    tables = torch.stack((table, torch.full_like(table, -1)))
    place = torch.tensor([int(table[17] * 4 + 2), -1])
    paged = generator.forward_tensor(*step, False, kv_cache, tables, place, torch.tensor([71, 0]), 71)
    llm.engine.cache.rows[0, :70] = slots
    assert torch.equal(paged[:1], runner.forward_decode(step[0][:1], [0], [71], None, place[:1]))


@pytest.fixture
def runner(checkpoint) -> ModelRunner:
    """A model with rotary tables for 16 positions, and pools that have room for more."""
    loaded = load_model(checkpoint("llama"), max_context_len=16)
    backend = select_attention_backend("auto", loaded.dtype, loaded.device)
    return ModelRunner(loaded.model, ReqToTokenPool(1, 64), loaded.new_kv_pool(64), backend)


def test_a_sequence_longer_than_the_rotary_tables_is_refused(runner: ModelRunner):
    with pytest.raises(ValueError, match="the longest is 17, must not exceed max_len=16"):
        runner.forward_extend(torch.arange(3, 20), [0], [17], [0], range(17))
    assert not runner.token_to_kv_pool.get_key_buffer(0).any()


def test_callers_may_change_the_logits_they_get(runner: ModelRunner):
    first, means = runner.forward_extend(torch.arange(3, 18), [0], [15], [0], range(15), True)
    runner.req_to_token_pool.req_to_token[0, :15] = torch.arange(15)
    second = runner.forward_decode(torch.tensor([18]), [0], [16], None, [15])
    for tensor in (first, second, means):
        tensor[0] = -torch.inf  # not of an inference tensor, which refuses
        assert tensor.isinf().all()

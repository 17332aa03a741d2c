"""forward_tensor: its logits are those of transformers and its tokens the engine's, whatever the blocks look like."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from nanoinfer import LLM, SamplingParams
from nanoinfer.ascend.generator import GeneratorTorch
from nanoinfer.cache.memory_pool import TokenToKVPool
from tests.helpers.paged import PROMPTS, Caller, Checkpoint, close

# --- prefill and decode ------------------------------------------------------------------------------------------


def test_lm_head_indices_choose_the_rows_that_get_logits_and_their_order(generator: GeneratorTorch) -> None:
    everything = Caller(generator, 16, 4).prefill(dict(enumerate(PROMPTS)))
    for rows in ([6, 9, 10, 31], [3, 0, 3], []):
        indices = torch.tensor(rows, dtype=torch.int64)
        close(Caller(generator, 16, 4).prefill(dict(enumerate(PROMPTS)), lm_head_indices=indices), everything[indices])


def test_the_engines_pool_seen_in_blocks_holds_what_forward_tensor_writes(checkpoint: Checkpoint) -> None:
    """The engine prefills; forward_tensor decodes on from the very slots that the radix tree kept."""
    llm = LLM(checkpoint("llama"), max_total_tokens=64, page_size=4)
    prompt = PROMPTS[3][:12]
    llm.generate([list(prompt)], SamplingParams(max_new_tokens=1, temperature=0, ignore_eos=True))
    slots = llm.engine.radix_cache.match_prefix([*prompt, 1]).indices
    generator, pool = GeneratorTorch(llm.model), llm.engine.model_runner.token_to_kv_pool
    kv_cache = generator.pool_as_blocks(pool)
    assert kv_cache[0][0].shape == (16, 4, 2, 16)
    assert kv_cache[0][0].data_ptr() == pool.get_key_buffer(0).data_ptr()

    fresh = Caller(generator, 16, 4)
    fresh.prefill({0: prompt})
    slots_of_0 = torch.tensor([fresh.slot(0, index) for index in range(12)])
    for layer, (keys, values) in enumerate(fresh.kv_cache):
        close(pool.get_key_buffer(layer)[slots], keys.flatten(0, 1)[slots_of_0])
        close(pool.get_value_buffer(layer)[slots], values.flatten(0, 1)[slots_of_0])

    new = int(pool.alloc(4)[0])
    table = [*(slots[::4] // 4).tolist(), new // 4]
    logits = generator.forward_tensor(
        torch.tensor([9]),
        torch.tensor([12]),
        False,
        kv_cache,
        torch.tensor([table], dtype=torch.int32),
        torch.tensor([new], dtype=torch.int32),
        torch.tensor([13], dtype=torch.int32),
        13,
    )
    close(logits, fresh.decode({0: [9]}))


def test_requests_share_the_blocks_of_a_common_prefix(
    generator: GeneratorTorch, expected: Callable[..., torch.Tensor]
) -> None:
    prefix, block_size = PROMPTS[3][:8], 4
    caller = Caller(generator, 16, block_size)
    caller.prefill({0: prefix})
    before = [pair[0][caller.blocks[0]].clone() for pair in caller.kv_cache]
    for i in (1, 2):
        caller.blocks[i], caller.tokens[i] = list(caller.blocks[0]), list(prefix)
    caller.prefill({1: [7, 8, 9], 2: [1]})
    close(caller.decode({1: [3], 2: [4]}), torch.stack([expected(caller.tokens[i])[-1] for i in (1, 2)]))
    for pair, shared in zip(caller.kv_cache, before, strict=True):
        assert torch.equal(pair[0][caller.blocks[0]], shared)


def test_a_request_reads_in_the_same_pass_the_prefix_that_another_writes(
    generator: GeneratorTorch, expected: Callable[..., torch.Tensor]
) -> None:
    prefix = PROMPTS[3][:8]
    caller = Caller(generator, 16, 4)
    caller.slot(0, 7)
    caller.blocks[1], caller.tokens[1] = list(caller.blocks[0]), list(prefix)
    logits = caller.prefill({0: prefix, 1: [7, 8]})
    close(logits, torch.cat((expected(prefix), expected([*prefix, 7, 8])[-2:])))


def test_requests_that_share_blocks_may_both_write_them(
    generator: GeneratorTorch, expected: Callable[..., torch.Tensor]
) -> None:
    caller = Caller(generator, 16, 4)
    caller.slot(0, 3)
    caller.blocks[1] = list(caller.blocks[0])
    caller.prefill({0: [1, 2, 3, 4, 5], 1: [1, 2, 3, 4, 6]})
    close(caller.decode({0: [7], 1: [7]}), torch.stack([expected(caller.tokens[i])[-1] for i in (0, 1)]))


TWO = ([1, 2, 3, 4, 5, 6], [7, 8, 9])


def two_requests(generator: GeneratorTorch) -> Caller:
    """Request 0 has 6 tokens in two of 8 blocks of 4, request 1 has 3 in another."""
    caller = Caller(generator, 8, 4)
    caller.prefill(dict(enumerate(TWO)))
    return caller


def test_two_copies_of_a_request_may_decode_the_same_token_into_the_same_slot(generator: GeneratorTorch) -> None:
    caller = two_requests(generator)
    alone = caller.generator.forward_tensor(**caller.arguments({0: [60]}, False))
    caller.blocks[2], caller.tokens[2] = list(caller.blocks[0]), list(TWO[0])
    logits = caller.decode({0: [60], 2: [60], 1: [3]})
    torch.testing.assert_close(logits[:2], alone.expand(2, -1), rtol=1e-4, atol=1e-4)


def test_padding_may_name_blocks_that_are_written(generator: GeneratorTorch) -> None:
    caller = two_requests(generator)
    arguments = caller.arguments({0: [60]}, False)
    alone = caller.generator.forward_tensor(**arguments)
    for name, padding in (("input_ids", 0), ("position_ids", 0), ("slots", -1), ("input_lengths", 0)):
        arguments[name] = torch.cat((arguments[name], torch.tensor([padding])))
    arguments["block_tables"] = arguments["block_tables"].flip(1).expand(2, -1).clone()
    arguments["block_tables"][0] = caller.tables([0])[0]
    arguments["block_tables"][1] = caller.blocks[0][1]
    torch.testing.assert_close(caller.generator.forward_tensor(**arguments)[:1], alone)


def heads_first(block: torch.Tensor) -> torch.Tensor:
    """[8, 128] as [8, 4, 2, 16], where the two heads come before the four tokens."""
    return block.unflatten(1, (2, 4, 16)).transpose(1, 2)


@pytest.mark.parametrize(
    "views",
    [
        lambda: [(t[:, 0], t[:, 1]) for t in (torch.zeros(8, 2, 4, 2, 16) for _ in range(3))],
        lambda: [(t[..., 0], t[..., 1]) for t in torch.zeros(3, 8, 4, 2, 16, 2)],
        lambda: list(torch.zeros(3, 2, 8, 4, 2, 16)),
        lambda: [(t[0], t[1]) for t in torch.zeros(8, 3, 2, 4, 2, 16).permute(1, 2, 0, 3, 4, 5)],
        lambda: [(heads_first(t[:, 0]), t[:, 1].view(8, 4, 2, 16)) for t in torch.zeros(3, 8, 2, 128)],
        lambda: [
            (t[:, 0].view(8, 2, 16, 4).permute(0, 3, 1, 2), heads_first(t[:, 1])) for t in torch.zeros(3, 8, 2, 128)
        ],
        lambda: [(heads_first(t[..., 0]), t[..., 1].view(8, 4, 2, 16)) for t in torch.zeros(3, 8, 128, 2)],
    ],
)
def test_views_of_one_memory_that_share_no_element_are_a_cache(
    views: Callable[[], list[Any]], generator: GeneratorTorch
) -> None:
    caller = two_requests(generator)
    expected = caller.decode({0: [5], 1: [6]})
    other = Caller(caller.generator, 8, 4)
    other.kv_cache = [(k, v) for k, v in views()]
    other.prefill(dict(enumerate(TWO)))
    torch.testing.assert_close(other.decode({0: [5], 1: [6]}), expected, rtol=1e-4, atol=1e-4)


# --- slots of −1, padding ----------------------------------------------------------------------------------------


def test_tokens_with_slot_minus_one_are_computed_and_not_written(generator: GeneratorTorch) -> None:
    prompts = dict(enumerate(PROMPTS))
    whole = Caller(generator, 16, 4)
    logits = whole.prefill(prompts)
    part = Caller(generator, 16, 4)
    slots = part.arguments(prompts, True)["slots"]
    hidden = torch.arange(len(slots)) % 3 == 1
    close(part.prefill(prompts, slots=slots.masked_fill(hidden, -1)), logits)
    for mine, all_written in zip(part.snapshot(), whole.snapshot(), strict=True):
        mine, all_written = mine.flatten(0, 1), all_written.flatten(0, 1)
        close(mine[slots[~hidden]], all_written[slots[~hidden]])
        untouched = torch.ones(len(mine), dtype=torch.bool)
        untouched[slots[~hidden]] = False
        assert not mine[untouched].any()


def test_a_prefill_that_writes_nothing_needs_no_blocks(
    generator: GeneratorTorch, expected: Callable[..., torch.Tensor]
) -> None:
    caller = Caller(generator, 1, 4)
    logits = generator.forward_tensor(
        torch.tensor(PROMPTS[0]),
        torch.arange(7),
        True,
        caller.kv_cache,
        torch.full((1, 0), -1),
        torch.full((7,), -1),
        torch.tensor([7]),
        7,
    )
    close(logits, expected(PROMPTS[0]))
    assert not any(tensor.any() for tensor in caller.snapshot())


@pytest.mark.parametrize("length", [0, 1, 9])
@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_padding_rows_change_nothing(
    length: int, family: str, generators: Callable[..., GeneratorTorch], expected: Callable[..., torch.Tensor]
) -> None:
    caller = Caller(generators(family), 8, 4)
    caller.prefill({0: PROMPTS[0], 1: PROMPTS[1]})
    new = caller.arguments({0: [9], 1: [8]}, False)
    for name, padding in (
        ("input_ids", [0, 0]),
        ("position_ids", [0, 0]),
        ("slots", [-1, -1]),
        ("input_lengths", [length] * 2),
    ):
        new[name] = torch.cat((new[name], torch.tensor(padding)))
    new["block_tables"] = torch.cat((new["block_tables"], torch.full_like(new["block_tables"], -1)))
    logits = caller.generator.forward_tensor(**new)
    assert logits.shape == (4, 320)
    assert logits.isfinite().all()
    close(logits[:2], torch.stack([expected([*PROMPTS[0], 9], family)[-1], expected([*PROMPTS[1], 8], family)[-1]]))


def test_what_lies_in_blocks_that_nobody_wrote_does_not_matter(
    generator: GeneratorTorch, expected: Callable[..., torch.Tensor]
) -> None:
    """A cache made with torch.empty may hold anything, NaN too."""
    caller = Caller(generator, 16, 4)
    for pair in caller.kv_cache:
        for tensor in pair:
            tensor.fill_(torch.nan)
    close(caller.prefill({0: PROMPTS[3], 1: PROMPTS[2]})[-1], expected(PROMPTS[2])[-1])
    logits = caller.decode({2: [9], 0: [9], 1: [8]})  # request 2 has no prefix
    close(logits, torch.stack([expected(caller.tokens[i])[-1] for i in (2, 0, 1)]))


# --- tensors of other kinds --------------------------------------------------------------------------------------


def test_index_tensors_may_be_int32_and_views(generator: GeneratorTorch, expected: Callable[..., torch.Tensor]) -> None:
    caller = Caller(generator, 16, 4)
    caller.dtype = torch.int32
    arguments = caller.arguments({0: PROMPTS[0], 1: PROMPTS[1]}, True)
    for name in ("input_ids", "position_ids", "slots", "input_lengths"):
        arguments[name] = torch.stack((arguments[name], arguments[name]), dim=1)[:, 0]
    arguments["block_tables"] = arguments["block_tables"].T.contiguous().T
    close(generator.forward_tensor(**arguments), torch.cat((expected(PROMPTS[0]), expected(PROMPTS[1]))))


def test_bfloat16_is_close_to_float32(generators: Callable[..., GeneratorTorch]) -> None:
    logits = []
    for dtype in ("bfloat16", "float32"):
        caller = Caller(generators("llama", dtype), 16, 4)
        assert caller.kv_cache[0][0].dtype == getattr(torch, dtype)
        caller.prefill(dict(enumerate(PROMPTS)))
        mask = torch.zeros(8, 23)  # of float32, whatever the model is
        logits.append(caller.decode({i: [9, 8] for i in range(4)}, q_lens=[2] * 4, spec_mask=mask))
    assert logits[0].dtype == torch.bfloat16
    similarity = torch.nn.functional.cosine_similarity(logits[0].float(), logits[1], dim=-1)
    assert similarity.min() > 0.99


def test_a_pool_of_another_model_is_refused(generator: GeneratorTorch) -> None:
    for heads, dim, layers, message in ((2, 16, 2, "fewer layers"), (1, 16, 3, "shape"), (2, 8, 3, "shape")):
        with pytest.raises(ValueError, match=message):
            generator.pool_as_blocks(TokenToKVPool(16, torch.float32, heads, dim, layers, page_size=4))

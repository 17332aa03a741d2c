"""forward_tensor: its logits are those of transformers and its tokens the engine's, whatever the blocks look like."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
import transformers

from nanoinfer import LLM, SamplingParams
from nanoinfer.cache.memory_pool import TokenToKVPool
from nanoinfer.paged.generator import GeneratorTorch
from tests.helpers.paged import Caller

Checkpoint = Callable[..., Path]
Oracle = Callable[[Path], transformers.PreTrainedModel]

PROMPTS = ([5, 6, 7, 8, 9, 10, 11], [300, 2, 17], [42], list(range(100, 121)))
FAMILIES = {
    "llama": {},
    "mistral": {"sliding_window": 5},
    "qwen2": {},
    "qwen3": {"head_dim": 24, "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    "gemma3": {},
    "phi3": {"sliding_window": 6},
}


@pytest.fixture(scope="module")
def generators(checkpoint: Checkpoint) -> Callable[..., GeneratorTorch]:
    made: dict[tuple[str, object], GeneratorTorch] = {}

    def make(family: str = "llama", dtype: str | None = None) -> GeneratorTorch:
        if (family, dtype) not in made:
            made[family, dtype] = GeneratorTorch(checkpoint(family, **FAMILIES[family]), dtype=dtype)
        return made[family, dtype]

    return make


@pytest.fixture
def generator(generators: Callable[..., GeneratorTorch]) -> GeneratorTorch:
    return generators()


@pytest.fixture(scope="module")
def expected(checkpoint: Checkpoint, oracle: Oracle) -> Callable[..., torch.Tensor]:
    """`expected(tokens)`: transformers' logits [len(tokens), V]; `see` [S, S] boolean hides more, `positions` replace."""

    @torch.no_grad()
    def logits(
        tokens: Sequence[int],
        family: str = "llama",
        see: torch.Tensor | None = None,
        positions: Sequence[int] | None = None,
    ) -> torch.Tensor:
        model = oracle(checkpoint(family, **FAMILIES[family]))
        mask = None
        if see is not None:
            causal = torch.ones_like(see).tril()
            mask = torch.zeros(see.shape).masked_fill(~(see & causal), torch.finfo(torch.float32).min)[None, None]
        where = None if positions is None else torch.tensor([list(positions)])
        return model(torch.tensor([list(tokens)]), attention_mask=mask, position_ids=where).logits[0]

    return logits


def close(actual: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(actual, wanted, rtol=2e-4, atol=2e-4)


# --- prefill and decode ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama"])  # all of them: tests/families/test_paged_families.py
@pytest.mark.parametrize("block_size", [1, 4, 16, 128])
def test_prefill_and_decode_have_the_logits_of_transformers(
    family: str, block_size: int, generators: Callable[..., GeneratorTorch], expected: Callable[..., torch.Tensor]
) -> None:
    caller = Caller(generators(family), num_blocks=160 // block_size + 8, block_size=block_size)
    logits = caller.prefill(dict(enumerate(PROMPTS)))
    close(logits, torch.cat([expected(prompt, family) for prompt in PROMPTS]))
    for step in range(6):
        new = {i: [50 * i + step] for i in range(len(PROMPTS))}
        logits = caller.decode(new)
        close(logits, torch.stack([expected(caller.tokens[i], family)[-1] for i in new]))


def test_lm_head_indices_choose_the_rows_that_get_logits_and_their_order(generator: GeneratorTorch) -> None:
    everything = Caller(generator, 16, 4).prefill(dict(enumerate(PROMPTS)))
    for rows in ([6, 9, 10, 31], [3, 0, 3], []):
        indices = torch.tensor(rows, dtype=torch.int64)
        close(Caller(generator, 16, 4).prefill(dict(enumerate(PROMPTS)), lm_head_indices=indices), everything[indices])


def test_greedy_tokens_are_those_of_the_engine(checkpoint: Checkpoint) -> None:
    llm = LLM(checkpoint("llama"), max_total_tokens=256, page_size=4)
    outputs = llm.generate(
        [list(prompt) for prompt in PROMPTS], SamplingParams(max_new_tokens=12, temperature=0, ignore_eos=True)
    )
    caller = Caller(GeneratorTorch(llm.model), 32, 4)
    last = torch.tensor([len(prompt) for prompt in PROMPTS]).cumsum(0) - 1
    tokens = [caller.prefill(dict(enumerate(PROMPTS)), lm_head_indices=last).argmax(-1).tolist()]
    for _ in range(11):
        tokens.append(caller.decode({i: [token] for i, token in enumerate(tokens[-1])}).argmax(-1).tolist())
    assert [list(of_one) for of_one in zip(*tokens, strict=True)] == [output.token_ids for output in outputs]


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


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3"])
def test_a_prompt_in_chunks_is_the_prompt(
    family: str, generators: Callable[..., GeneratorTorch], expected: Callable[..., torch.Tensor]
) -> None:
    caller = Caller(generators(family), 24, 4)
    whole = expected(PROMPTS[3], family)
    caller.prefill({0: PROMPTS[3][:6], 1: PROMPTS[0]})
    close(caller.prefill({2: PROMPTS[1], 0: PROMPTS[3][6:7]})[-1], whole[6])
    close(caller.prefill({0: PROMPTS[3][7:]}), whole[7:])
    close(caller.prefill({3: PROMPTS[3][:2]}), whole[:2])
    close(caller.prefill({3: PROMPTS[3][2:]}, q_lens=[19]), whole[2:])


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


def test_a_decode_token_with_slot_minus_one_can_be_decoded_again(generator: GeneratorTorch) -> None:
    caller = Caller(generator, 8, 4)
    caller.prefill({0: PROMPTS[0], 1: PROMPTS[1]})
    before = caller.snapshot()
    arguments = caller.arguments({0: [9], 1: [8]}, False)
    logits = generator.forward_tensor(**{**arguments, "slots": torch.tensor([-1, -1])})
    assert all(torch.equal(a, b) for a, b in zip(before, caller.snapshot(), strict=True))
    close(caller.decode({0: [9], 1: [8]}), logits)


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


# --- parallel decoding -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "mistral"])
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_drafts_in_a_line_have_the_logits_of_one_token_after_another(
    family: str, block_size: int, generators: Callable[..., GeneratorTorch], expected: Callable[..., torch.Tensor]
) -> None:
    caller = Caller(generators(family), 64 // block_size + 8, block_size)
    caller.prefill({0: PROMPTS[0], 1: PROMPTS[1], 2: PROMPTS[2]})
    new = {0: [9, 8, 7], 1: [3], 2: [5, 6]}
    logits = caller.decode(new, q_lens=[3, 1, 2])
    close(logits, torch.cat([expected(caller.tokens[i], family)[-len(new[i]) :] for i in new]))


def test_rejected_drafts_are_overwritten(generator: GeneratorTorch, expected: Callable[..., torch.Tensor]) -> None:
    caller = Caller(generator, 8, 4)
    caller.prefill({0: PROMPTS[0]})
    caller.decode({0: [9, 8, 7]}, q_lens=[3])
    caller.tokens[0] = caller.tokens[0][:-2]  # 8 and 7 were wrong
    close(caller.decode({0: [5, 4]}, q_lens=[2]), expected([*PROMPTS[0], 9, 5, 4])[-2:])


TREE = {"tokens": [20, 21, 22, 23, 24], "parents": [None, 0, 0, 1, 2]}  # 20 → 21 → 23 and 20 → 22 → 24


def path(node: int) -> list[int]:
    """The nodes from the root of TREE to `node`."""
    parent = TREE["parents"][node]
    return [*([] if parent is None else path(parent)), node]


@pytest.mark.parametrize("hide", [-torch.inf, -1e9, -10000.0])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_tree_of_drafts_gives_each_node_the_logits_of_its_path(
    hide: float, family: str, generators: Callable[..., GeneratorTorch], expected: Callable[..., torch.Tensor]
) -> None:
    """Next to another request without drafts. Siblings have the same position, and do not see each other."""
    caller = Caller(generators(family), 32, 4)
    caller.prefill({0: PROMPTS[0], 1: PROMPTS[1]})
    new = {1: [3], 0: TREE["tokens"]}
    positions = [3] + [len(PROMPTS[0]) + len(path(node)) - 1 for node in range(5)]
    mask = torch.zeros(6, len(PROMPTS[0]) + 5)
    mask[1:, len(PROMPTS[0]) :] = hide
    for node in range(5):
        mask[1 + node, [len(PROMPTS[0]) + seen for seen in path(node)]] = 0
    logits = caller.decode(new, q_lens=[1, 5], spec_mask=mask, position_ids=torch.tensor(positions))
    close(logits[0], expected([*PROMPTS[1], 3], family)[-1])
    for node in range(5):
        tokens = [*PROMPTS[0], *(TREE["tokens"][seen] for seen in path(node))]
        close(logits[1 + node], expected(tokens, family)[-1])


def test_a_spec_mask_without_q_lens_is_one_for_single_tokens(
    generator: GeneratorTorch, expected: Callable[..., torch.Tensor]
) -> None:
    caller = Caller(generator, 8, 4)
    caller.prefill({0: PROMPTS[0], 1: PROMPTS[1]})
    mask = torch.zeros(2, 8)
    mask[0, 2], mask[1, 1] = -torch.inf, -torch.inf
    logits = caller.decode({0: [9], 1: [8]}, spec_mask=mask)
    for row, (tokens, hidden) in enumerate(((caller.tokens[0], 2), (caller.tokens[1], 1))):
        see = torch.ones(len(tokens), len(tokens), dtype=torch.bool)
        see[-1, hidden] = False
        close(logits[row], expected(tokens, see=see)[-1])


# --- atten_mask --------------------------------------------------------------------------------------------------


def hidden_columns(size: int, *columns: int) -> torch.Tensor:
    """Boolean [size, size]: no token sees these."""
    see = torch.ones(size, size, dtype=torch.bool)
    see[:, list(columns)] = False
    return see


@pytest.mark.parametrize("additive", [False, True])
@pytest.mark.parametrize("shape", ["[T, S]", "[M, M]", "[B, M, M]"])
def test_an_atten_mask_hides_in_a_prefill(
    additive: bool, shape: str, generator: GeneratorTorch, expected: Callable[..., torch.Tensor]
) -> None:
    see = [hidden_columns(9, 2), hidden_columns(9, 2)]
    if shape != "[M, M]":
        see[1] = hidden_columns(9, 1)
    mask = {
        "[T, S]": torch.cat((see[0][:7, :7], see[1][:3, :7])),
        "[M, M]": see[0],
        "[B, M, M]": torch.stack(see),
    }[shape]
    if additive:
        mask = torch.zeros(mask.shape).masked_fill(~mask, -1e9)
    logits = Caller(generator, 8, 4).prefill({0: PROMPTS[0], 1: PROMPTS[1]}, atten_mask=mask)
    close(logits, torch.cat([expected(p, see=s[: len(p), : len(p)]) for p, s in zip(PROMPTS[:2], see, strict=True)]))


@pytest.mark.parametrize("additive", [False, True])
def test_an_atten_mask_hides_in_a_decode(
    additive: bool, generator: GeneratorTorch, expected: Callable[..., torch.Tensor]
) -> None:
    """Also from drafts in a line, which stay a line: a mask only takes away."""
    for new, q_lens in (([9], None), ([9, 8, 7], [3])):
        caller = Caller(generator, 8, 4)
        caller.prefill({0: PROMPTS[0]})
        size = len(PROMPTS[0]) + len(new)
        see = hidden_columns(size, 3)
        see[: len(PROMPTS[0])] = True  # the prompt was computed without a mask
        mask = torch.zeros(see.shape).masked_fill(~see, -torch.inf) if additive else see
        logits = caller.decode({0: new}, q_lens=q_lens, atten_mask=mask)
        close(logits, expected(caller.tokens[0], see=see)[-len(new) :])


def test_a_mask_of_nothing_changes_nothing(
    generators: Callable[..., GeneratorTorch], expected: Callable[..., torch.Tensor]
) -> None:
    caller = Caller(generators("mistral"), 16, 4)
    see = torch.ones(21, 21, dtype=torch.bool)
    close(caller.prefill({0: PROMPTS[3]}, atten_mask=see), expected(PROMPTS[3], "mistral"))
    logits = caller.decode({0: [7, 8]}, q_lens=[2], spec_mask=torch.zeros(2, 23), atten_mask=torch.zeros(2, 23))
    close(logits, expected(caller.tokens[0], "mistral")[-2:])


def test_with_a_mask_positions_are_free(generator: GeneratorTorch, expected: Callable[..., torch.Tensor]) -> None:
    positions = [0, 0, 0, 3, 9, 10, 11]
    see = hidden_columns(7, 1)
    caller = Caller(generator, 8, 4)
    logits = caller.prefill({0: PROMPTS[0]}, atten_mask=see, position_ids=torch.tensor(positions))
    close(logits, expected(PROMPTS[0], see=see, positions=positions))


def test_a_token_that_sees_nothing_has_finite_logits(generator: GeneratorTorch) -> None:
    logits = Caller(generator, 8, 4).prefill({0: PROMPTS[0]}, atten_mask=hidden_columns(7, 0))
    assert logits.isfinite().all()


# --- tensors of other kinds --------------------------------------------------------------------------------------


def test_index_tensors_may_be_int32_and_views(generator: GeneratorTorch, expected: Callable[..., torch.Tensor]) -> None:
    caller = Caller(generator, 16, 4)
    caller.dtype = torch.int32
    arguments = caller.arguments({0: PROMPTS[0], 1: PROMPTS[1]}, True)
    for name in ("input_ids", "position_ids", "slots", "input_lengths"):
        arguments[name] = torch.stack((arguments[name], arguments[name]), dim=1)[:, 0]
    arguments["block_tables"] = arguments["block_tables"].T.contiguous().T
    close(generator.forward_tensor(**arguments), torch.cat((expected(PROMPTS[0]), expected(PROMPTS[1]))))


def test_kv_may_be_stored_with_other_strides(generator: GeneratorTorch, expected: Callable[..., torch.Tensor]) -> None:
    """Head-major, as some engines store it: the blocks are a view with heads outermost in memory."""
    caller = Caller(generator, 16, 4)
    caller.kv_cache = [tuple(torch.zeros(2, 64, 16).transpose(0, 1).view(16, 4, 2, 16) for _ in "KV") for _ in range(3)]
    caller.prefill({0: PROMPTS[0], 1: PROMPTS[1]})
    close(caller.decode({0: [9], 1: [8]}), torch.stack([expected(caller.tokens[i])[-1] for i in (0, 1)]))


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


def test_a_new_cache_has_a_pair_for_each_layer(generator: GeneratorTorch) -> None:
    kv_cache = generator.new_kv_cache(5, 16)
    assert [tuple(tensor.shape) for pair in kv_cache for tensor in pair] == [(5, 16, 2, 16)] * 6
    assert not any(tensor.any() for pair in kv_cache for tensor in pair)


def test_the_bundled_model_by_name_and_no_gradients() -> None:
    generator = GeneratorTorch("story")
    logits = Caller(generator, 4, 4).prefill({0: [5, 6, 7]})
    assert logits.shape == (3, generator.model.config.vocab_size)
    assert not logits.requires_grad


def test_a_pool_of_another_model_is_refused(generator: GeneratorTorch) -> None:
    for heads, dim, layers, message in ((2, 16, 2, "fewer layers"), (1, 16, 3, "shape"), (2, 8, 3, "shape")):
        with pytest.raises(ValueError, match=message):
            generator.pool_as_blocks(TokenToKVPool(16, torch.float32, heads, dim, layers, page_size=4))

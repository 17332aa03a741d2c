"""DraftTree: what nodes see, which are accepted, and where their K/V goes; and decoding with drafts by hand."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from nanoinfer import LLM, SamplingParams
from nanoinfer.paged.by_hand import decode_with_lines, decode_with_trees
from nanoinfer.paged.draft_tree import DraftTree, keep_accepted, tree_inputs
from nanoinfer.paged.generator import GeneratorTorch

# 5 ─┬─ 20 ─── 22
#    └─ 21 ─┬─ 22
#           └─ 23
TREE = DraftTree([5, 20, 21, 22, 22, 23], [-1, 0, 0, 1, 2, 2])
HIDE = -torch.inf
PROMPTS = [[5, 6, 7, 8, 9], [300, 2], [42] * 8]


@pytest.fixture(scope="module")
def llm(checkpoint: Callable[..., Path]) -> LLM:
    return LLM(checkpoint("llama"), max_total_tokens=256)


@pytest.fixture(scope="module")
def generator(llm: LLM) -> GeneratorTorch:
    return GeneratorTorch(llm.model)


@pytest.fixture(scope="module")
def expected(llm: LLM) -> list[list[int]]:
    """The 40 tokens that the engine chooses, one at a time."""
    params = SamplingParams(max_new_tokens=40, temperature=0, ignore_eos=True)
    return [output.token_ids for output in llm.generate(PROMPTS, params, use_tqdm=False)]


# --- one tree ----------------------------------------------------------------------------------------------------


def test_a_node_sees_the_context_its_ancestors_and_itself() -> None:
    assert TREE.spec_mask(context=2).tolist() == [
        [0, 0, 0, HIDE, HIDE, HIDE, HIDE, HIDE],
        [0, 0, 0, 0, HIDE, HIDE, HIDE, HIDE],
        [0, 0, 0, HIDE, 0, HIDE, HIDE, HIDE],
        [0, 0, 0, 0, HIDE, 0, HIDE, HIDE],
        [0, 0, 0, HIDE, 0, HIDE, 0, HIDE],
        [0, 0, 0, HIDE, 0, HIDE, HIDE, 0],
    ]


def test_a_nodes_position_is_its_depth_after_the_context() -> None:
    assert TREE.position_ids(context=7).tolist() == [7, 8, 8, 9, 9, 9]
    assert TREE.position_ids(context=0).tolist() == [0, 1, 1, 2, 2, 2]


@pytest.mark.parametrize(
    ("sampled", "path", "token"),
    [
        ([9, 22, 23, 1, 1, 1], [0], 9),  # no draft: what other nodes sampled does not count
        ([20, 9, 23, 1, 1, 1], [0, 1], 9),
        ([20, 22, 23, 7, 1, 1], [0, 1, 3], 7),
        ([21, 22, 22, 7, 8, 1], [0, 2, 4], 8),  # 22 is a child of both 1 and 2
        ([21, 22, 23, 7, 8, 20], [0, 2, 5], 20),  # a leaf's token is the next newest, whatever it is
    ],
)
def test_sampled_tokens_are_followed_while_a_child_holds_them(sampled: list[int], path: list[int], token: int) -> None:
    assert TREE.accepted(sampled) == (path, token)


@pytest.mark.parametrize(
    ("tokens", "parents", "message"),
    [
        ([], [], "tokens"),
        ([5, 6], [-1], "parents"),
        ([5, -6], [-1, 0], r"tokens\[1\]=-6"),
        ([5, 6], [0, 0], r"parents\[0\]=0"),
        ([5, 6, 7], [-1, 2, 0], r"parents\[1\]=2"),
        ([5, 6, 7, 6], [-1, 0, 0, 0], r"tokens\[3\]=6"),
    ],
)
def test_what_is_no_tree_is_refused(tokens: list[Any], parents: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DraftTree(tokens, parents)


# --- the inputs of a pass, and the K/V afterwards ------------------------------------------------------------------


def test_the_inputs_of_a_pass_are_those_of_its_trees_one_after_another() -> None:
    tables = torch.tensor([[3, 1, -1], [2, 0, 4]], dtype=torch.int32)
    inputs = tree_inputs([DraftTree([8, 9], [-1, 0]), TREE], [1, 5], tables, 4)
    assert inputs["input_ids"].tolist() == [8, 9, *TREE.tokens]
    assert inputs["position_ids"].tolist() == [1, 2, 5, 6, 6, 7, 7, 7]
    assert inputs["slots"].tolist() == [13, 14, 1, 2, 3, 16, 17, 18]
    assert inputs["input_lengths"].tolist() == [3, 11]
    assert inputs["q_lens"] == [2, 6]
    mask = inputs["spec_mask"]
    assert mask.shape == (8, 11)
    assert mask[:2].tolist() == [[0, 0, *[HIDE] * 9], [0, 0, 0, *[HIDE] * 8]]
    assert torch.equal(mask[2:], TREE.spec_mask(5))


def numbered_cache() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Two layers of 6 blocks of 2 slots: every K is its slot, and every V the negative of that, plus 100 per layer."""
    slots = torch.arange(12.0).view(6, 2, 1, 1)
    return [(slots + 100 * layer, -slots - 100 * layer) for layer in range(2)]


def as_lists(cache: list[tuple[torch.Tensor, torch.Tensor]]) -> list[list[float]]:
    return [tensor.flatten().tolist() for pair in cache for tensor in pair]


def test_accepted_nodes_move_into_the_order_of_the_sequence() -> None:
    cache, tables = numbered_cache(), torch.tensor([[2, 0, 5], [1, 3, 4]])
    assert keep_accepted(cache, tables, [1, 0], [[0, 2, 3], [0, 1, 4]]) == [4, 3]
    for layer, (keys, values) in enumerate(cache):
        # Request 0 has slots 4 5 0 1 10 11: index 2 gets what was at index 3, and index 3 what was at 4, read before.
        # Request 1 has slots 2 3 6 7 8 9: index 2 gets what was at index 4.
        wanted = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
        wanted[0], wanted[1], wanted[6] = 1, 10, 8
        assert keys.flatten().tolist() == [slot + 100 * layer for slot in wanted]
        assert torch.equal(values, -keys)


@pytest.mark.parametrize(
    ("tables", "contexts", "paths", "message"),
    [
        ([[2, 0, 5]], [1, 1], [[0]], "contexts"),
        ([[2, 0, 5]], [1], [[1, 2]], r"paths\[0\]"),
        ([[2, 0, 5]], [1], [[0, 3, 2]], r"paths\[0\]"),
        ([[2, 0, 5]], [1], [[0, 5]], "block_tables"),
        ([[2, 0, -1]], [1], [[0, 3]], r"block_tables\[0, 2\]=-1"),
        ([[2, 0, 6]], [1], [[0, 3]], r"block_tables\[0, 2\]=6"),
        ([[2, 0, 5], [1, 0, 4]], [1, 1], [[0, 2], [0, 1]], "block_tables"),
    ],
)
def test_a_move_that_does_not_fit_is_refused_and_moves_nothing(
    tables: list[list[int]], contexts: list[int], paths: list[list[int]], message: str
) -> None:
    cache = numbered_cache()
    with pytest.raises(ValueError, match=message):
        keep_accepted(cache, torch.tensor(tables), contexts, paths)
    assert as_lists(cache) == as_lists(numbered_cache())


# --- decoding with drafts ------------------------------------------------------------------------------------------


def known(expected: Sequence[Sequence[int]], tokens: list[int]) -> list[int]:
    """What the engine generates after `tokens`, which begin with one of PROMPTS."""
    for prompt, after in zip(PROMPTS, expected, strict=True):
        text = [*prompt, *after]
        if text[: len(tokens)] == tokens:
            return text[len(tokens) :]
    raise AssertionError(f"the engine does not generate {tokens}")


def some_right(expected: Sequence[Sequence[int]], num_drafts: int) -> Callable[[list[int]], list[int]]:
    """Drafts that are right up to a random place."""

    def propose(tokens: list[int]) -> list[int]:
        right = known(expected, tokens)[:num_drafts]
        for k in range(random.Random(sum(tokens)).randint(0, num_drafts), num_drafts):
            right[k] = (right[k] + 1) % 320
        return right

    return propose


@pytest.mark.parametrize(("block_size", "num_drafts"), [(1, 1), (4, 3), (16, 4)])
def test_advance_step_moves_a_batch_on_past_its_accepted_drafts(
    block_size: int, num_drafts: int, llm: LLM, generator: GeneratorTorch, expected: list[list[int]]
) -> None:
    pool = llm.model.new_kv_pool(256 // block_size * block_size, block_size)
    propose = some_right(expected, num_drafts)
    passes = list(decode_with_lines(generator, pool, PROMPTS, propose, num_drafts, num_passes=6))
    texts = [[*prompt, int(token)] for prompt, token in zip(PROMPTS, passes[0].input_tokens[:, 0], strict=True)]
    for each in passes:
        for i, text in enumerate(texts):
            drafts = propose(text)
            right = known(expected, text)
            accepted = 0
            while accepted < num_drafts and drafts[accepted] == right[accepted]:
                accepted += 1
            assert each.input_tokens[i].tolist() == [text[-1], *drafts]
            assert each.input_positions[i].tolist() == list(range(len(text) - 1, len(text) + num_drafts))
            assert (each.slots[i] % block_size == each.input_positions[i] % block_size).all()
            assert int(each.accepted_num[i]) == accepted
            new = right[: accepted + 1]
            assert each.sampled_token_ids[i].tolist() == [*new, *[-1] * (num_drafts - accepted)]
            text += new
    accepted = torch.cat([each.accepted_num for each in passes])
    assert 0 < accepted.sum() < num_drafts * len(accepted), "some, but not all"
    assert pool.available_size() == pool.size


@pytest.mark.parametrize("block_size", [1, 4])
def test_trees_of_several_requests_are_decoded_side_by_side(
    block_size: int, llm: LLM, generator: GeneratorTorch, expected: list[list[int]]
) -> None:
    pool = llm.model.new_kv_pool(256, block_size)
    right = some_right(expected, 3)

    def propose(tokens: list[int]) -> DraftTree:
        """The drafts on a branch between others; sometimes none."""
        if len(tokens) % 5 == 0:
            return DraftTree([tokens[-1]], [-1])
        a, b, c = right(tokens)
        wrong = (a + 2) % 320
        return DraftTree([tokens[-1], wrong, a, 7, b, (b + 2) % 320, c], [-1, 0, 0, 1, 2, 2, 4])

    passes = list(decode_with_trees(generator, pool, PROMPTS, propose, max_drafts=6, num_passes=6))
    for i, requests in enumerate(zip(*passes, strict=True)):
        tokens = [requests[0].tree.tokens[0], *(token for each in requests for token in each.tokens)]
        assert tokens == expected[i][: len(tokens)]
        context = len(PROMPTS[i])
        for each in requests:
            assert each.context == context
            assert each.path == [0, 2, 4, 6][: len(each.tokens)]
            context += len(each.tokens)
    counts = [len(each.path) for requests in passes for each in requests]
    assert set(counts) == {1, 2, 3, 4}, "every number of accepted drafts occurs"
    assert pool.available_size() == pool.size


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompts": [[1], []]}, r"prompts\[1\]"),
        ({"num_passes": 0}, "num_passes=0"),
        ({"num_passes": 50, "prompts": [[1] * 100]}, "num_passes=50"),
        ({"prompts": [[1] * 30]}, "pool"),
    ],
)
def test_drafts_that_do_not_fit_are_refused_and_keep_no_blocks(
    changes: dict[str, Any], message: str, llm: LLM, generator: GeneratorTorch
) -> None:
    pool = llm.model.new_kv_pool(32, 4)
    prompts, num_passes = changes.get("prompts", [[1]]), changes.get("num_passes", 3)
    with pytest.raises(ValueError, match=message):
        list(decode_with_lines(generator, pool, prompts, lambda tokens: [1, 2, 3], 3, num_passes))
    with pytest.raises(ValueError, match=message):
        list(decode_with_trees(generator, pool, prompts, lambda tokens: DraftTree(tokens[-1:], [-1]), 3, num_passes))
    assert pool.available_size() == pool.size

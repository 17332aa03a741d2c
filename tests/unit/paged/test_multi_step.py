"""Multi-step decode by hand, and `demo paged`: the engine's tokens, step by step from block tables."""

import re
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch

from nanoinfer import LLM, SamplingParams
from nanoinfer.cache.memory_pool import TokenToKVPool
from nanoinfer.cli.main import main
from nanoinfer.paged.by_hand import multi_step_decode
from nanoinfer.paged.generator import GeneratorTorch

PROMPTS = [[5, 6, 7, 8, 9], [300, 2], [42] * 8]


@pytest.fixture(scope="module")
def llm(checkpoint: Callable[..., Path]) -> LLM:
    return LLM(checkpoint("llama"), max_total_tokens=256)


@pytest.fixture(scope="module")
def generator(llm: LLM) -> GeneratorTorch:
    return GeneratorTorch(llm.model)


def new_pool(num_blocks: int, block_size: int) -> TokenToKVPool:
    return TokenToKVPool(num_blocks * block_size, torch.float32, 2, 16, 3, page_size=block_size)


@pytest.mark.cpu
@pytest.mark.parametrize(("block_size", "num_padding"), [(1, 0), (4, 1), (16, 5), (128, 1)])
def test_its_tokens_are_the_engines(block_size: int, num_padding: int, llm: LLM, generator: GeneratorTorch) -> None:
    pool = new_pool(-(-60 // block_size) + 3, block_size)
    steps = list(multi_step_decode(generator, pool, PROMPTS, num_steps=9, num_padding=num_padding))
    tokens = torch.cat([step.sampled_token_ids for step in steps], dim=1).tolist()
    params = SamplingParams(max_new_tokens=10, temperature=0, ignore_eos=True)
    assert tokens == [output.token_ids for output in llm.generate(PROMPTS, params, use_tqdm=False)]
    assert pool.available_size() == pool.size


@pytest.mark.cpu
def test_every_step_shows_what_advance_step_wrote(generator: GeneratorTorch) -> None:
    prefill, *steps = multi_step_decode(generator, new_pool(10, 4), PROMPTS, num_steps=4, num_padding=2)
    assert prefill.is_prefill
    assert prefill.block_tables.tolist() == [[0, 1, 5], [2, 6, -1], [3, 4, 7], [-1] * 3, [-1] * 3]
    assert prefill.slots.tolist() == [0, 1, 2, 3, 4, 8, 9, *range(12, 20)]
    assert prefill.input_positions.tolist() == [*range(5), 0, 1, *range(8)]
    assert prefill.seq_lens.tolist() == [5, 2, 8, 0, 0]
    assert [step.slots.tolist() for step in steps] == [
        [5, 10, 28, -1, -1],
        [6, 11, 29, -1, -1],
        [7, 24, 30, -1, -1],
        [20, 25, 31, -1, -1],
    ]
    sampled = prefill.sampled_token_ids
    for n, step in enumerate(steps):
        assert step.input_tokens.tolist() == [*sampled[:, 0].tolist(), 0, 0]
        assert step.input_positions.tolist() == [5 + n, 2 + n, 8 + n, 0, 0]
        assert step.seq_lens.tolist() == [6 + n, 3 + n, 9 + n, 0, 0]
        sampled = step.sampled_token_ids


@pytest.mark.cpu
def test_blocks_go_back_when_it_is_left_halfway(generator: GeneratorTorch) -> None:
    pool = new_pool(10, 4)
    steps = multi_step_decode(generator, pool, PROMPTS, num_steps=4)
    next(steps)
    assert pool.available_size() == 8
    steps.close()
    assert pool.available_size() == 40
    pool.check_integrity()


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        ([], {}, "prompts: there are none"),
        ([[1], []], {}, r"prompts\[1\]: is empty"),
        ([[1]], {"num_steps": 0}, "num_steps=0: must be an integer of at least 1"),
        ([[1]], {"num_padding": -1}, "num_padding=-1"),
        ([[1]], {"num_padding": True}, "num_padding=True"),
        ([[1] * 250], {"num_steps": 7}, "num_steps=7: a prompt of 250 tokens would grow to 257; must not exceed 256"),
        ([[1], [2] * 30], {"num_steps": 8}, "pool: 10 free blocks of 4, must be at least 13"),
        ([[320]], {}, r"input_ids\[0\]=320"),
    ],
)
def test_what_does_not_fit_is_refused_and_keeps_no_blocks(
    prompts: list[list[int]], options: dict[str, Any], message: str, generator: GeneratorTorch
) -> None:
    pool = new_pool(10, 4)
    with pytest.raises(ValueError, match=message):
        list(multi_step_decode(generator, pool, prompts, **{"num_steps": 2, **options}))
    assert pool.available_size() == 40


# --- python -m nanoinfer demo paged ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def demo() -> str:
    """What `demo paged` prints."""
    with redirect_stdout(StringIO()) as out:
        assert main(["demo", "paged"]) == 0
    return out.getvalue()


def test_demo_paged_ends_with_the_engines_tokens_with_drafts_too(demo: str) -> None:
    assert "\033[" not in demo, "colours only on a terminal"
    assert re.findall(r"\d: equal, 9 of 9", demo) == ["0: equal, 9 of 9", "1: equal, 9 of 9", "2: equal, 9 of 9"]
    line, tree = demo.split("Drafts in a line")[1].split("Drafts in a tree")
    for part in (line, tree):
        (made,) = re.findall(r"^\d passes after the prefill: (.*) tokens instead of 9 each, equal", part, re.MULTILINE)
        assert sum(map(int, made.split(", "))) > 3 * 9, "no draft is accepted"
    table = demo.split("slot_mapping  sampled\n")[1].split("\n\n")[0].splitlines()
    for step, row in enumerate(table, start=1):
        first, *numbers = map(int, row.split())
        tokens, positions, lengths, slots = (numbers[i : i + 4] for i in (0, 4, 8, 12))
        assert (first, tokens[3], positions[3], lengths[3], slots[3]) == (step, 0, 0, 0, -1)
        assert lengths[:3] == [position + 1 for position in positions[:3]]
        assert [slot % 4 for slot in slots[:3]] == [position % 4 for position in positions[:3]]
    assert len(table) == 8


def test_demo_paged_fails_when_the_tokens_differ(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = GeneratorTorch.forward_tensor
    monkeypatch.setattr(GeneratorTorch, "forward_tensor", lambda *args, **kwargs: -forward(*args, **kwargs))
    assert main(["demo", "paged", "--steps", "2", "--block-size", "16"]) == 1
    out = capsys.readouterr().out
    assert "0: DIFFERENT, 0 of 3" in out
    assert out.count("DIFFERENT from the engine's.") == 2, "of drafts in a line and in a tree"
    assert "2 decode steps" in out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["demo", "--steps", "3"], "demo paged"),
        (["demo", "paged", "--steps", "0"], "num_steps=0"),
        (["demo", "paged", "--steps", "5000"], "num_steps=5000"),
        (["demo", "paged", "--block-size", "-4"], "page_size=-4"),
    ],
)
def test_wrong_options_are_refused(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    assert message in capsys.readouterr().err

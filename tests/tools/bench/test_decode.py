"""Three ways to decode: the figures that are not times, and the table."""

import pytest
import torch

from nanoinfer import LLM
from nanoinfer.bench.decode import bench_decode, format_decode
from nanoinfer.kernels.cpp import CppKernels


@pytest.mark.parametrize("backend", ["torch_native", "cpp"])
def test_three_ways_decode_the_same_tokens_at_different_costs(backend: str) -> None:
    if backend == "cpp" and (reason := CppKernels.why_not(torch.float32, torch.device("cpu"))):
        pytest.skip(reason)
    story = LLM("story", dtype="float32", max_running_requests=8, attention_backend=backend)
    free = story.engine.stats()["free_slots"]
    one_by_one, padded, pooled = bench_decode(story, num_requests=3, new_tokens=4, rounds=1)
    assert [one_by_one.tokens_equal, padded.tokens_equal, pooled.tokens_equal] == [True, True, True]
    assert [one_by_one.forwards, padded.forwards, pooled.forwards] == [9, 3, 3]
    assert one_by_one.bytes_copied == padded.bytes_copied > 0 == pooled.bytes_copied
    assert one_by_one.bytes_padding == 0 < padded.bytes_padding
    assert one_by_one.bytes_used == padded.bytes_used
    as_pooled = padded if backend == "torch_native" else one_by_one  # gathered into a rectangle, or read where it lies
    assert (pooled.bytes_used, pooled.bytes_padding) == (as_pooled.bytes_used, as_pooled.bytes_padding)
    assert one_by_one.ratio == 1.0
    assert "padded batch" in format_decode([one_by_one, padded, pooled])
    story.engine.check_integrity()
    assert story.engine.stats()["free_slots"] >= free


def test_a_pool_that_cannot_hold_all_requests_at_once_is_refused() -> None:
    small = LLM("story", max_total_tokens=100, max_running_requests=8)
    with pytest.raises(ValueError, match="num_requests=8"):
        bench_decode(small, num_requests=8, new_tokens=16, rounds=1)

"""InputMetadata field by field, against loops over requests and positions."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from nanoinfer.model.forward_batch import ForwardBatch, ForwardMode
from nanoinfer.model.input_metadata import InputMetadata

EXTEND, DECODE = ForwardMode.EXTEND, ForwardMode.DECODE


def make_runner(rows: int = 6, context: int = 40, slots: int = 320, page_size: int = 1) -> SimpleNamespace:
    """What InputMetadata.create needs of a ModelRunner: its two pools."""
    return SimpleNamespace(
        req_to_token_pool=ReqToTokenPool(rows, context),
        token_to_kv_pool=TokenToKVPool(slots, torch.float32, 1, 1, 1, page_size=page_size),
    )


def laid_out(runner: SimpleNamespace, rows: list[int], seq_lens: list[int], seed: int) -> dict[int, list[int]]:
    """Give each row slots in shuffled pages; returns row → slots."""
    rng = np.random.default_rng(seed)
    pool, kv_pool = runner.req_to_token_pool, runner.token_to_kv_pool
    pool.req_to_token[:] = 10**6  # left over from earlier requests; must never be read
    page_size = kv_pool.page_size
    pages = iter(rng.permutation(kv_pool.size // page_size).tolist())
    slots = {}
    for row, seq_len in zip(rows, seq_lens, strict=True):
        page_starts = [next(pages) * page_size for _ in range(-(-seq_len // page_size))]
        owned = [start + i for start in page_starts for i in range(page_size)]
        slots[row] = owned[:seq_len]
        pool.req_to_token[row, :seq_len] = torch.tensor(slots[row], dtype=torch.int32)
    return slots


def create(runner: SimpleNamespace, mode: ForwardMode = EXTEND, **changes: Any) -> InputMetadata:
    """A valid call for two requests, with `changes`."""
    arguments: dict[str, Any] = {
        "req_pool_indices": [0, 1],
        "seq_lens": [3, 5],
        "prefix_lens": [0, 2] if mode is EXTEND else None,
        "out_cache_loc": [10, 11, 12, 13, 14, 15] if mode is EXTEND else [10, 11],
        "tp_size": 1,
        **changes,
    }
    return InputMetadata.create(runner, forward_mode=mode, **arguments)


def assert_tensor(actual: torch.Tensor | None, expected: list[int], dtype: torch.dtype = torch.int32) -> None:
    assert actual.dtype == dtype
    assert actual.tolist() == expected


def cumulative(lens: list[int]) -> list[int]:
    return [sum(lens[:i]) for i in range(len(lens) + 1)]


def assert_pages(meta: InputMetadata, slots: list[list[int]], page_size: int) -> None:
    """`paged_csr` names the page of every `page_size`-th slot of each request."""
    kv_indptr, kv_indices, kv_last_page_len = meta.paged_csr()
    pages = [[slot // page_size for slot in each[::page_size]] for each in slots]
    assert_tensor(kv_indptr, cumulative([len(each) for each in pages]))
    assert_tensor(kv_indices, [page for each in pages for page in each])
    assert_tensor(kv_last_page_len, [len(each) % page_size or page_size for each in slots])


CASES = [
    pytest.param([0], [1], [0], id="one token"),
    pytest.param([0], [12], [7], id="one request with a prefix"),
    pytest.param([3, 0, 5], [5, 9, 1], [0, 0, 0], id="several, no prefix"),
    pytest.param([2, 4, 1, 0], [17, 33, 8, 16], [16, 0, 7, 4], id="several, with and without prefix"),
    pytest.param([5, 1], [40, 40], [39, 0], id="up to the context length"),
    pytest.param([2, 0, 4], [16, 17, 1], None, id="decode"),
    pytest.param([1, 5], [40, 33], None, id="decode up to the context length"),
]


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize(("rows", "seq_lens", "prefix_lens"), CASES)
def test_every_field(rows: list[int], seq_lens: list[int], prefix_lens: list[int] | None, page_size: int) -> None:
    runner = make_runner(page_size=page_size)
    slots = laid_out(runner, rows, seq_lens, seed=len(rows))
    mode = DECODE if prefix_lens is None else EXTEND
    starts = [seq - 1 for seq in seq_lens] if prefix_lens is None else prefix_lens
    positions = [range(start, seq) for start, seq in zip(starts, seq_lens, strict=True)]
    new_lens = [len(each) for each in positions]
    out = [slots[row][position] for row, each in zip(rows, positions, strict=True) for position in each]
    extends = mode is EXTEND
    meta = InputMetadata.create(runner, 1, mode, rows, seq_lens, prefix_lens, out, return_normalized_logprob=extends)

    assert meta.forward_mode is mode
    assert (meta.batch_size, meta.total_num_tokens, meta.max_seq_len) == (len(rows), sum(seq_lens), max(seq_lens))
    assert meta.req_to_token_pool is runner.req_to_token_pool
    assert meta.token_to_kv_pool is runner.token_to_kv_pool
    assert meta.model_runner is runner
    assert meta.return_normalized_logprob is extends
    assert (meta.out_cache_cont_start, meta.out_cache_cont_end) == (None, None)
    assert_tensor(meta.req_pool_indices, rows)
    assert_tensor(meta.seq_lens, seq_lens)
    assert_tensor(meta.start_loc, cumulative(seq_lens)[:-1])
    assert_tensor(meta.qo_indptr, cumulative(new_lens))
    assert_tensor(meta.kv_indptr, cumulative(seq_lens))
    assert_tensor(meta.out_cache_loc, out)
    assert_tensor(meta.positions, [position for each in positions for position in each], torch.int64)
    assert_tensor(meta.kv_indices, [slot for row in rows for slot in slots[row]])
    assert_tensor(meta.kv_last_page_len, [1] * len(rows))
    assert_pages(meta, [slots[row] for row in rows], page_size)
    if extends:
        assert (meta.max_extend_len, meta.other_kv_index) == (max(new_lens), None)
        assert_tensor(meta.prefix_lens, starts)
        assert_tensor(meta.extend_seq_lens, new_lens)
        assert_tensor(meta.extend_start_loc, cumulative(new_lens)[:-1])
    else:
        assert (meta.prefix_lens, meta.extend_seq_lens, meta.extend_start_loc) == (None, None, None)
        assert meta.other_kv_index == out[0]
        assert isinstance(meta.other_kv_index, int)


def test_new_tokens_go_where_out_cache_loc_says_even_before_the_row_knows() -> None:
    runner = make_runner()
    runner.req_to_token_pool.req_to_token[:] = 99
    assert_tensor(create(runner).kv_indices, [10, 11, 12, 99, 99, 13, 14, 15])
    assert_tensor(create(runner, DECODE).kv_indices, [99, 99, 10, 99, 99, 99, 99, 11])
    assert runner.req_to_token_pool.req_to_token.eq(99).all()  # nothing is written


@pytest.mark.parametrize("slot", [-1, 320])
def test_a_row_that_names_no_slot_is_refused_before_anybody_reads_there(slot: int) -> None:
    runner = make_runner()
    runner.req_to_token_pool.req_to_token[1, 1] = slot
    for mode in (EXTEND, DECODE):
        with pytest.raises(ValueError, match=rf"req_to_token\[1, 1\]={slot}: must be in 0\.\.319"):
            create(runner, mode)


def test_prefix_lens_do_not_matter_in_decode() -> None:
    meta = create(make_runner(), DECODE, prefix_lens=[77, -3, 5])
    assert meta.prefix_lens is None
    assert_tensor(meta.positions, [2, 4], torch.int64)


@pytest.mark.parametrize("form", [list, tuple, np.array, lambda v: torch.tensor(v, dtype=torch.int32), torch.tensor])
def test_indices_may_be_sequences_arrays_or_tensors(form: Any) -> None:
    meta = create(
        make_runner(),
        req_pool_indices=form([0, 1]),
        seq_lens=form([3, 5]),
        prefix_lens=form([0, 2]),
        out_cache_loc=form([10, 11, 12, 13, 14, 15]),
    )
    assert_tensor(meta.positions, [0, 1, 2, 2, 3, 4], torch.int64)
    assert_tensor(meta.out_cache_loc, [10, 11, 12, 13, 14, 15])


def test_the_metadata_does_not_alias_its_arguments() -> None:
    seq_lens, out = torch.tensor([3, 5], dtype=torch.int32), torch.arange(10, 16, dtype=torch.int32)
    meta = create(make_runner(), seq_lens=seq_lens, out_cache_loc=out)
    seq_lens[:], out[:] = 0, 0
    assert_tensor(meta.seq_lens, [3, 5])
    assert_tensor(meta.out_cache_loc, [10, 11, 12, 13, 14, 15])


def test_neighbouring_slots_are_written_as_a_slice_and_others_by_index() -> None:
    keys = torch.arange(6.0).view(6, 1, 1)
    contiguous = create(make_runner(), out_cache_cont_start=10, out_cache_cont_end=16)
    scattered = create(make_runner(), out_cache_loc=[10, 3, 12, 5, 14, 1])
    assert (contiguous.out_cache_cont_start, contiguous.out_cache_cont_end) == (10, 16)
    assert contiguous.out_cache_index == slice(10, 16)
    for meta in (contiguous, scattered):
        pool = meta.token_to_kv_pool
        pool.set_kv_buffer(0, meta.out_cache_index, keys, keys)
        assert torch.equal(pool.get_key_buffer(0)[meta.out_cache_loc.long()], keys)


@pytest.mark.parametrize(
    ("mode", "changes", "named"),
    [
        (EXTEND, {"tp_size": 2}, "tp_size=2"),
        (EXTEND, {"prefix_lens": None}, "prefix_lens=None"),
        (EXTEND, {"req_pool_indices": [], "seq_lens": [], "prefix_lens": [], "out_cache_loc": []}, "req_pool_indices"),
        (EXTEND, {"req_pool_indices": [0, 6]}, r"req_pool_indices\[1\]=6"),
        (EXTEND, {"req_pool_indices": [1, 1]}, "req_pool_indices: row 1 is given twice"),
        (EXTEND, {"seq_lens": [3, 41]}, r"seq_lens\[1\]=41"),
        (EXTEND, {"seq_lens": [0, 5]}, r"seq_lens\[0\]=0"),
        (EXTEND, {"prefix_lens": [3, 2]}, r"prefix_lens\[0\]=3"),
        (EXTEND, {"out_cache_loc": [10, 11, 12, 13, 14]}, "out_cache_loc: 5 slots for 6"),
        (EXTEND, {"out_cache_loc": [10, 11, 12, 13, 14, 320]}, "out_cache_loc: slot 320"),
        (EXTEND, {"out_cache_loc": [10, 11, 12, 11, 14, 15]}, "out_cache_loc: slot 11 is given twice"),
        (EXTEND, {"out_cache_cont_start": 10}, "out_cache_cont_end=None"),
        (
            EXTEND,
            {"out_cache_loc": [11, 10, 12, 13, 14, 15], "out_cache_cont_start": 10, "out_cache_cont_end": 16},
            "must be the range of out_cache_loc",
        ),
        (DECODE, {"out_cache_loc": [10, 10]}, "out_cache_loc: slot 10 is given twice"),
    ],
)
def test_what_does_not_fit_together_is_refused_by_field(mode: ForwardMode, changes: dict[str, Any], named: str) -> None:
    create(make_runner(), mode)  # without the change it is fine
    with pytest.raises(ValueError, match=named):
        create(make_runner(), mode, **changes)


@pytest.mark.parametrize(
    ("mode", "out", "message"),
    [
        (EXTEND, [10, 11, 12, 13, 14, 21], r"slot 21 is req_to_token\[1, 1\]"),  # that of its request
        (EXTEND, [10, 20, 12, 13, 14, 15], r"slot 20 is req_to_token\[1, 0\]"),  # that of another
        (DECODE, [10, 31], r"slot 31 is req_to_token\[0, 1\]"),
        (DECODE, [23, 11], r"slot 23 is req_to_token\[1, 3\]"),
    ],
)
def test_a_new_slot_that_is_a_prefix_in_the_pass_is_refused(mode: ForwardMode, out: list[int], message: str) -> None:
    runner = make_runner()
    rows = runner.req_to_token_pool.req_to_token
    rows[0, :3], rows[1, :5] = torch.tensor([30, 31, 32]), torch.tensor([20, 21, 22, 23, 24])
    create(runner, mode)
    with pytest.raises(ValueError, match=f"out_cache_loc: {message}, a prefix in this pass"):
        create(runner, mode, out_cache_loc=out)
    last = [32, 24] if mode is DECODE else [30, 31, 32, 22, 23, 24]  # where the rows say they go: no prefix
    assert_tensor(create(runner, mode, out_cache_loc=last).out_cache_loc, last)


def test_two_requests_may_share_their_prefix() -> None:
    runner = make_runner()
    runner.req_to_token_pool.req_to_token[:2, :4] = torch.tensor([7, 8, 9, 6])
    meta = create(runner, EXTEND, prefix_lens=[2, 4], out_cache_loc=[10, 11])
    assert_tensor(meta.kv_indices, [7, 8, 10, 7, 8, 9, 6, 11])


@pytest.mark.parametrize(
    ("slots", "expected"), [([4, 5, 6], (4, 7)), ([0], (0, 1)), ([4, 6, 7], (None, None)), ([5, 4, 3], (None, None))]
)
def test_new_slots_that_are_neighbours_are_a_range(slots: list[int], expected: tuple[int | None, int | None]) -> None:
    lens = torch.tensor([len(slots)], dtype=torch.int32)
    batch = ForwardBatch(
        forward_mode=EXTEND,
        req_pool_indices=torch.zeros(1, dtype=torch.int32),
        seq_lens=lens,
        prefix_lens=torch.zeros_like(lens),
        out_cache_loc=torch.tensor(slots, dtype=torch.int32),
    )
    meta = InputMetadata.of(make_runner(), batch)
    assert (meta.out_cache_cont_start, meta.out_cache_cont_end) == expected


# --- the seed's named parts of create ----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [EXTEND, DECODE])
def test_the_seeds_parts_fill_in_what_create_does(mode: ForwardMode) -> None:
    """A record with the seed's constructor arguments alone, and its two methods."""
    runner = make_runner(page_size=4)
    slots = laid_out(runner, [2, 0], [9, 6], seed=1)
    out = [slots[2][-1], slots[0][-1]]
    meta = InputMetadata.create(runner, 1, mode, [2, 0], [9, 6], [8, 5] if mode is EXTEND else None, out)
    of_seed = (
        "forward_mode batch_size total_num_tokens max_seq_len req_pool_indices start_loc seq_lens prefix_lens positions "
        "req_to_token_pool token_to_kv_pool out_cache_loc other_kv_index"
    )
    bare = InputMetadata(**{name: getattr(meta, name) for name in of_seed.split()})
    assert (bare.extend_seq_lens, bare.extend_start_loc, bare.max_extend_len, bare.kv_indptr) == (None, None, 0, None)
    if mode is EXTEND:
        bare.init_extend_args()
        assert_tensor(bare.extend_seq_lens, [1, 1])
        assert_tensor(bare.extend_start_loc, [0, 1])
        assert bare.max_extend_len == meta.max_extend_len == 1
    else:
        with pytest.raises(ValueError, match="prefix_lens=None"):
            bare.init_extend_args()
    bare.init_flashinfer_args(1)
    assert_tensor(bare.kv_indices, slots[2] + slots[0])
    for name in ("qo_indptr", "kv_indptr", "kv_indices", "kv_last_page_len"):
        assert_tensor(getattr(bare, name), getattr(meta, name).tolist())
    bare.init_flashinfer_args(2)  # of a split model: the same
    assert_tensor(bare.kv_indices, slots[2] + slots[0])
    bare.init_flashinfer_args()  # again: the same
    assert_tensor(bare.kv_indptr, [0, 9, 15])


# --- pages -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slots", "message"),
    [
        ([4, 5, 6, 7, 12, 13], None),
        ([4, 5, 6, 7, 8, 10], r"kv_indices\[5\]=10: token 5 of request 0 must be slot 1 of a page of 4"),
        ([5, 6, 7, 8, 9, 10], r"kv_indices\[0\]=5: token 0 of request 0 must be slot 0 of a page of 4"),
        ([4, 5, 10, 11, 12, 13], r"kv_indices\[2\]=10: token 2"),
        ([4, 5, 6, 7, 13, 12], r"kv_indices\[4\]=13: token 4"),
    ],
)
def test_slots_that_do_not_lie_in_pages_have_no_description_in_pages(slots: list[int], message: str | None) -> None:
    meta = create(make_runner(page_size=4), req_pool_indices=[0], seq_lens=[6], prefix_lens=[0], out_cache_loc=slots)
    assert_tensor(meta.kv_indices, slots)
    if message is None:
        assert [each.tolist() for each in meta.paged_csr()] == [[0, 2], [1, 3], [2]]
        return
    with pytest.raises(ValueError, match=message):
        meta.paged_csr()


@pytest.mark.parametrize("page_size", [1, 4])
def test_kv_that_is_not_stored_has_no_page(page_size: int) -> None:
    meta = InputMetadata.create(make_runner(page_size=page_size), 1, EXTEND, [0], [2], [0], [0, 1])
    meta.kv_indices[:] = -1
    with pytest.raises(ValueError, match=r"kv_indices\[0\]=-1: token 0 of request 0"):
        meta.paged_csr()

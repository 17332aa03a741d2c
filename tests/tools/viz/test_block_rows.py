"""The picture of one request three ways: slots in its row, blocks in its table, and its tokens in the pool's buffer."""

from typing import Any

import pytest
import torch

pytest.importorskip("matplotlib")

from nanoinfer import viz
from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from nanoinfer.viz.palette import ROLES, request_style
from tests.helpers.pictures import assert_readable, faces, make_pool, named, take, texts

SLOTS = [8, 9, 10, 11, 0, 1]


def pools(slots: list[int] = SLOTS, page_size: int = 4, size: int = 32) -> tuple[ReqToTokenPool, TokenToKVPool]:
    """A pool whose first 12 slots (or whole page) are taken, and a row 1 with these slots."""
    rows, pool = ReqToTokenPool(3, 64), make_pool(size, page_size)
    take(pool, -(-12 // page_size) * page_size)
    rows.req_to_token[1, : len(slots)] = torch.tensor(slots, dtype=torch.int32)
    return rows, pool


def test_a_request_is_drawn_as_slots_as_blocks_and_in_the_buffer() -> None:
    picture = viz.block_rows(*pools(), 1, 6, new=1)
    own, new = request_style(1).face, ROLES["new"].face
    assert [faces(picture, f"row {n}")[0] for n in range(6)] == [*[own] * 5, new]
    assert [faces(picture, f"table {i}")[0] for i in range(2)] == [own] * 2
    assert {"block 2", "block 0", "its row", "block table", "the buffer", "[8, 4, ...]"} <= set(texts(picture))
    assert len(named(picture, "slot ")) == 32
    looks = {slot: faces(picture, f"slot {slot}")[0] for slot in (8, 0, 1, 2, 3, 4, 12)}
    empty, others, free = (ROLES[role].face for role in ("padding", "in_use", "free"))
    assert looks == {8: own, 0: own, 1: new, 2: empty, 3: empty, 4: others, 12: free}
    assert picture.alt == (
        "request 1 has 6 tokens in slots 8-11, 0-1, the last 1 token computed in this pass; its block table is [2, 0] with "
        "blocks of 4 slots; the buffer has 8 blocks."
    )
    assert_readable(picture)


def test_the_legend_names_what_occurs() -> None:
    rows, pool = pools([0, 1, 2, 3])
    everything = {
        "request 1: its tokens",
        "computed in this pass",
        "the request's, still empty",
        "in use by others",
        "free",
    }
    assert everything & set(texts(viz.block_rows(rows, pool, 1, 4))) == everything - {
        "computed in this pass",
        "the request's, still empty",
    }
    take(pool, 20)
    rows.req_to_token[1, :32] = torch.arange(32)
    assert everything & set(texts(viz.block_rows(rows, pool, 1, 32))) == {"request 1: its tokens"}


@pytest.mark.parametrize(("page_size", "size"), [(1, 32), (2, 64), (8, 256), (64, 256)])
def test_it_is_readable_with_blocks_of_any_size(page_size: int, size: int) -> None:
    rows, pool = pools(list(range(20)), page_size, size)
    picture = viz.block_rows(rows, pool, 1, 20, new=20, title="A title", caption="A caption.")
    assert_readable(picture)
    assert picture.alt.startswith("A caption. request 1 has 20 tokens")


@pytest.mark.parametrize(
    ("slots", "arguments", "message"),
    [
        (SLOTS, (3, 6), "row: row 3 is outside 0..2"),
        (SLOTS, (1, 33), r"row\[1\]=33: must be an integer in 0..32"),
        (SLOTS, (1, 0), "length=0: must be at least 1"),
        (SLOTS, (1, 6, 7), "new=7: must be an integer in 0..6"),
        (SLOTS, (1, 6, True), "new=True: must be an integer"),
        ([8, 9, 11], (1, 3), "token 2 is in slot 11, must be in 10: a block table lists whole blocks of page_size=4"),
        ([9, 10], (1, 2), "token 0 is in slot 9, must be in 8"),
        ([32, 33], (1, 2), r"token 0 is in slot 32, must be in 0..31"),
    ],
)
def test_what_has_no_block_table_and_numbers_out_of_range_are_refused(
    slots: list[int], arguments: tuple[Any, ...], message: str
) -> None:
    row, length, *new = arguments
    with pytest.raises(ValueError, match=message):
        viz.block_rows(*pools(slots), row, length, **({"new": new[0]} if new else {}))


def test_other_things_than_pools_and_large_pools_are_refused() -> None:
    rows, pool = pools()
    with pytest.raises(ValueError, match="req_to_token_pool: must be ReqToTokenPool, got TokenToKVPool"):
        viz.block_rows(pool, pool, 1, 6)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="token_to_kv_pool: must be TokenToKVPool, got int"):
        viz.block_rows(rows, 5, 1, 6)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="token_to_kv_pool: 260 slots; at most 256"):
        viz.block_rows(rows, make_pool(260, 4), 1, 6)

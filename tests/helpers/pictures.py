"""What tests of pictures look at and how: texts and shapes by name, and small pools, trees and metadata to draw."""

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import torch
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from nanoinfer import viz
from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from nanoinfer.cache.radix_cache import RadixCache
from nanoinfer.cache.tree_node import TreeNode
from nanoinfer.model.forward_batch import ForwardMode
from nanoinfer.model.input_metadata import InputMetadata


def texts(picture: viz.Picture) -> list[str]:
    return [text.get_text() for text in picture.findobj(Text) if text.get_text()]


def named(picture: viz.Picture, start: str) -> list[Rectangle]:
    """The filled shapes whose name begins with `start`."""
    return [patch for patch in picture.findobj(Rectangle) if (patch.get_gid() or "").startswith(start)]


def faces(picture: viz.Picture, name: str) -> list[str]:
    """The colours of the shapes with exactly this name."""
    return [to_hex(patch.get_facecolor()) for patch in named(picture, name) if patch.get_gid() == name]


def assert_readable(picture: viz.Picture) -> None:
    """Every text lies inside the picture, none on another; it is as wide as a notebook and not endless."""
    picture.draw_without_rendering()  # lays everything out
    width, height = picture.canvas.get_width_height()
    boxes = []
    for text in picture.findobj(Text):
        if text.get_text().strip() and text.get_visible():
            box = text.get_window_extent()
            assert box.x0 >= -1, text.get_text()
            assert box.x1 <= width + 1, text.get_text()
            assert box.y0 >= -1, text.get_text()
            assert box.y1 <= height + 1, text.get_text()
            if not text.get_rotation():
                boxes.append((text.get_text(), box))
    edges = np.array([box.extents for _, box in boxes])  # left, bottom, right, top
    across, down = (
        np.minimum.outer(edges[:, i + 2], edges[:, i + 2]) - np.maximum.outer(edges[:, i], edges[:, i]) for i in (0, 1)
    )
    for i, j in np.argwhere(np.triu((across > 1.5) & (down > 3), 1)).tolist():
        raise AssertionError(f"{boxes[i][0]!r} lies on {boxes[j][0]!r}")
    assert picture.get_figwidth() * 100 == 900
    assert picture.get_figheight() * 100 <= 1300


def make_pool(size: int, page_size: int = 1) -> TokenToKVPool:
    return TokenToKVPool(size, torch.float32, head_num=1, head_dim=1, layer_num=1, page_size=page_size)


def take(pool: TokenToKVPool, size: int) -> torch.Tensor:
    slots = pool.alloc(size)
    assert slots is not None
    return slots


def make_tree(size: int = 4000) -> RadixCache:
    return RadixCache(ReqToTokenPool(1, 8), make_pool(size))


def insert(tree: RadixCache, tokens: Sequence[int], extra_key: object = None) -> TreeNode:
    """Put tokens in; the node where they end."""
    slots = take(tree.token_to_kv_pool, len(tokens))
    tree.token_to_kv_pool.free(slots[: tree.insert(tokens, slots, extra_key)])  # type: ignore[arg-type]
    return tree.match_prefix(tokens, extra_key, count_hit=False).last_node  # type: ignore[arg-type]


def make_metadata(
    prefix_lens: Sequence[int], new_lens: Sequence[int], mode: ForwardMode = ForwardMode.EXTEND, page_size: int = 1
) -> InputMetadata:
    """Requests with their rows at 0, 1, ... and slots that begin at 0, 1000, ..., new ones at 20,000, 20,500, ..."""
    pools = SimpleNamespace(req_to_token_pool=ReqToTokenPool(16, 2048), token_to_kv_pool=make_pool(40_000, page_size))
    out: list[int] = []
    for row, (prefix, new) in enumerate(zip(prefix_lens, new_lens, strict=True)):
        pools.req_to_token_pool.req_to_token[row, :prefix] = torch.arange(prefix, dtype=torch.int32) + 1000 * row
        out += range(20_000 + 500 * row, 20_000 + 500 * row + new)
    seq_lens = [prefix + new for prefix, new in zip(prefix_lens, new_lens, strict=True)]
    prefixes = None if mode is ForwardMode.DECODE else prefix_lens
    return InputMetadata.create(pools, 1, mode, list(range(len(seq_lens))), seq_lens, prefixes, out)


def make_rows() -> ReqToTokenPool:
    """Four rows: short, with a prefix of another's slots and two entries left over, long, and in runs."""
    pool = ReqToTokenPool(4, 512)
    pool.req_to_token[0, :9] = torch.arange(9)
    pool.req_to_token[1, :14] = torch.tensor([0, 1, 2, 3, *range(20, 29), 40])
    pool.req_to_token[1, 14:16] = torch.tensor([7, 8])
    pool.req_to_token[2, :177] = torch.arange(177)
    pool.req_to_token[3, :40] = torch.arange(40) * 2
    return pool


def worked_example() -> InputMetadata:
    """The second request of the worked example: an extend of 5 after a hit of 7."""
    pools = SimpleNamespace(req_to_token_pool=ReqToTokenPool(4, 48), token_to_kv_pool=make_pool(64))
    pools.req_to_token_pool.req_to_token[0, :16] = torch.arange(16, dtype=torch.int32)
    return InputMetadata.create(pools, 1, ForwardMode.EXTEND, [0], [12], [7], [16, 17, 18, 19, 20], 16, 21)

"""What InputMetadata.create needs of a ModelRunner."""

from types import SimpleNamespace

import torch

from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool


def make_runner(rows: int = 6, context: int = 40, slots: int = 320, page_size: int = 1) -> SimpleNamespace:
    """Its two pools."""
    return SimpleNamespace(
        req_to_token_pool=ReqToTokenPool(rows, context),
        token_to_kv_pool=TokenToKVPool(slots, torch.float32, 1, 1, 1, page_size=page_size),
    )

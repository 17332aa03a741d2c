"""What an adapter is, whatever it is called and wherever it lies: K/V that is kept for later is kept under this."""

from hashlib import sha256

import torch

from nanoinfer.adapters.adapter import Adapter


def adapter_digest(adapter: Adapter) -> str:
    """SHA-256 over the projections, scales, shapes, dtypes and numbers of an adapter: the same for equal ones, always."""
    digest = sha256()
    for name, part in sorted(adapter.parts.items()):
        for tensor in (part.a, part.b):
            digest.update(f"{name} {part.scale!r} {tensor.dtype} {list(tensor.shape)}\n".encode())
            digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()

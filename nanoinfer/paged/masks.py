"""Turns spec_mask and atten_mask, in all their shapes and dtypes, into one matrix that is added to attention scores."""

import numpy as np
import torch


def read_masks(
    spec_mask: torch.Tensor | None,
    atten_mask: torch.Tensor | None,
    is_prefill: bool,
    request: np.ndarray,
    indices: np.ndarray,
    batch_size: int,
    width: int,
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor | None:
    """The sum of both masks, `[T, width]` of `dtype`: 0 = see, −inf = hide. None without masks.

    `request`, `indices` [T]: each token's request and its index in that request. `width`: max(input_lengths). ValueError
    naming the mask and the limit when a shape or dtype is wrong, a mask has NaN or +inf, or `atten_mask` is ambiguous.
    """
    masks = []
    if spec_mask is not None:
        if is_prefill:
            raise ValueError("spec_mask: is for decode (is_prefill=False); a prefill takes an atten_mask")
        _check("spec_mask", spec_mask, bool_too=False)
        if list(spec_mask.shape) != [len(indices), width]:
            raise ValueError(
                f"spec_mask: shape {list(spec_mask.shape)}, must be [sum(q_lens), max(input_lengths)] = "
                f"[{len(indices)}, {width}]"
            )
        masks.append(spec_mask)
    if atten_mask is not None:
        _check("atten_mask", atten_mask, bool_too=True)
        masks.append(_row_per_token(atten_mask, request, indices, batch_size, width))
    if not masks:
        return None
    return torch.stack([_additive(mask, dtype, device) for mask in masks]).sum(0)


def _row_per_token(
    mask: torch.Tensor, request: np.ndarray, indices: np.ndarray, batch_size: int, width: int
) -> torch.Tensor:
    """Convert `atten_mask` from any of its shapes to [T, width]: what each new token may see of its sequence."""
    shape = list(mask.shape)
    index = torch.from_numpy(indices).to(mask.device)
    by_token = by_index = None
    if shape == [len(indices), width]:
        by_token = mask
    if len(shape) in (2, 3) and shape[-1] == shape[-2] and shape[-1] >= width:
        if len(shape) == 2:
            by_index = mask[index, :width]
        elif shape[0] == batch_size:
            by_index = mask[torch.from_numpy(request).to(mask.device), index, :width]
    if by_token is not None and by_index is not None and not torch.equal(by_token, by_index):
        raise ValueError(
            f"atten_mask: shape {shape}, could be rows of new tokens or of indices; give [B, M, M] instead"
        )
    wanted = by_index if by_token is None else by_token
    if wanted is None:
        raise ValueError(
            f"atten_mask: shape {shape}, must be [{len(indices)}, {width}] (new tokens, max(input_lengths)), [M, M] or "
            f"[{batch_size}, M, M] with M of at least {width}"
        )
    return wanted


def _check(name: str, mask: torch.Tensor, bool_too: bool) -> None:
    if not isinstance(mask, torch.Tensor):
        raise ValueError(f"{name}: must be a tensor, got {type(mask).__name__}")
    if mask.dtype == torch.bool and bool_too:
        return
    if not mask.is_floating_point():
        allowed = "boolean (True = see) or floating point" if bool_too else "floating point (0 = see)"
        raise ValueError(f"{name}: dtype {mask.dtype}, must be {allowed}")
    if bool((mask.isnan() | mask.isposinf()).any()):
        raise ValueError(f"{name}: holds NaN or +inf; 0 = see, a large negative number = hide")


def _additive(mask: torch.Tensor, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if mask.dtype == torch.bool:
        return torch.zeros(mask.shape, dtype=dtype, device=device).masked_fill(~mask.to(device), -torch.inf)
    return mask.detach().to(device, dtype)

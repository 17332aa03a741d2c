"""FlashInfer's description of paged K/V, in the pool's pages, for external kernels that read whole pages."""

import torch


def paged_csr(
    kv_indptr: torch.Tensor, kv_indices: torch.Tensor, page_size: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Describe the tokens of `kv_indptr` [B+1] and `kv_indices` [Σ], which are slots, in pages of `page_size` slots.

    Returns int32 `kv_indptr` [B+1], which counts pages; `kv_indices`, which are page numbers; and `kv_last_page_len` [B],
    how many tokens are in each sequence's last page, 1..P. With `pages = key_buffer.view(N // P, P, Hk, D)`, sequence i is
    `pages[kv_indices[kv_indptr[i] : kv_indptr[i + 1]]]`, end to end, without the unused end of the last page.

    Raises ValueError naming the token when a sequence's slots do not fill one page after another from its start and in
    order, or when K/V is not stored (−1). Source: FlashInfer, "KV-Cache Layout in FlashInfer", page table layout.
    """
    seq_lens = kv_indptr.diff().long()
    num_pages = (seq_lens + page_size - 1) // page_size
    request = torch.arange(len(seq_lens), device=seq_lens.device).repeat_interleave(seq_lens)
    position = torch.arange(len(kv_indices), device=seq_lens.device) - kv_indptr[request]
    page_indptr = torch.cat((kv_indptr[:1].long(), num_pages.cumsum(0)))
    offset = position % page_size
    pages = kv_indices[offset == 0] // page_size
    expected = pages[page_indptr[request] + position // page_size] * page_size + offset
    for i in torch.nonzero((expected != kv_indices) | (kv_indices < 0))[:1, 0].tolist():
        raise ValueError(
            f"kv_indices[{i}]={int(kv_indices[i])}: token {int(position[i])} of request {int(request[i])} must be slot "
            f"{int(offset[i])} of a page of {page_size}, in the page of the token before it or at the start of one"
        )
    return page_indptr.int(), pages.int(), ((seq_lens - 1) % page_size + 1).int()

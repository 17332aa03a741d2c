"""row_pointers: lengths and prefixes of three requests, and what InputMetadata makes of them: positions, slots, CSR."""

import itertools
from collections.abc import Sequence
from types import SimpleNamespace

import torch

from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from nanoinfer.model.forward_batch import ForwardMode
from nanoinfer.model.input_metadata import InputMetadata
from notebooks.course.explore.control import Control
from notebooks.course.explore.explorable import Explorable, Frame
from notebooks.course.explore.panels.base import Panel
from notebooks.course.explore.panels.cells import Cell, CellRow, Cells
from notebooks.course.explore.panels.numbers import Number, Numbers

MODES = (ForwardMode.EXTEND, ForwardMode.DECODE)
SEQ_LENS, PREFIX_LENS = ((4, 5, 6), (1, 2, 3)), ((0, 1, 2, 3), (0, 1, 2))  # to choose from, of A and of B
C_LENS = 4, 2  # of C: its tokens, and how many of them come before an EXTEND
NAMES, ROWS = "ABC", (2, 0, 1)
PREFIX_SLOTS = ([8, 9, 10, 11, 12], [2, 3], [16, 17, 18])  # as far as a prefix may reach
TAKEN, SLOTS = 20, 32  # the lowest slots are taken already


def row_pointers(
    seq_lens: Sequence[Sequence[int]] = SEQ_LENS, prefix_lens: Sequence[Sequence[int]] = PREFIX_LENS
) -> Explorable:
    """The mode, and `seq_lens` and `prefix_lens` of A and of B → the description of the pass, as the layers get it."""
    controls = [
        Control("mode", "the pass", [mode.name for mode in MODES]),
        Control("seq_a", "seq_lens of A", list(seq_lens[0]), start=1),
        Control("prefix_a", "prefix_lens of A", list(prefix_lens[0]), start=len(prefix_lens[0]) - 1),
        Control("seq_b", "seq_lens of B", list(seq_lens[1]), start=len(seq_lens[1]) - 1),
        Control("prefix_b", "prefix_lens of B", list(prefix_lens[1]), start=1),
    ]
    frames = {}
    for indices in itertools.product(*(range(len(control.values)) for control in controls)):
        mode, seq_a, prefix_a, seq_b, prefix_b = (c.values[i] for c, i in zip(controls, indices, strict=True))
        frames[indices] = _frame(ForwardMode[mode], [seq_a, seq_b, C_LENS[0]], [prefix_a, prefix_b, C_LENS[1]])
    return Explorable(
        "How do lengths become row pointers?",
        "Three requests share a pass. Change the lengths of A and B, and watch where their parts of the flat lists begin: "
        "qo_indptr says it for new tokens, kv_indptr for all tokens. C stays as it is, but its parts move.",
        controls,
        frames,
        height=1090,
        source=f"Computed with InputMetadata.create, for each of {len(frames)} settings.",
    )


def described(mode: ForwardMode, seq_lens: Sequence[int], prefix_lens: Sequence[int]) -> InputMetadata:
    """The pass of A, B and C with these lengths: prefixes in PREFIX_SLOTS, new tokens in the lowest free slots."""
    rows, pool = (
        ReqToTokenPool(len(ROWS), max(map(len, PREFIX_SLOTS)) + 1),
        TokenToKVPool(SLOTS, torch.float32, 1, 2, 1),
    )
    for row, slots in zip(ROWS, PREFIX_SLOTS, strict=True):
        rows.req_to_token[row, : len(slots)] = torch.tensor(slots, dtype=torch.int32)
    pool.alloc(TAKEN)
    prefixes = None if mode is ForwardMode.DECODE else prefix_lens
    new = len(seq_lens) if prefixes is None else sum(max(a - b, 0) for a, b in zip(seq_lens, prefixes, strict=True))
    runner = SimpleNamespace(req_to_token_pool=rows, token_to_kv_pool=pool)
    free = pool.alloc(new)
    assert free is not None
    return InputMetadata.create(runner, 1, mode, ROWS, seq_lens, prefixes, free)


def _frame(mode: ForwardMode, seq_lens: list[int], prefix_lens: list[int]) -> Frame:
    try:
        metadata = described(mode, seq_lens, prefix_lens)
    except ValueError as error:
        given = [Number("seq_lens", str(seq_lens)), Number("prefix_lens", str(prefix_lens))]
        refused = Number("InputMetadata.create raises", f"ValueError: {error}", strong=True)
        why = "A pass computes at least one token of each request: without one, the request would get no logits."
        return Frame([Numbers("No pass", [*given, refused])], why)
    qo, kv = metadata.qo_indptr.tolist(), metadata.kv_indptr.tolist()
    of_prefix = None if metadata.prefix_lens is None else metadata.prefix_lens.tolist()
    numbers = [
        Number("seq_lens", str(metadata.seq_lens.tolist())),
        Number("prefix_lens", str(of_prefix)),
        Number("qo_indptr", str(qo), strong=True),
        Number("kv_indptr", str(kv), strong=True),
    ]
    panels: list[Panel] = [_new_tokens(metadata), _all_tokens(metadata), Numbers("Lengths and row pointers", numbers)]
    return Frame(panels, _sentence(qo, kv, of_prefix is None))


def _new_tokens(metadata: InputMetadata) -> Cells:
    new = metadata.qo_indptr.diff().tolist()
    owners = [i for i, length in enumerate(new) for _ in range(length)]
    rows = [
        CellRow("request", [Cell(f"r{i}", NAMES[i]) for i in owners]),
        CellRow("positions", [Cell(f"r{i}", str(p)) for i, p in zip(owners, metadata.positions.tolist(), strict=True)]),
        CellRow("out_cache_loc", [Cell("new", str(slot)) for slot in metadata.out_cache_loc.tolist()]),
    ]
    return Cells("The new tokens: position, and slot to write", rows, columns=[str(i) for i in range(len(owners))])


def _all_tokens(metadata: InputMetadata) -> Cells:
    new, kv = metadata.qo_indptr.diff().tolist(), metadata.kv_indptr.tolist()
    owners = [i for i in range(len(new)) for _ in range(kv[i], kv[i + 1])]
    looks = ["new" if t >= kv[i + 1] - new[i] else f"r{i}" for t, i in enumerate(owners)]
    rows = [
        CellRow("request", [Cell(f"r{i}", NAMES[i]) for i in owners]),
        CellRow(
            "kv_indices",
            [Cell(look, str(slot)) for look, slot in zip(looks, metadata.kv_indices.tolist(), strict=True)],
        ),
    ]
    legend = [*((f"r{i}", f"{name}, K/V from earlier passes") for i, name in enumerate(NAMES) if f"r{i}" in looks)]
    legend.append(("new", "computed in this pass"))
    return Cells("All tokens: the slots to read", rows, legend=legend, columns=[str(i) for i in range(len(owners))])


def _sentence(qo: list[int], kv: list[int], decode: bool) -> str:
    read = f"C reads kv_indices[{kv[2]}:{kv[3]}], because A and B have {kv[2]} tokens before it. "
    if decode:
        return f"{read}Each request has one new token, so qo_indptr counts 0, 1, 2, 3, whatever the lengths."
    new = f"{qo[2]}:{qo[3]}"
    return f"{read}It writes to out_cache_loc[{new}], because A has {qo[1]} new and B {qo[2] - qo[1]}."

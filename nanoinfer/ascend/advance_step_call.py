"""AdvanceStepCall: one call of npu_advance_step_flashattn as an object, with its arguments, checks and arithmetic."""

import operator
from dataclasses import dataclass
from typing import Any

import torch

from nanoinfer.errors import ShapeMismatchError

FORMULAS = ("by_row", "kernel")
WRITTEN = ("input_tokens", "input_positions", "seq_lens", "slot_mapping")  # the tensors that change in place


@dataclass(frozen=True, eq=False)
class AdvanceStepCall:
    """The arguments of `npu_advance_step_flashattn`, which explains them. It holds the tensors themselves, not copies."""

    input_tokens: torch.Tensor
    sampled_token_ids: torch.Tensor
    input_positions: torch.Tensor
    seq_lens: torch.Tensor
    slot_mapping: torch.Tensor
    block_tables: torch.Tensor
    num_seqs: int
    num_queries: int
    block_size: int
    spec_token: torch.Tensor | None = None
    accepted_num: torch.Tensor | None = None
    formula: str = "by_row"

    @property
    def speculative(self) -> bool:
        return self.spec_token is not None

    def run(self) -> None:
        """Check, then write. May be called again: every run reads the tensors' current values."""
        for name, value in self.plan().items():
            getattr(self, name).copy_(value)

    def plan(self) -> dict[str, torch.Tensor]:
        """Check everything, and return the new values of the four tensors that change, by name: int64, of the same shape.

        Changes nothing. Errors as in `npu_advance_step_flashattn`.
        """
        self._check_kinds()
        self._check_shapes()
        tokens, positions, rows = self._queries()
        slots = self._slots(positions, rows)
        padding = (0, self.num_seqs - self.num_queries)
        return {
            "input_tokens": torch.nn.functional.pad(tokens, padding),
            "input_positions": torch.nn.functional.pad(positions, padding),
            "seq_lens": torch.cat((positions + 1, self.seq_lens[len(positions) :])),
            "slot_mapping": torch.nn.functional.pad(slots, padding, value=-1),
        }

    def _queries(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """New tokens and positions of all rows but the padding, and each one's row of the block table; all [tokens]."""
        rows = torch.arange(self.num_queries, device=self.block_tables.device)
        if self.spec_token is None or self.accepted_num is None:
            tokens, positions = self.sampled_token_ids[:, 0], self.seq_lens[: self.num_queries].clone()
            _check_values("sampled_token_ids", tokens, tokens < 0, "must be a token")
            _check_values("seq_lens", positions, positions < 0, "must not be negative")
            return tokens, positions, rows

        accepted, sampled, before = self.accepted_num, self.sampled_token_ids, self.input_positions
        _check_values("accepted_num", accepted, accepted < 0, "must not be negative")
        _check_values("sampled_token_ids", sampled[:, 0], sampled[:, 0] == -1, "each row has at least one token")
        lowest = sampled.amin(1)  # the device takes the lowest value as padding
        _check_values("sampled_token_ids", lowest, lowest < -1, "must be a token, or −1 for padding")
        before_padding = (sampled == -1).int().cumsum(1).eq(0).sum(1)  # tokens before the first −1
        tokens = torch.cat((sampled.gather(1, before_padding[:, None] - 1), self.spec_token), dim=1).flatten()
        rows = rows.repeat_interleave(1 + self.spec_token.shape[1])
        positions = before + accepted[rows] + 1
        _check_values("input_positions", before, positions < 0, "must not be negative with accepted_num + 1 added")
        return tokens, positions, rows

    def _slots(self, positions: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """The slot of each position, read from its token's row of the block table. `positions`, `rows`: [tokens]."""
        pages, offsets, width = positions // self.block_size, positions % self.block_size, self.block_tables.shape[1]
        if (page := int(pages.max())) >= width:
            raise ShapeMismatchError(
                f"block_tables: {width} blocks per row; position {int(positions.max())} with block_size={self.block_size} "
                f"needs at least {page + 1}"
            )
        # The kernel's formula reads flatten()[page], which is in row 0, and adds the distance of the rows to what it read.
        read_rows, more = rows, 0 * rows
        if self.formula == "kernel":
            read_rows, more = more, self.block_tables.stride(0) * rows
        read = self.block_tables[read_rows, pages]
        _check_values("block_tables", read, read < 0, "must not be negative where a token needs a slot", read_rows)
        return (read + more) * self.block_size + offsets

    def _check_kinds(self) -> None:
        if self.formula not in FORMULAS:
            raise ValueError(f"formula={self.formula!r}: must be one of {', '.join(FORMULAS)}")
        if (self.spec_token is None) != (self.accepted_num is None):
            missing = "spec_token" if self.spec_token is None else "accepted_num"
            raise ValueError(f"{missing}=None: spec_token and accepted_num must be given together or not at all")
        device = self.input_tokens.device
        for name, tensor in self._tensors().items():
            if tensor.dtype != torch.int64:
                raise ValueError(f"{name}: dtype {tensor.dtype}, must be torch.int64")
            if tensor.device != device:
                raise ValueError(f"{name}: on {tensor.device}, must be on {device}, where input_tokens is")

    def _check_shapes(self) -> None:
        seqs, queries, width = self.num_seqs, self.num_queries, 1
        for name, size in (("num_seqs", seqs), ("num_queries", queries), ("block_size", self.block_size)):
            if size < 1:
                raise ShapeMismatchError(f"{name}={size}: must be at least 1")
        if queries > seqs or (self.speculative and queries < seqs):
            raise ShapeMismatchError(f"num_queries={queries}: must fit num_seqs={seqs}, and equal it with spec_token")
        if self.spec_token is not None:
            _check_shape("spec_token", self.spec_token, (seqs, None))
            width += self.spec_token.shape[1]
        if self.accepted_num is not None:
            _check_shape("accepted_num", self.accepted_num, (seqs,))
        _check_shape("sampled_token_ids", self.sampled_token_ids, (queries, width))
        _check_shape("block_tables", self.block_tables, (seqs, None))
        tensors = self._tensors()
        for name in WRITTEN:
            _check_shape(name, tensors[name], (seqs * width,))

    def _tensors(self) -> dict[str, torch.Tensor]:
        """The given tensors, by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, torch.Tensor)}


def as_int(name: str, value: Any) -> int:
    """Return an integer of Python, NumPy or torch as an int. ValueError for anything else, and beyond int64."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or abs(number) >= 2**63:
        raise ValueError(f"{name}={value!r}: must be an integer that int64 can hold")
    return number


def _check_shape(name: str, tensor: torch.Tensor, shape: tuple[int | None, ...]) -> None:
    """ShapeMismatchError unless `tensor` has this shape; None stands for any size but 0."""
    actual = list(tensor.shape)
    if len(actual) != len(shape) or not all(
        size == (want or max(size, 1)) for size, want in zip(actual, shape, strict=True)
    ):
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ShapeMismatchError(f"{name}: shape {actual}, must be [{wanted}]")


def _check_values(
    name: str, values: torch.Tensor, wrong: torch.Tensor, why: str, rows: torch.Tensor | None = None
) -> None:
    """ValueError naming the first of `values` [n] that is `wrong` [n]. `rows`: given if a value's row is not its index."""
    if bool(wrong.any()):
        first = int(wrong.nonzero()[0, 0])
        row = first if rows is None else int(rows[first])
        raise ValueError(f"{name}: {int(values[first])} in row {row}: {why}")

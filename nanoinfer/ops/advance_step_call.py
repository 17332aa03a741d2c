"""AdvanceStepCall: one call of npu_advance_step_flashattn as an object: arguments, their checks, the arithmetic."""

from dataclasses import dataclass

import torch

from nanoinfer.errors import ShapeMismatchError

FORMULAS = ("by_row", "kernel")


@dataclass(frozen=True, eq=False)
class AdvanceStepCall:
    """The arguments of `npu_advance_step_flashattn`, which explains them. Holds the tensors themselves, not copies."""

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
        """Check, then write. May be run again: every run reads the tensors' current values."""
        tokens, positions, slots = self.plan()
        used = len(positions)
        self.seq_lens[:used] = positions + 1
        for tensor, values, padding in (
            (self.input_tokens, tokens, 0),
            (self.input_positions, positions, 0),
            (self.slot_mapping, slots, -1),
        ):
            tensor[:used] = values
            tensor[used:] = padding

    def plan(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Check everything; returns the new tokens, positions and slots of all rows but the padding, each flat, int64.

        Changes nothing. Errors as `npu_advance_step_flashattn`.
        """
        self._check_kinds()
        self._check_shapes()
        rows = torch.arange(self.num_queries, device=self.block_tables.device)
        if self.spec_token is None or self.accepted_num is None:
            positions = self.seq_lens[: self.num_queries].clone()
            _check_values("seq_lens", positions, positions < 0, "must not be negative")
            return self.sampled_token_ids[:, 0], positions, self._slots(positions, rows)

        drafts = self.spec_token.shape[1]
        accepted, sampled = self.accepted_num, self.sampled_token_ids
        _check_values("accepted_num", accepted, (accepted < 0) | (accepted > drafts), f"must be in 0..{drafts}")
        _check_values("sampled_token_ids", sampled[:, 0], sampled[:, 0] == -1, "each row has at least one token")
        before_padding = (sampled == -1).int().cumsum(1).eq(0).sum(1)  # tokens before the first −1
        tokens = torch.cat((sampled.gather(1, before_padding[:, None] - 1), self.spec_token), dim=1).flatten()
        rows = rows.repeat_interleave(1 + drafts)
        positions = self.input_positions + accepted[rows] + 1
        _check_values("input_positions", self.input_positions, positions < 0, "must not be negative")
        return tokens, positions, self._slots(positions, rows)

    def _slots(self, positions: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """The slot of each position, read from that token's row of the block table; `positions`, `rows`: [tokens]."""
        pages, width = positions // self.block_size, self.block_tables.shape[1]
        if (page := int(pages.max())) >= width:
            raise ShapeMismatchError(
                f"block_tables: {width} blocks per row; position {int(positions.max())} with block_size={self.block_size} "
                f"needs at least {page + 1}"
            )
        read = self.block_tables[rows, pages] if self.formula == "by_row" else self.block_tables.flatten()[pages]
        _check_values("block_tables", read, read < 0, "must not be negative where a token needs a slot")
        blocks = read if self.formula == "by_row" else read + self.block_tables.stride(0) * rows
        return blocks * self.block_size + positions % self.block_size

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
            if not tensor.numel():
                raise ValueError(f"{name}: shape {list(tensor.shape)}, must not be empty")
        seqs, queries = self.num_seqs, self.num_queries
        for name, size in (("num_seqs", seqs), ("num_queries", queries), ("block_size", self.block_size)):
            if size < 1:
                raise ValueError(f"{name}={size}: must be at least 1")
        if self.speculative and queries != seqs:
            raise ValueError(f"num_queries={queries}: must equal num_seqs={seqs} when spec_token is given")
        if queries > seqs:
            raise ValueError(f"num_queries={queries}: must not exceed num_seqs={seqs}")

    def _check_shapes(self) -> None:
        seqs, width = self.num_seqs, 1
        if self.spec_token is not None:
            _check_shape("spec_token", self.spec_token, (seqs, None))
            width += self.spec_token.shape[1]
        if self.accepted_num is not None:
            _check_shape("accepted_num", self.accepted_num, (seqs,))
        _check_shape("sampled_token_ids", self.sampled_token_ids, (self.num_queries, width))
        _check_shape("block_tables", self.block_tables, (seqs, None))
        tensors = self._tensors()
        for name in ("input_tokens", "input_positions", "seq_lens", "slot_mapping"):
            _check_shape(name, tensors[name], (seqs * width,))
            if tensors[name].stride(0) == 0 and len(tensors[name]) > 1:
                raise ValueError(f"{name}: stride 0, its rows share memory; must not be expanded, for it is written to")

    def _tensors(self) -> dict[str, torch.Tensor]:
        """The tensors that are given, by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, torch.Tensor)}


def _check_shape(name: str, tensor: torch.Tensor, shape: tuple[int | None, ...]) -> None:
    """ShapeMismatchError unless `tensor` has this shape; None stands for any size."""
    actual = list(tensor.shape)
    if len(actual) != len(shape) or any(
        want is not None and size != want for size, want in zip(actual, shape, strict=True)
    ):
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ShapeMismatchError(f"{name}: shape {actual}, must be [{wanted}]")


def _check_values(name: str, values: torch.Tensor, wrong: torch.Tensor, why: str) -> None:
    """`values`, `wrong`: [rows]. ValueError naming the first that is wrong."""
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0, 0])
        raise ValueError(f"{name}: {int(values[row])} in row {row}: {why}")

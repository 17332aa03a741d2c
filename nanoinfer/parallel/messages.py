"""Message: what rank 0 says to the others, as bytes that carry numbers and nothing that could be executed."""

import json
from dataclasses import dataclass, field
from typing import Any

import torch

_LENGTH = 8  # bytes at the beginning that say how long the header is


@dataclass(frozen=True)
class Message:
    """`kind`: what to do. `values`: what JSON can hold, and numpy's integers, by name. `tensors`: on the host, by name."""

    kind: str
    values: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)

    def encode(self) -> bytes:
        """A header, which says what is in the message, and behind it the tensors' bytes."""
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.tensors.items()}
        shapes = {name: (_name(tensor.dtype), list(tensor.shape)) for name, tensor in tensors.items()}
        header = json.dumps({"kind": self.kind, "values": self.values, "tensors": shapes}, default=int).encode()
        bodies = [tensor.view(-1).view(torch.uint8).numpy().tobytes() for tensor in tensors.values()]
        return b"".join([len(header).to_bytes(_LENGTH, "little"), header, *bodies])

    @classmethod
    def decode(cls, encoded: bytes) -> "Message":
        """The message that was encoded. Its tensors are copies."""
        start = _LENGTH + int.from_bytes(encoded[:_LENGTH], "little")
        header = json.loads(encoded[_LENGTH:start])
        tensors = {}
        for name, (dtype_name, shape) in header["tensors"].items():
            empty = torch.empty(shape, dtype=getattr(torch, dtype_name))
            end = start + empty.nbytes
            if empty.numel():
                of_bytes = torch.frombuffer(bytearray(encoded[start:end]), dtype=torch.uint8)
                empty = of_bytes.view(empty.dtype).view(shape)
            tensors[name], start = empty, end
        return cls(header["kind"], header["values"], tensors)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

"""Excerpts: the tokens from which texts of a frame and of a node are made, where prompts may be shown; and the texts."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from nanoinfer.cache.tree_node import TreeNode
from nanoinfer.requests.req import Req
from nanoinfer.server.live.limits import Limits

Tokens = tuple[int, ...]
GAP = " … "
UNREADABLE = "(the tokenizer cannot decode these tokens)"


@dataclass(frozen=True)
class Excerpts:
    """Beginning and end of what each node and each request holds, by number. Taken in the engine's thread; decoding them
    is left to others. `outputs`: the end of each request's text, which is decoded already."""

    nodes: dict[int, tuple[Tokens, Tokens]]
    prompts: dict[int, tuple[Tokens, Tokens]]
    outputs: dict[int, str]

    @classmethod
    def of(cls, nodes: Mapping[TreeNode, int], reqs: Mapping[Req, int], limits: Limits) -> "Excerpts":
        """Those of `nodes` and `reqs`, which are given with their numbers."""
        return cls(
            {number: _ends(node.key, limits.node_tokens) for node, number in nodes.items()},
            {number: _ends(req.token_ids[: req.prompt_len], limits.prompt_tokens) for req, number in reqs.items()},
            {number: _end(req.text, limits.characters) for req, number in reqs.items()},
        )


class Texts:
    """Makes the texts of excerpts with a model's tokenizer. Runs outside the engine's thread."""

    def __init__(self, tokenizer: Any, limits: Limits):
        self._tokenizer, self._limits = tokenizer, limits
        self._decode = lru_cache(maxsize=4096)(self.decode)  # what frames show is mostly what the last one showed

    def decode(self, tokens: Tokens) -> str:
        """Text with special tokens by name. A tokenizer that fails costs this text, and nothing else."""
        if self._tokenizer is None:
            return " ".join(map(str, tokens))
        try:
            return self._tokenizer.decode(list(tokens), skip_special_tokens=False)
        except BaseException as error:
            if (
                isinstance(error, Exception) or type(error).__name__ == "PanicException"
            ):  # of a tokenizer written in Rust
                return UNREADABLE
            raise

    def add_to(self, state: dict[str, Any], excerpts: Excerpts) -> None:
        """Set the field `text` of every node, and `prompt_text` and `output_text` of every request."""
        for number, ends in excerpts.nodes.items():
            state["nodes"][str(number)]["text"] = self._joined(ends)
        for number, ends in excerpts.prompts.items():
            state["requests"][str(number)]["prompt_text"] = self._joined(ends)
            state["requests"][str(number)]["output_text"] = excerpts.outputs[number]

    def _joined(self, ends: tuple[Tokens, Tokens]) -> str:
        head, tail = ends
        most = self._limits.characters // 2
        text = self._decode(head)
        if not tail:
            return text if len(text) <= 2 * most else text[:most] + GAP + text[-most:]
        return text[:most] + GAP + self._decode(tail)[-most:]


def _ends(tokens: np.ndarray, most: int) -> tuple[Tokens, Tokens]:
    """All tokens and none, or if there are too many the first and the last of them."""
    if len(tokens) <= most:
        return tuple(tokens.tolist()), ()
    half = most // 2
    return tuple(tokens[:half].tolist()), tuple(tokens[-half:].tolist())


def _end(text: str, most: int) -> str:
    return text if len(text) <= most else GAP + text[-most:]

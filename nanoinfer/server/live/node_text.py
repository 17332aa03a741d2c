"""The text of one node of the tree, for a reader who clicks on it."""

import asyncio
from typing import Any

from nanoinfer.engine.engine import Engine
from nanoinfer.frontends.async_engine import AsyncEngine
from nanoinfer.server.live.excerpts import Texts
from nanoinfer.server.live.view import View


async def node_text(
    engine: AsyncEngine, view: View, texts: Texts, number: int, most_tokens: int
) -> dict[str, Any] | None:
    """The text of the node that the last frame calls `number`: its first `most_tokens` tokens (`left_out`: how many more it
    has), and `before` it the last `most_tokens` of the path to it. None if there is no such node any more."""

    def tokens_of(_: Engine) -> tuple[tuple[int, ...], tuple[int, ...], int] | None:
        node = view.tree.find(number)
        if node is None:
            return None
        before: list[int] = []
        above = node.parent
        while above is not None and len(before) < most_tokens:
            before[:0] = above.key[-(most_tokens - len(before)) :].tolist() if len(above) else []
            above = above.parent
        return tuple(node.key[:most_tokens].tolist()), tuple(before), len(node)

    found = await engine.visit(tokens_of)
    if found is None:
        return None
    own, before, length = found
    texts_of = await asyncio.gather(*(asyncio.to_thread(texts.decode, tokens) for tokens in (before, own)))
    return {
        "number": number,
        "tokens": length,
        "left_out": length - len(own),
        "before": texts_of[0],
        "text": texts_of[1],
    }

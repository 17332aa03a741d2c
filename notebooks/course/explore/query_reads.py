"""query_reads: the mask of an EXTEND pass by prefix and sliding window, and what one query reads through it."""

from dataclasses import replace

import torch

from nanoinfer.cache.memory_pool import ReqToTokenPool
from nanoinfer.llm import LLM
from nanoinfer.model.attention import AttentionLayer, TorchNativeBackend
from nanoinfer.model.input_metadata import InputMetadata
from nanoinfer.model.model_runner import ModelRunner
from nanoinfer.viz.words import count
from notebooks.course.explore import Bar, Bars, Cell, CellRow, Cells, Control, Frame, InteractiveFigure
from notebooks.course.prompts import FOX

LAYER, HEAD = 2, 3  # one that looks here and there
SLOTS = (1, 2, 5, *range(8, 19))  # of the 14 tokens
LEGEND = [("r0", "sees; K/V from an earlier pass"), ("new", "sees; K/V of this pass"), ("leftover", "hidden")]


class _Queries(TorchNativeBackend):
    """Keeps the queries of one layer."""

    def forward_extend(self, q: torch.Tensor, layer: AttentionLayer, metadata: InputMetadata) -> torch.Tensor:
        if layer.layer_id == LAYER:
            self.q, self.scale = q, layer.scale
        return super().forward_extend(q, layer, metadata)


def record_scores(llm: LLM) -> tuple[list[str], torch.Tensor]:
    """The texts of FOX's tokens, and one head's scores [S, S]: each query against each key, from SLOTS."""
    model, tokenizer = llm.model, llm.model.tokenizer
    assert tokenizer is not None
    tokens, slots = tokenizer.encode(FOX), torch.tensor(SLOTS)
    rows, pool, queries = ReqToTokenPool(1, 64), model.new_kv_pool(32), _Queries()
    rows.req_to_token[0, : len(tokens)] = slots
    ModelRunner(model.model, rows, pool, queries).forward_extend(torch.tensor(tokens), [0], [len(tokens)], [0], SLOTS)
    keys = pool.get_key_buffer(LAYER)[slots]
    scores = queries.q[:, HEAD] @ keys[:, HEAD * keys.shape[1] // queries.q.shape[1]].T * queries.scale
    return [tokenizer.decode([token]).strip() or "<s>" for token in tokens], scores


def query_reads(llm: LLM) -> InteractiveFigure:
    """Prefix, window and one token → the mask, the slots that this token's query reads, and its weights in one head."""
    texts, scores = record_scores(llm)
    total = len(texts)
    names = [f"{i} {text}" for i, text in enumerate(texts)]
    controls = [
        Control("prefix", "tokens with K/V already", (0, 3, 6, 10, 13), start=2),
        Control("window", "a token sees", (None, 4), ["all before it", "the last 4"]),
        Control("query", "the query of token", range(total), names, 9, True),
    ]

    def show(prefix: int, window: int | None, query: int) -> Frame:
        known = [Cell("r0" if k < prefix else "new") for k in range(total)]
        rows = []
        for q in range(prefix, total):
            sees = [q - (window or total) < k <= q for k in range(total)]
            mark = "read" * (q == query)
            cells = [replace(known[k], mark=mark) if sees[k] else Cell("leftover") for k in range(total)]
            rows.append(CellRow(names[q], cells))
        read = [query >= prefix and query - (window or total) < k <= query for k in range(total)]
        slots = [replace(known[k], text=str(SLOTS[k]), mark="read" * read[k]) for k in range(total)]
        weights = scores[query].masked_fill(~torch.tensor(read), -torch.inf).softmax(-1).nan_to_num().tolist()
        said = [f"{weight:.2f}" if there else "not read" for weight, there in zip(weights, read, strict=True)]
        bars = [Bar(names[k], round(weights[k], 3), said[k], not read[k]) for k in range(total)]
        title = f"The mask, {total - prefix} × {total}: new tokens down, all tokens across; and each token's slot"
        panels = [
            Cells(title, [*rows, CellRow("slot", slots)], LEGEND, list(map(str, range(total)))),
            Bars(f"The weights of the chosen query, in head {HEAD} of layer {LAYER}", bars, most=1.0),
        ]
        return Frame(panels, _sentence(prefix, query, texts[query], sum(read)))

    intro = (
        f"“{FOX}” has {total} tokens. Move the prefix: watch the diagonal. Move the query: watch which slots it reads."
    )
    return InteractiveFigure("Which K/V does each query of an EXTEND read?", intro, controls, show, height=1400, runs=1)


def _sentence(prefix: int, query: int, text: str, read: int) -> str:
    said = f"The pass stores K/V of {count(len(SLOTS) - prefix, 'token')}. Token {query}, “{text}”, "
    if query < prefix:
        return f"{said}has K/V already: no query in this pass, and no line in the mask."
    why = "all tokens up to itself" if read == query + 1 else f"itself and the {count(read - 1, 'token')} before it"
    return f"{said}is query {query - prefix} of the pass. It reads {count(read, 'slot')}: {why}."

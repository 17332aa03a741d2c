"""The order in which rows go to replicas: prompts that begin alike are neighbours. Workers load it without torch."""

from typing import Any

ORDER = "__nanoinfer_order__"  # a column: by it, rows are sorted
ORDER_CHARS, ORDER_TOKENS = 2048, 512  # of a prompt that count for the order


def with_order(table: Any, prompt_column: str) -> Any:
    """A pyarrow table with the column ORDER: sorted by it, prompts that begin alike are neighbours."""
    import pyarrow

    order = [order_of(prompt) for prompt in table.column(prompt_column).to_pylist()]
    return table.append_column(ORDER, pyarrow.array(order, pyarrow.string()))


def order_of(prompt: Any) -> str:
    """What a prompt is sorted by: its beginning."""
    if isinstance(prompt, str):
        return prompt[:ORDER_CHARS]
    return "".join(f"{int(token):08x}" for token in list(prompt or ())[:ORDER_TOKENS])

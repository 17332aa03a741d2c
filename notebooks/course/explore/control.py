"""Control: what the student moves, a slider over ordered values or a list to choose from."""

import json
from collections.abc import Sequence
from typing import Any

from notebooks.course.explore.panels.base import expect_text


class Control:
    """`values`: what can be chosen (JSON values, at least two, no two the same); `labels`: their texts (without them the
    values as they are); `start`: the index chosen at first. Numbers make a slider, anything else a list; `slider` says so.

    ValueError for anything else.
    """

    def __init__(
        self,
        name: str,
        label: str,
        values: Sequence[Any],
        labels: Sequence[str] | None = None,
        start: int = 0,
        slider: bool | None = None,
    ):
        expect_text("name", name)
        expect_text("label", label)
        if isinstance(values, str) or not hasattr(values, "__len__") or len(values) < 2:
            raise ValueError(f"values of {name}: must be a list of at least 2, got {values!r}")
        try:
            texts = [json.dumps(value, allow_nan=False) for value in values]
        except (TypeError, ValueError) as error:
            raise ValueError(f"values of {name}: {error}") from None
        if len(set(texts)) < len(texts):
            raise ValueError(f"values of {name}: one is there twice: {', '.join(texts)}")
        if labels is None:
            labels = [value if isinstance(value, str) else text for value, text in zip(values, texts, strict=True)]
        if isinstance(labels, str) or len(labels) != len(values):
            raise ValueError(f"labels of {name}: {len(labels)} for {len(values)} values; must be as many")
        for text in labels:
            expect_text(f"labels of {name}", text)
        if isinstance(start, bool) or not isinstance(start, int) or not 0 <= start < len(values):
            raise ValueError(f"start={start!r} of {name}: must be in 0..{len(values) - 1}")
        numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        self.name, self.label, self.values, self.labels, self.start = name, label, list(values), list(labels), start
        self.slider = numbers if slider is None else slider

    def data(self) -> dict[str, Any]:
        """What the page gets."""
        kind = "slider" if self.slider else "list"
        return {"name": self.name, "label": self.label, "labels": self.labels, "start": self.start, "kind": kind}

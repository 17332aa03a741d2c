"""What holds for every picture: its texts can be read, any text can be drawn, and what cannot be drawn is refused."""

import textwrap
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from nanoinfer import LLM, SamplingParams, viz
from nanoinfer.model.forward_batch import ForwardMode
from tests.helpers.engines import greedy, make_engine
from tests.helpers.pictures import (
    assert_readable,
    insert,
    make_metadata,
    make_pool,
    make_rows,
    make_tree,
    named,
    take,
    texts,
    worked_example,
)


def full_pool() -> viz.Picture:
    pool = make_pool(256)
    return viz.slot_map(pool, {f"request {i}": take(pool, 32) for i in range(8)})


def deep_tree() -> viz.Picture:
    tree = make_tree(6000)
    for i in range(50):
        insert(tree, [*range(3 * i + 3), 1000])
    return viz.radix_tree(tree, decode=lambda ids: " " + " ".join(f"a{i}long·word" * 9 for i in ids))


def running_engine() -> viz.Picture:
    engine = LLM("story", max_total_tokens=128, max_running_requests=4, max_context_len=64).engine
    for end in ("dog", "cat", "girl named Lily", "red ball", "fish", "bear"):
        engine.add_request(f"Once upon a time there was a little {end}", SamplingParams(max_new_tokens=12))
    for _ in range(7):
        engine.step()
    return viz.engine(engine)


def metadata(prefix_lens: list[int], new_lens: list[int]) -> viz.Picture:
    made = make_metadata(prefix_lens, new_lens, page_size=4)
    return viz.input_metadata(made, tokens=[f" word{i}" for i in range(made.total_num_tokens)])


PICTURES: dict[str, Callable[[], viz.Picture]] = {
    "slots": full_pool,
    "pages": lambda: viz.slot_map(make_pool(96, page_size=3), highlight=[3]),
    "many slots": lambda: viz.slot_map(make_pool(100_000)),
    "rows": lambda: viz.request_rows(make_rows(), {0: 9, 1: 14, 2: 177, 3: 40}, prefix_lens={1: 4, 2: 100}),
    "no rows": lambda: viz.request_rows(make_rows(), {}),
    "tree": deep_tree,
    "engine": running_engine,
    "engine without a tree": lambda: viz.engine(make_engine(disable_radix_cache=True)),
    "one mask": lambda: viz.extend_mask(worked_example(), tokens=["<s>", " ", *"1234512345"]),
    "masks": lambda: viz.extend_mask(make_metadata([4, 600, 0], [5, 12, 5])),
    "windows": lambda: viz.extend_mask(make_metadata([1500], [100]), sliding_window=300),
    "metadata": lambda: metadata([4, 600, 0], [5, 12, 5]),
    "many requests": lambda: metadata([10] * 12, [30] * 12),
    "decode": lambda: viz.input_metadata(make_metadata([8, 599, 4], [1, 1, 1], ForwardMode.DECODE), fields="all"),
    "bars": lambda: viz.bars({"a": 1, "b": 20}, unit="ms", compare="a"),
    "groups": lambda: viz.bars({"x": {"a": 1, "b": 2}, "y": {"a": 1, "c": 2}}, unit="ms", caption="C."),
    "wire": lambda: viz.wire([("text", b"x" * 54), ("end", b"\r\n")]),
    "attention": lambda: viz.attention_steps(*map(torch.ones, ((4,), (8, 4), (8, 4)))),
    "one token": lambda: viz.attention_steps(torch.ones(1), torch.ones(1, 1), torch.ones(1, 1), newest=True),
    **{f"map {notebook}": partial(viz.engine_map, notebook) for notebook in range(1, 20)},
}


@pytest.mark.parametrize("draw", PICTURES.values(), ids=PICTURES.keys())
def test_no_text_of_a_picture_lies_on_another_or_outside(draw: Callable[[], viz.Picture]) -> None:
    assert_readable(draw())


@pytest.mark.slow
@pytest.mark.parametrize("text", ["a\nb\tc\"'", "\x00\x1b[31m\x07\r", "中文", "🙂", "$x^2$ \\frac", "\ud800", ""])
def test_texts_of_any_kind_are_drawn_on_one_line_without_a_warning(text: str) -> None:
    engine = make_engine()
    engine.add_request([97, 98, 99], greedy())
    engine.step()
    of_pass = viz.last_input_metadata(engine)
    tokens = [text] * of_pass.total_num_tokens
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for picture in (
            viz.radix_tree(engine.radix_cache, decode=lambda ids: text * len(ids), title=text),
            viz.input_metadata(of_pass, tokens=tokens, labels=[text], title=text),
            viz.extend_mask(of_pass, tokens=tokens, labels=[text], title=text),
            viz.slot_map(make_pool(4), {text: [0]}, title=text),
            viz.bars({text: 1}, unit=text, title=text),
            viz.lines({text: ([1], [2]), "b": ([1], [2])}, x=text, y=text, title=text),
            viz.heat_map([[0.5]], [text], [text], title=text),
        ):
            picture.png()
            assert not any(char in picture.alt for char in "\n\t\r\x00\x1b\ud800")


def test_the_picture_that_the_documentation_writes_is_drawn() -> None:
    assert viz.__doc__ is not None
    lines = viz.__doc__.split("nothing has to know of it:\n")[1].split("\n- ")[0]
    namespace: dict[str, Any] = {}
    exec(textwrap.dedent(lines), namespace)
    engine = make_engine()
    for prompt in ([5] * 60, [6] * 40):
        engine.add_request(prompt, greedy(2))
    picture = namespace["queue"](engine)
    assert picture.alt == "Waiting: request 0 with 60 tokens, request 1 with 40 tokens."
    assert "2 requests in the queue" in texts(picture)
    assert [shape.get_width() for shape in named(picture, "request")] == [240, 160]


@pytest.mark.parametrize(
    ("draw", "field"),
    [
        (lambda: viz.slot_map(make_pool(4), {"a": [4]}), "owners.*4"),
        (lambda: viz.request_rows(make_rows(), {4: 1}), "seq_lens.*4"),
        (lambda: viz.input_metadata(worked_example(), fields=["slots"]), "fields.*slots"),
        (lambda: viz.input_metadata(worked_example(), tokens=["a"]), "tokens"),
        (lambda: viz.extend_mask(worked_example(), sliding_window=0), "sliding_window=0"),
        (lambda: viz.attention_mask(torch.ones(1, 3).bool(), prefix_len=1), "mask"),
        (lambda: viz.last_input_metadata(make_engine()), "last_batch"),
        (lambda: viz.bars({"a": 1}, unit="ms", compare="b"), "compare='b'"),
        (lambda: viz.heat_map([[1.5]], ["a"], ["b"]), "values"),
        (lambda: viz.engine_map("kernel"), "here.*kernel"),
    ],
)
def test_what_would_make_a_wrong_picture_is_refused_by_name(draw: Any, field: str) -> None:
    with pytest.raises(ValueError, match=field):
        draw()

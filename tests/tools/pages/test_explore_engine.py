"""What the interactive figures of the engine show is what an engine did: compared with the engine's own counts, and with a
second, separate run whose engine is looked at directly. The saved pages show what it does now."""

import dataclasses
import html
import itertools
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from nanoinfer import LLM
from nanoinfer.model.random_model import random_model
from notebooks.course.explore import (
    batching,
    block_slots,
    pass_fields,
    pool_sizes,
    tree_steps,
)
from notebooks.course.explore.__main__ import CATALOGUE
from notebooks.course.explore.interactive_figure import InteractiveFigure
from notebooks.course.explore.panels.base import Bars, Numbers
from notebooks.course.explore.panels.cells import Cells
from notebooks.course.explore.panels.lanes import Lanes
from notebooks.course.explore.runs import moments
from notebooks.tools.files import ROOT, read
from tests.tools.pages.conftest import Recorded

FOLDER = ROOT / "notebooks" / "explorables"
AGAIN = "python -m notebooks.course.explore --out notebooks/explorables"
RECORDED = ["double_free", "sampling"]  # which no notebook shows, or with another prompt


@pytest.fixture(scope="module", autouse=True)
def _once() -> Iterator[None]:
    """A figure is made of the same runs that its test looks at."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batching, "record_batching", cache(batching.record_batching))
        patch.setattr(pool_sizes, "record_pool_sizes", cache(pool_sizes.record_pool_sizes))
        yield


def panel(figure: InteractiveFigure, indices: tuple[int, ...], kind: type, number: int = 0) -> Any:
    """A panel of one frame, the `number`-th of its kind."""
    return [each for each in figure.frames[indices].panels if isinstance(each, kind)][number]


def shown_numbers(figure: InteractiveFigure, indices: tuple[int, ...]) -> dict[str, str]:
    return {each.name: each.value for each in panel(figure, indices, Numbers).numbers}


# --- runs ------------------------------------------------------------------------------------------------------------


def test_every_moment_of_a_run_has_the_counts_of_the_engine(recorded: Recorded) -> None:
    for run in recorded(pool_sizes.record_pool_sizes).values():
        evicted = retracted = 0
        for moment, stats in zip(moments(run), run.stats, strict=True):
            evicted, retracted = evicted + moment.evicted, retracted + len(moment.retracted)
            assert (moment.free, moment.unlocked, moment.locked) == (
                stats.free_slots,
                stats.evictable_slots,
                stats.protected_slots,
            )
            assert sum(moment.held.values()) == stats.request_slots
            assert (evicted, retracted) == (stats.evicted_tokens, stats.retractions)
            assert moment.free + moment.unlocked + moment.locked + sum(moment.held.values()) == stats.total_slots


# --- batching --------------------------------------------------------------------------------------------------------


def test_a_group_takes_as_many_passes_as_its_longest_and_a_changing_batch_fewer(story: LLM) -> None:
    """In a tiny model, since tokens change no length."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1}
    model = random_model(vocab_size=story.model.config.vocab_size, **sizes)
    tiny: Any = type("Tiny", (), {"model": dataclasses.replace(model, tokenizer=story.tokenizer)})
    figure, runs = batching.batching(tiny), batching.record_batching(tiny)
    for i, long in enumerate(batching.LONG):
        for j, rows in enumerate(batching.ROWS):
            groups = [batching.wanted(long)[k : k + rows] for k in range(0, 12, rows)]
            static, continuous = (bar.value for bar in panel(figure, (i, j), Bars).bars)
            assert continuous <= static == sum(max(group) - 1 for group in groups)
            for number, kind in enumerate((False, True)):
                lanes = panel(figure, (i, j), Lanes, number).lanes
                drawn = sum(span.end - span.start for lane in lanes for span in lane.spans if span.phase == "decode")
                assert drawn == sum(map(len, runs[long, rows, kind])) == sum(batching.wanted(long)) - 12


# --- fields of a pass --------------------------------------------------------------------------------------------------


def test_the_worked_example_has_its_numbers_and_an_earlier_request_2_has_other_slots(recorded: Recorded) -> None:
    figure = recorded(pass_fields.pass_fields)
    example, sooner, together = (shown_numbers(figure, indices) for indices in ((2, 10), (1, 3), (0, 0)))
    assert (example["req_pool_indices"], example["seq_lens"], example["prefix_lens"]) == ("[0]", "[12]", "[7]")
    assert (example["positions"], example["out_cache_loc (write)"]) == ("7-11", "16-20")
    assert (sooner["prefix_lens"], sooner["out_cache_loc (write)"]) == ("[7]", "9-13")
    assert (together["prefix_lens"], together["out_cache_loc (write)"]) == ("[0, 0]", "0-6 | 7-18")


# --- blocks ------------------------------------------------------------------------------------------------------------


def test_a_block_table_gives_the_slots_of_the_row(recorded: Recorded) -> None:
    figure, rows = recorded(block_slots.block_slots), recorded(block_slots.record_rows)
    assert len(rows[1]) == block_slots.TOKENS
    for i, row in enumerate(rows):
        for n, slot in enumerate(row):
            _, found = shown_numbers(figure, (i, n)).values()
            assert int(found.split()[-1]) == slot


# --- pool size -------------------------------------------------------------------------------------------------------


def indices_of(setting: pool_sizes.Setting) -> tuple[int, int, int]:
    size, share, rule = setting
    return (
        pool_sizes.SIZES.index(size),
        list(pool_sizes.SHARES).index(share),
        list(pool_sizes.RULES).index(rule),
    )


def test_a_lane_shows_what_a_request_did_in_every_step(recorded: Recorded) -> None:
    figure = recorded(pool_sizes.pool_sizes)
    for setting, run in recorded(pool_sizes.record_pool_sizes).items():
        for index, lane in enumerate(panel(figure, indices_of(setting), Lanes).lanes):
            drawn = {step + 1: span.phase for span in lane.spans for step in range(span.start, span.end)}
            assert drawn == {m.step: m.phases[index] for m in moments(run) if index in m.phases}
            extended = sum(int(span.text) for span in lane.spans if span.phase == "extend")
            assert extended == sum(m.computed.get(index, 0) for m in moments(run) if m.mode == "EXTEND")


# --- the tree, step by step ------------------------------------------------------------------------------------------


class WatchedPlay(tree_steps.Play):
    """Looks at the live tree after every step."""

    def __init__(self, llm: LLM):
        super().__init__(llm)
        self.live: list[tuple[list[tuple[list[int], list[int], int]], int]] = []

    def look(self) -> None:
        self.tree.check_integrity()
        nodes = [(node.key.tolist(), node.value.tolist(), node.lock_ref) for _, node in self.tree.nodes()]
        self.live.append((nodes, self.pool.available_size()))


def test_every_tree_shown_is_the_live_one(story: LLM, recorded: Recorded) -> None:
    play = WatchedPlay(story)
    steps = play.run()
    assert len(steps) == len(play.live)
    for step, (nodes, free) in zip(steps, play.live, strict=True):
        assert [(node.key, node.value, node.lock_ref) for _, node in step.after.walk()] == nodes
        cells = tree_steps.frame_of(step, 1).panels[1]
        assert isinstance(cells, Cells)
        assert sum(cell.look == "free" for row in cells.rows for cell in row.cells) == free
    for before, after in itertools.pairwise(steps):
        assert [node.key for _, node in before.after.walk()] == [node.key for _, node in after.before.walk()]
    assert not play.live[-1][0]
    seen = {mark for frame in recorded(tree_steps.tree_steps).frames.values() for mark in marks_of(frame.panels[0])}
    assert seen >= {"new", "split", "locked", "unlocked", "evicted"}


def marks_of(tree: Any) -> set[str]:
    return {node.mark for root in (tree.before, tree.root) for node in root.walk()}


# --- saved pages -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shown() -> str:
    """The HTML that the notebooks show."""
    cells = [cell for path in (ROOT / "notebooks").glob("*.ipynb") for cell in read(path)["cells"]]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    return "\n".join("".join(output.get("data", {}).get("text/html", "")) for output in outputs)


def test_every_figure_is_there_and_no_other_page() -> None:
    assert {path.stem for path in FOLDER.glob("*.html")} == set(CATALOGUE)
    listed = re.findall(r"\]\((\w+)\.html\)", (FOLDER / "README.md").read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(CATALOGUE)


@pytest.mark.parametrize("name", sorted({*CATALOGUE} - {*RECORDED}))
def test_a_page_is_what_a_notebook_shows(name: str, shown: str) -> None:
    """That the notebook shows it now is for its own test to find, which compares what cells show."""
    page = (FOLDER / f"{name}.html").read_text(encoding="utf-8")
    assert html.escape(page) in shown, f"{AGAIN} {name}; or is it in no notebook?"


@pytest.mark.parametrize("name", RECORDED)
def test_a_page_is_what_would_be_recorded_now(name: str, recorded: Recorded) -> None:
    assert (FOLDER / f"{name}.html").read_text(encoding="utf-8") == recorded(CATALOGUE[name]).html(), f"{AGAIN} {name}"

"""The live widgets, driven by their controls; what a notebook saves of them."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("ipywidgets", reason="ipywidgets is not installed")

from nanoinfer import LLM
from nanoinfer.cache.memory_pool import TokenToKVPool
from notebooks.build import build
from notebooks.course.widgets import TrySlots, WatchTree, try_slots, watch_tree
from notebooks.tools.files import ROOT, read
from notebooks.tools.tidy import output_problems
from tests.nbval_run import nbval
from tests.sample_series import code, notebook, save


@pytest.fixture
def llm() -> LLM:
    """Room for 64 tokens."""
    return LLM("story", max_total_tokens=64, max_running_requests=3, max_context_len=64)


@pytest.fixture
def tree(llm: LLM) -> WatchTree:
    return watch_tree(llm)


def pool(size: int = 8, page_size: int = 1) -> TokenToKVPool:
    return TokenToKVPool(size, torch.float32, 1, 1, 1, page_size=page_size)


@pytest.fixture
def slots() -> TrySlots:
    return try_slots(pool())


def message(panel: WatchTree | TrySlots) -> str:
    """What the page shows as the message."""
    return str(panel._message.value)


class TestWatchTree:
    """Type a prompt, run it, evict."""

    def test_it_appears_with_both_prompts_run_once(self, tree: WatchTree, llm: LLM) -> None:
        first, second = tree.pictures
        assert first.alt.startswith("Radix tree: 1 node, depth 1, 17 tokens")
        assert second.alt.startswith("Radix tree: 3 nodes, depth 2, 23 tokens")
        assert "Prompt 1 has 19 tokens: 16 found in the tree, 3 computed" in tree.text
        assert llm.engine.radix_cache.total_size() == 23

    def test_a_prompt_that_is_typed_is_served_by_the_engine(self, tree: WatchTree, llm: LLM) -> None:
        tree.prompts[1].value = "Hello! I am a little fox"
        tree.run_buttons[1].click()
        assert tree.text.startswith("Prompt 1 has 8 tokens: 1 found in the tree, 7 computed")
        assert llm.engine.stats().finished == 3
        assert "Hello! I am" in tree.pictures[-1].alt
        assert "Hello! I am" not in tree.pictures[0].alt, "the picture from before stays beside it"

    def test_eviction_and_emptying_act_on_the_engine(self, tree: WatchTree, llm: LLM) -> None:
        tree.tokens.value = 2
        tree.evict_button.click()
        assert llm.engine.radix_cache.total_size() == 16
        assert tree.text.startswith("2 tokens asked for, 7 evicted")
        tree.reset_button.click()
        assert llm.engine.radix_cache.total_size() == 0
        assert [picture.alt for picture in tree.pictures] == [
            "Radix tree: 0 nodes, depth 0, 0 tokens (0 evictable, 0 locked)."
        ]
        llm.engine.check_integrity()

    def test_what_the_engine_refuses_is_shown_as_text_and_nothing_changes(self, tree: WatchTree) -> None:
        before = list(tree.pictures)
        tree.prompts[0].value = "fox " * 80
        tree.run_buttons[0].click()
        assert 'role="alert"' in message(tree)
        assert "must not exceed max_context_len=64" in message(tree)
        assert tree.pictures == before
        tree.prompts[0].value = "<script>"
        tree.run_buttons[0].click()
        assert 'role="status"' in message(tree)
        assert "<script>" not in message(tree)

    def test_slots_and_rows_are_drawn_on_request(self, tree: WatchTree) -> None:
        tree.whole.value = True
        tree.run_buttons[0].click()
        assert "64 slots" in tree.pictures[-1].alt


class TestTrySlots:
    """Allocate by a button, free by pressing a number."""

    def test_slots_are_allocated_lowest_first_and_freed_one_by_one(self, slots: TrySlots) -> None:
        slots.amount.value = 3
        slots.alloc_button.click()
        slots.alloc_button.click()
        assert slots.owners == {"request 0": [0, 1, 2], "request 1": [3, 4, 5]}
        slots.slot_buttons[1].click()
        slots.slot_buttons[5].click()
        assert slots.owners == {"request 0": [0, 2], "request 1": [3, 4]}
        assert slots.pool.free_slots().tolist() == [1, 5, 6, 7]
        assert slots.slot_buttons[0].tooltip == "slot 0: request 0"
        assert slots.slot_buttons[1].tooltip == "slot 1: free"
        assert slots.pictures[0].alt.startswith("8 slots: 4 free")

    def test_a_double_free_is_refused_in_the_pools_own_words(self, slots: TrySlots) -> None:
        slots.slot_buttons[7].click()
        with pytest.raises(ValueError, match="slot 7: already free") as refused:
            slots.pool.free([7])
        assert slots.text == f"ValueError: {refused.value}"
        assert 'role="alert"' in message(slots)

    def test_free_all_takes_back_what_was_allocated_here_only(self) -> None:
        used = pool()
        used.alloc(2)
        slots = try_slots(used)
        assert slots.slot_buttons[0].tooltip == "slot 0: allocated before"
        slots.alloc_button.click()
        slots.reset_button.click()
        assert used.free_slots().tolist() == [2, 3, 4, 5, 6, 7]


@pytest.mark.slow
def test_a_notebook_saves_a_still_picture_a_sentence_and_no_widget(tmp_path: Path) -> None:
    for folder in ("nanoinfer", "data"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    setup = (
        "import torch\nfrom nanoinfer import LLM\nfrom nanoinfer.cache.memory_pool import TokenToKVPool\n"
        "from notebooks.course.widgets import try_slots, watch_tree\n"
        'llm = LLM("story", max_total_tokens=64, max_running_requests=3, max_context_len=64)\n'
        "pool = TokenToKVPool(16, torch.float32, 1, 1, 1)"
    )
    cells = code(setup), code("watch_tree(llm)"), code("try_slots(pool)")
    path = build(save(tmp_path / "notebooks", "sample.ipynb", notebook(*cells)), tmp_path)
    saved = read(path)
    assert "widget" not in "".join(saved["metadata"])
    assert output_problems(saved, "sample") == []
    for cell, hint, numbers in zip(
        saved["cells"][1:], ("evict from the tree", "by clicking on them"), ("23 tokens", "16 free"), strict=True
    ):
        (output,) = cell["outputs"]
        assert set(output["data"]) == {"text/html", "text/plain"}
        html, text = "".join(output["data"]["text/html"]), "".join(output["data"]["text/plain"])
        assert "Run this cell in Jupyter" in html
        assert hint in html
        assert "data:image/png;base64," in html
        assert numbers in text
    compared = nbval(path)
    assert compared.returncode == 0, compared.stdout

"""The picture of blocks: a box per complete block with its hash, a frame if prompts share it, green if a tree has it."""

import pytest

pytest.importorskip("matplotlib")

from nanoinfer import LLM, viz
from nanoinfer.cache.block_events import block_hashes
from nanoinfer.requests.tokenizer import Tokenizer
from nanoinfer.viz.palette import ROLES
from tests.helpers.pictures import assert_readable, faces, named, texts

ONE, OTHER = list(range(100, 110)), [*range(100, 104), *range(200, 208)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    found = LLM("story", max_total_tokens=64).tokenizer
    assert found is not None
    return found


def test_a_block_has_its_hash_and_what_is_left_over_has_none(tokenizer: Tokenizer) -> None:
    picture = viz.hashed_blocks({"one": ONE, "other": OTHER}, 4, tokenizer, title="T", caption="C.")
    assert len(named(picture, "one block")) == 2
    assert len(named(picture, "other block")) == 3
    for block in block_hashes(ONE, 4):
        assert f"{block >> 48:04x}" in texts(picture)
    assert texts(picture).count("2 tokens") == 1, "of the first prompt; the second has none left"
    assert picture.alt.startswith("C. one: 2 blocks (")
    assert_readable(picture)


def test_only_equal_beginnings_are_marked_as_shared(tokenizer: Tokenizer) -> None:
    picture = viz.hashed_blocks({"one": ONE, "other": OTHER}, 4, tokenizer)
    assert "2 blocks" in picture.alt
    assert picture.alt.count("1 block shared") == 2
    later = viz.hashed_blocks({"one": [1, 2, 3, 4, 5, 6], "other": [9, 9, 3, 4, 5, 6]}, 2, tokenizer)
    assert later.alt.count("0 blocks shared") == 2, "equal tokens behind other ones are other blocks"


def test_a_namespace_changes_all_hashes(tokenizer: Tokenizer) -> None:
    picture = viz.hashed_blocks({"one": ONE, "theirs": ONE}, 4, tokenizer, extra_keys={"theirs": "tenant"})
    assert picture.alt.count("0 blocks shared") == 2


def test_blocks_that_a_tree_holds_are_green(tokenizer: Tokenizer) -> None:
    picture = viz.hashed_blocks({"one": ONE}, 4, tokenizer, held=block_hashes(ONE, 4)[:1])
    green = ROLES["tree"].face
    assert faces(picture, "one block 0") == [green] != faces(picture, "one block 1")
    assert "1 held" in picture.alt


def test_of_a_long_prompt_the_first_blocks_are_drawn(tokenizer: Tokenizer) -> None:
    picture = viz.hashed_blocks({"long": list(range(100, 145))}, 4, tokenizer)
    assert len(named(picture, "long block")) == 5
    assert "… 6 more blocks" in texts(picture)
    assert_readable(picture)


def test_what_cannot_be_drawn_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match=r"prompts: 0; must be 1\.\.12"):
        viz.hashed_blocks({}, 4, tokenizer)
    with pytest.raises(ValueError, match="block_size=0"):
        viz.hashed_blocks({"one": ONE}, 0, tokenizer)
    with pytest.raises(ValueError, match="extra_keys: 'two' is no prompt"):
        viz.hashed_blocks({"one": ONE}, 4, tokenizer, extra_keys={"two": "a"})

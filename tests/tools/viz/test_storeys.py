"""The picture of storeys: what the pool, host memory and files hold of some prompts, from an engine's live objects."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from nanoinfer import LLM, SamplingParams, viz
from nanoinfer.cache.cache_manager import CacheManager
from tests.helpers.pictures import assert_readable, named, texts
from tests.helpers.storeys import disk_of

ONE = SamplingParams(max_new_tokens=1, temperature=0, ignore_eos=True)
A, B = [5, *range(100, 163)], [5, *range(200, 263)]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory, patient_files: None) -> CacheManager:
    """A was evicted by B: two blocks of its end are in host memory, and all that is held is in files, too."""
    folder: Path = tmp_path_factory.mktemp("kv")
    llm = LLM("story", max_total_tokens=96, max_context_len=80, host_cache_tokens=32, cache_dir=folder)
    disk_of(llm.engine)
    for tokens in (A, B):
        llm.generate(tokens, ONE, use_tqdm=False)
    llm.save_cache()
    return llm.engine.cache


def test_each_storey_has_a_line_with_what_it_holds(cache: CacheManager) -> None:
    picture = viz.storeys(cache, {"A": A, "B": B}, title="T", caption="C.")
    index, disk = cache.storey.index, cache.storey.below
    for label, tokens in (("A", A), ("B", B)):
        in_pool, _ = cache.radix_cache.peek_prefix(tokens, None)
        ids = np.array(tokens, np.int64)
        starts = range(0, len(tokens), 16)
        in_host = sum(index.reach(ids[: at + 16], None, at) > at for at in starts)
        in_files = sum(disk.reach(ids[: at + 16], None, at) > at for at in starts)
        assert len(named(picture, f"{label} pool")) == (in_pool > 0)
        assert len(named(picture, f"{label} host memory")) == in_host
        assert len(named(picture, f"{label} files")) == in_files
    assert picture.alt.startswith("C. A, 64 tokens: pool ")
    assert "B, 64 tokens: pool 0..63, host memory nothing, files 0..63" in picture.alt
    assert texts(picture).count("host memory") == 2
    assert_readable(picture)


def test_numbers_say_where_blocks_begin_where_the_pool_ends_and_where_the_prompt_does(cache: CacheManager) -> None:
    in_pool, _ = cache.radix_cache.peek_prefix(np.array(A, np.int64), None)
    assert in_pool % 16, "it ends inside of a block"
    shown = texts(viz.storeys(cache, {"A": A[:60]}))
    assert {str(at) for at in (0, 16, 32, 48, 60, in_pool)} <= set(shown)
    many = viz.storeys(cache, {"A": [*A, *range(300, 300 + 960)]})
    assert "1024" in texts(many)
    assert_readable(many)


def test_looking_changes_no_order_of_use(cache: CacheManager) -> None:
    before = held_by(cache)
    times = [node.last_access_time for _, node in cache.radix_cache.nodes()]
    viz.storeys(cache, {"A": A})
    assert held_by(cache) == before
    assert [node.last_access_time for _, node in cache.radix_cache.nodes()] == times


def held_by(cache: CacheManager) -> list[int | None]:
    return [block.start for block in cache.storey.index]


def test_what_cannot_be_drawn_is_refused(cache: CacheManager) -> None:
    with pytest.raises(ValueError, match="has no storey below its pool"):
        viz.storeys(LLM("story", max_total_tokens=64).engine.cache, {"A": A})
    with pytest.raises(ValueError, match=r"prompts: 0; must be 1\.\.8"):
        viz.storeys(cache, {})
    with pytest.raises(ValueError, match=r"'A' has 2000 tokens; must be 1\.\.1024"):
        viz.storeys(cache, {"A": range(2000)})
    with pytest.raises(ValueError, match=r"'A' has 0 tokens"):
        viz.storeys(cache, {"A": []})

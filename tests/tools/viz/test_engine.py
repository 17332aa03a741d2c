"""`viz.engine` and the last pass of an engine, live."""

import pytest

pytest.importorskip("matplotlib")


from nanoinfer import LLM, SamplingParams, viz
from nanoinfer.engine.engine import Engine
from nanoinfer.model.forward_batch import ForwardMode
from tests.helpers.pictures import (
    assert_readable,
    texts,
)


@pytest.fixture(scope="module")
def engine() -> Engine:
    """The bundled model after seven steps: four run, two wait."""
    engine = LLM("story", max_total_tokens=128, max_running_requests=4, max_context_len=64).engine
    for end in ("dog", "cat", "girl named Lily", "red ball", "fish", "bear"):
        params = SamplingParams(max_new_tokens=12, temperature=0, ignore_eos=True)
        engine.add_request(f"Once upon a time there was a little {end}", params)
    for _ in range(7):
        engine.step()
    return engine


def test_a_running_engine_shows_slots_rows_tree_and_waiting_requests(engine: Engine) -> None:
    picture = viz.engine(engine)
    stats = engine.stats()
    assert f"{stats.running} running, {stats.waiting} waiting. 128 slots: {stats.free_slots} free" in picture.alt
    assert {f"free: {stats.free_slots}", f"tree, locked: {stats.protected_slots}", "row 0: request 0"} <= set(
        texts(picture)
    )
    assert any(text.startswith("Waiting: request 4 (10 tokens), request 5") for text in texts(picture))
    assert "leaked" not in picture.alt
    assert_readable(picture)


def test_owners_are_the_slots_that_requests_alone_hold(engine: Engine) -> None:
    owners = viz.owners(engine)
    assert list(owners) == [f"request {req.request_id}" for req in engine.scheduler.running]
    assert sum(map(len, owners.values())) == engine.stats().request_slots
    assert "several" not in viz.slot_map(engine.cache.token_to_kv_pool, owners, radix_cache=engine.radix_cache).alt


def test_the_last_pass_can_be_looked_at_with_texts_and_names(engine: Engine) -> None:
    metadata, tokens = viz.last_input_metadata(engine), viz.last_tokens(engine)
    assert metadata.forward_mode is ForwardMode.DECODE
    assert metadata.out_cache_loc.tolist() == engine.last_batch.out_cache_loc.tolist()  # type: ignore[union-attr]
    assert tokens[:4] == ["<s>", "Once", " upon", " a"]
    picture = viz.input_metadata(metadata, tokens=tokens, labels=viz.last_labels(engine))
    assert "request 3" in texts(picture)
    assert_readable(picture)


def test_an_engine_that_has_done_nothing_is_drawn_and_has_no_last_pass() -> None:
    engine = LLM("story", max_total_tokens=64, max_running_requests=2, max_context_len=32).engine
    assert viz.engine(engine).alt.startswith("0 running, 0 waiting. 64 slots: 64 free, 0 tree.")
    with pytest.raises(ValueError, match=r"engine\.last_batch=None: the last step made no pass"):
        viz.last_input_metadata(engine)


def test_an_engine_without_a_radix_cache_is_drawn() -> None:
    engine = LLM(
        "story", max_total_tokens=64, max_running_requests=2, max_context_len=32, disable_radix_cache=True
    ).engine
    engine.add_request("Once upon a time", SamplingParams(max_new_tokens=4, temperature=0))
    engine.step()
    assert "Radix tree: disabled." in viz.engine(engine).alt
    assert "leaked" not in viz.engine(engine).alt

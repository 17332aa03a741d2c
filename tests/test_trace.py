"""Traces: what was recorded is what happened, and the engine does not notice."""

from nanoinfer import LLM, SamplingParams
from nanoinfer.trace import record


def test_a_trace_of_the_bundled_model_rebuilds_its_last_state(story: LLM) -> None:
    prompts = ["Once upon a time there was a fox", "Once upon a time there was a bear"]
    params = SamplingParams(max_new_tokens=4, temperature=0)
    plain = [output.token_ids for output in story.generate(prompts, params, use_tqdm=False)]
    with record(story) as trace:
        recorded = [output.token_ids for output in story.generate(prompts, params, use_tqdm=False)]
    assert recorded == plain
    state = trace.state()
    state.check_integrity()
    assert sorted(state.tree_slots()) == sorted(story.engine.radix_cache.slots().tolist())
    assert state.free == story.engine.stats().free_slots
    assert [req.output_ids for req in state.requests.values()] == recorded

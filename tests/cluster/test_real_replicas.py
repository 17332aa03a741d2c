"""Two real engines behind a PrefixRouter: tokens of one engine alone, and nothing computed twice that somebody has."""

import pytest

from nanoinfer import LLM, SamplingParams
from nanoinfer.cluster import PassCosts, PrefixRouter, ReplicaLoad, RoutedRequest, load_of
from nanoinfer.cluster.simulate.sleeping import sleeping_engine
from nanoinfer.config import EngineConfig
from tests.helpers.engines import finish, greedy, make_engine, serve, step


def test_the_router_knows_what_real_engines_hold() -> None:
    engines = {name: make_engine(slots=96) for name in "ab"}
    feeds = {name: engine.block_feed(4) for name, engine in engines.items()}
    router = PrefixRouter(PassCosts(0.001, 0.01, 0.0001, 0.0), block_size=4, clock=lambda: 0.0)
    for name in engines:
        router.add_replica(name)
    seen = dict.fromkeys(engines, 0)
    cached = prompts = 0
    for turn in range(12):
        text = f"{turn % 3}abcdefghijklmnop" + "xyz"[: turn // 4]
        name = router.choose(RoutedRequest(f"{turn}", list(text.encode()), 4))
        engine = engines[name]
        rid = engine.add_request(text, greedy(4))
        output = finish(engine)[rid]
        router.note_first_token(f"{turn}", output.cached_tokens)
        router.note_end(f"{turn}", len(output.token_ids))
        for batch in feeds[name].since(seen[name]) or []:
            assert router.note_events(name, batch)
            seen[name] = batch.seq + 1
        cached += output.cached_tokens if turn > 2 else 0
        prompts += output.prompt_tokens - 1 if turn > 2 else 0
    assert cached > 0.9 * prompts
    for name, engine in engines.items():
        assert router.index.num_blocks(name) == sum(len(each.block_hashes) for each in feeds[name].snapshot().blocks)
        engine.flush_cache()
        for batch in feeds[name].since(seen[name]) or []:
            assert router.note_events(name, batch)
        assert router.index.num_blocks(name) == 0


def test_an_engine_reports_its_load() -> None:
    engine = make_engine(rows=2)
    ours = {engine.add_request(text, greedy(6)) for text in ("abcd", "efgh", "ijklmn")}
    load = load_of(engine)
    assert (load.waiting_requests, load.queued_tokens, load.running_requests) == (3, 14, 0)
    assert load_of(engine, lambda request_id: request_id not in ours) == ReplicaLoad(0, 0, 0)
    assert load_of(engine, lambda request_id: request_id != min(ours)) == ReplicaLoad(2, 10, 0)
    step(engine)
    load = load_of(engine)
    assert (load.waiting_requests, load.queued_tokens, load.running_requests) == (1, 6, 2)
    finish(engine)
    load = load_of(engine)
    assert (load.waiting_requests, load.queued_tokens, load.running_requests) == (0, 0, 0)


@pytest.mark.parametrize("seed", [None, 7])
def test_tokens_do_not_depend_on_the_replica(seed: int | None) -> None:
    alone, replicas = LLM("story", max_total_tokens=2048), {n: LLM("story", max_total_tokens=2048) for n in "ab"}
    router = PrefixRouter(PassCosts(0.001, 0.0001, 0.0001, 0.0), clock=lambda: 0.0)
    for name in replicas:
        router.add_replica(name)
    params = SamplingParams(max_new_tokens=12, temperature=0 if seed is None else 1, seed=seed)
    texts = [f"The little {animal} lived in a forest, and every day" for animal in ("fox", "hen", "cat", "bear")]
    prompts = [alone.tokenizer.encode(text) for text in texts]
    chosen = [router.choose(RoutedRequest(f"{i}", prompt, 12)) for i, prompt in enumerate(prompts)]
    assert {*chosen} == {"a", "b"}
    wanted = [output.token_ids for output in alone.generate(prompts, params)]
    found = [
        replicas[name].generate([prompt], params)[0].token_ids for name, prompt in zip(chosen, prompts, strict=True)
    ]
    assert found == wanted


def test_a_model_that_sleeps_computes_prompts_in_pieces_like_any_other() -> None:
    config = EngineConfig(max_total_tokens=1024, max_context_len=512, chunked_prefill_size=64, max_running_requests=4)
    engine = sleeping_engine(config, PassCosts(1e-6, 0.0, 0.0, 0.0))
    prompts = [list(range(start, start + 100)) for start in (1000, 2000, 3000)]
    outputs = serve(engine, *prompts, max_new_tokens=3)
    assert [out.token_ids for out in outputs] == [[prompt[-1] + i for i in (1, 2, 3)] for prompt in prompts]
    engine.check_integrity()

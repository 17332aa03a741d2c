"""`bench serve --own-cost`: what the server costs beside its engine. No times."""

import asyncio
from typing import Any

import pytest

from nanoinfer import LLM, AsyncEngine
from nanoinfer.bench.engines import EngineFailure
from nanoinfer.bench.serve.own_cost import AGAIN, ENGINE, HTTP, OwnCostSettings, over_http, start_own_cost
from nanoinfer.bench.serve.own_cost_report import CPU, costs, format_own_cost
from nanoinfer.bench.serve.own_cost_worker import serve_prompts
from nanoinfer.bench.serve.process import ServerProcess, free_port
from nanoinfer.bench.serve.session import Session
from tests.helpers.bench_serve import NEW_TOKENS, fake
from tests.helpers.waiting import HANG_S


def test_both_sides_of_the_own_cost_serve_all_tokens(story: LLM) -> None:
    async def in_process() -> dict[str, Any]:
        async with AsyncEngine(LLM("story", max_running_requests=4)) as engine:
            return await serve_prompts(engine, ["Once", "One day"], NEW_TOKENS)

    assert asyncio.run(in_process())["tokens"] == 2 * NEW_TOKENS
    settings = OwnCostSettings(streams=2, new_tokens=NEW_TOKENS, rounds=2)
    session, port = Session(settings.serve_settings()), free_port()
    for options, failure in (({}, None), ({"trouble": "short"}, "3 tokens"), ({"trouble": "429"}, "refused")):
        spec = fake("server", **options)
        server = ServerProcess(spec.command(session.checkpoint, 1, port), spec.environment(1), port, HANG_S)
        try:
            if failure is None:
                seconds, _, client_s = asyncio.run(over_http(session, settings, server, ["a", "b"]))
                assert seconds > 0 <= client_s
            else:
                with pytest.raises(EngineFailure, match=failure):
                    asyncio.run(over_http(session, settings, server, ["a", "b"]))
        finally:
            server.close()


def test_the_own_cost_is_compared_with_both_runs_of_the_engine() -> None:
    results = start_own_cost(OwnCostSettings(rounds=2))
    results["runs"] = [
        {"round": 0, ENGINE: 1.0, HTTP: 1.05, AGAIN: 1.0, "client_s": 0.1},
        {"round": 1, ENGINE: 1.0, HTTP: 1.20, AGAIN: 1.4, "client_s": 0.1},
    ]
    for run, server in zip(results["runs"], (1.1, 1.3), strict=True):
        run |= {ENGINE + CPU: 1.0, HTTP + CPU: server, AGAIN + CPU: 1.0}
    assert costs(results) == pytest.approx([0.05, 0.0])
    text = format_own_cost(results)
    assert "The server takes 2.5% (0.0%..5.0%) more time" in text
    assert "AsyncEngine: 20.0% (0.0%..40.0%)" in text
    assert "It takes 20.0% (10.0%..30.0%) more processor time (noise: 0.0% (0.0%..0.0%))" in text
    for run in results["runs"]:
        run |= dict.fromkeys((ENGINE + CPU, HTTP + CPU, AGAIN + CPU))
    assert "processor time (" not in format_own_cost(results), "where the system does not tell it"

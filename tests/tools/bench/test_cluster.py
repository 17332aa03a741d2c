"""`bench cluster`: what it sends, what it counts, and that kept cells are not measured again. Traffic itself needs Ray."""

import asyncio
import json
from collections import Counter
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from random import Random

import pytest

from nanoinfer.bench import command
from nanoinfer.bench.cluster.figures import Figures, InfiniteCache, figures_of
from nanoinfer.bench.cluster.session import POLICIES, SLEEPING_VOCABULARY, format_cells, run, setups
from nanoinfer.bench.cluster.traffic import WORKLOADS, Exchange, Size, burst, chat, run_traffic
from nanoinfer.cli.main import main
from nanoinfer.frontends.llm import LLM
from nanoinfer.requests.sampling_params import SamplingParams

ONE = Figures("threads", "prefix", "chat", 10, 0.5, 0.8, 0.1, 0.3, 200.0, 0, 0)


def test_an_infinite_cache_has_the_longest_beginning_that_it_was_given() -> None:
    rng, cache, given = Random(0), InfiniteCache(), list[list[int]]()
    for _ in range(300):
        tokens = [rng.randint(0, 2) for _ in range(rng.randint(1, 8))]
        shared = [
            next((i for i, token in enumerate(tokens[:-1]) if old[i : i + 1] != [token]), len(tokens) - 1)
            for old in given
        ]
        assert cache.matched(tokens) == max(shared, default=0)
        cache.add(tokens)
        given.append(tokens)


def test_conversations_go_on_and_bursts_are_new_to_everybody() -> None:
    size = Size(seconds=2, chats=20, systems=3, turns=4, bursts=5, burst_prefixes=3, burst_clients=40)
    sessions = chat(size, seed=1)
    assert sessions == chat(size, seed=1) != chat(size, seed=2)
    assert len(sessions) == 20
    assert len({tuple(first.token_ids[: size.system]) for first, *_ in sessions}) <= 3
    assert all([len(ask.token_ids) for ask in session] == [280, 24, 24, 24] for session in sessions)
    asks = [session[0] for session in burst(size, seed=1)]
    for number, start in enumerate((0.0, 0.4, 0.8, 1.2, 1.6)):
        together = asks[40 * number : 40 * (number + 1)]
        assert all(start <= ask.at <= start + size.burst_s for ask in together)
        assert len({tuple(ask.token_ids[: size.burst_prefix]) for ask in together}) == 3
    prefixes = Counter(tuple(ask.token_ids[: size.burst_prefix]) for ask in asks)
    assert len(prefixes) == 5 * 3, "each burst has new ones"
    assert max(prefixes.values()) > 2 * min(prefixes.values()), "some are asked far more often"


def test_figures_count_hits_waits_and_what_is_wrong() -> None:
    exchanges = [
        Exchange([1, 2, 3, 4], 0.0, 1.0, 2.0, 0, [5, 6]),
        Exchange([1, 2, 3, 9], 1.0, 1.5, 4.0, 3, [5, 7]),
        Exchange([1, 2, 3, 4, 5, 6, 8], 3.0, error="gone"),
    ]
    found = figures_of("threads", "prefix", "chat", exchanges, [[5, 6], [5, 6], [1, 1]])
    assert (found.requests, found.hit_rate, found.wrong, found.failed, found.first_error) == (3, 3 / 8, 1, 1, "gone")
    assert found.ideal_hit_rate == (0 + 3 + 6) / 15, "an answer is in the cache, too"
    assert (found.ttft_p50, found.output_tokens_per_second) == (0.75, 1.0)
    assert Figures(**found.as_json()) == found


def test_the_table_has_medians_and_spreads_of_rounds_and_everything_that_failed() -> None:
    rounds = [ONE, replace(ONE, ttft_p50=0.2, failed=1), replace(ONE, ttft_p50=0.9, hit_rate=0.9, failed=2)]
    *_, row = format_cells([*rounds, replace(ONE, setup="sleep")]).splitlines()
    assert [cell.strip() for cell in row.strip("|").split("|")] == [
        *("threads", "chat", "prefix", "50.0%", "0.62"),
        *("200 (100–900)", "300 (300–300)", "200 (200–200)", "3", "0", "3"),
    ]


def test_cells_that_are_kept_are_not_measured_again(tmp_path: Path) -> None:
    setup = setups("story")["threads"]
    for number in range(2):
        for workload in WORKLOADS:
            cell = replace(ONE, workload=workload, requests=number)
            (tmp_path / f"threads-{workload}-prefix-{number}.json").write_text(json.dumps(cell.as_json()))
    found = run([setup], ["prefix"], 0, 2, tmp_path)
    assert [(each.requests, each.workload) for each in found] == [(0, "chat"), (0, "burst"), (1, "chat"), (1, "burst")]


def test_all_cells_can_be_written_into_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: True)  # kept cells need no Ray
    cells = [replace(ONE, workload=workload).as_json() for workload in WORKLOADS]
    for cell in cells:
        (tmp_path / f"threads-{cell['workload']}-prefix-0.json").write_text(json.dumps(cell))
    chosen = ["--setup", "threads", "--policy", "prefix", "--out", str(tmp_path), "--json", str(tmp_path / "all")]
    assert main(["bench", "cluster", *chosen]) == 0
    assert json.loads((tmp_path / "all").read_text()) == cells


def test_what_one_engine_answers_is_what_cells_are_compared_with() -> None:
    known = setups("story")
    prompts = [[10, 11, 12], [20, 21]]
    params = SamplingParams(max_new_tokens=3, temperature=0, ignore_eos=True)
    alone = [output.token_ids for output in LLM("story").generate(prompts, params, use_tqdm=False)]
    assert known["threads"].answers(prompts, [3, 3]) == alone
    assert known["sleep"].answers([[5, SLEEPING_VOCABULARY - 2]], [3]) == [[SLEEPING_VOCABULARY - 1, 0, 1]]


def test_sessions_are_held_over_http_and_each_turn_has_the_answers_before_it() -> None:
    assert tuple(POLICIES) == command.POLICY_NAMES
    llm = LLM("story", max_running_requests=4)
    size = Size(seconds=0.01, chats=2, systems=1, system=20, question=5, answer=4, turns=2)
    server = llm.serve(port=0)
    try:
        exchanges = asyncio.run(run_traffic(int(server.url.rpartition(":")[2]), "story", chat(size, 0)))
    finally:
        server.stop()
    assert [each.error for each in exchanges] == [None] * 4
    answers = setups("story")["threads"].answers([each.prompt for each in exchanges], [4] * 4)
    assert [each.output for each in exchanges] == answers
    assert sorted(len(each.prompt) for each in exchanges) == [25, 25, 34, 34]
    assert all(each.sent < each.first_token <= each.end for each in exchanges)
    assert sum(each.cached_tokens for each in exchanges) > 0


@pytest.mark.parametrize("option", ["--seconds", "--rounds"])
def test_there_must_be_something_to_do(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "cluster", option, "0"]) == 2
    error = capsys.readouterr().err
    assert (option if find_spec("ray") else "nanoinfer[cluster]") in error

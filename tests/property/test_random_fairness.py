"""No request waits for ever, at random: with aborts, retractions, chunks and equal prompts."""

import numpy as np
import pytest

from nanoinfer.requests.req import Req
from tests.helpers.fakes import FakeServer, admissions, expected_output


@pytest.mark.parametrize("policy", ["lpm", "dfs-weight", "random", "fcfs"])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("max_overtakes", [1, 4])
def test_the_bound_holds_whatever_comes(policy: str, seed: int, max_overtakes: int) -> None:
    """With aborts, retractions, chunks and equal prompts that wait for one another."""
    rng = np.random.default_rng(seed)
    server = FakeServer(
        max_total_tokens=48,
        max_running_requests=int(rng.integers(1, 6)),
        schedule_policy=policy,
        policy_window=int(rng.choice([2, 128])),
        max_overtakes=max_overtakes,
        chunked_prefill_size=[None, 3, 40][int(rng.integers(3))],
        schedule_conservativeness=[0.001, 11.0][int(rng.integers(2))],
        random_seed=seed,
    )
    everybody: list[Req] = []
    first_admitted: list[Req] = []
    for i in range(250):
        if i < 200 and rng.random() < 0.6:
            prompt = [7] * int(rng.integers(0, 35)) + rng.integers(0, 2, size=2).tolist()
            everybody.append(server.add(prompt, max_new_tokens=int(rng.integers(1, 9))))
        waiting = [req for req in server.scheduler.waiting if not req.num_retractions]
        if waiting and rng.random() < 0.03:
            server.abort(waiting[int(rng.integers(len(waiting)))])
        first_admitted += admissions(server)
    server_limit = 2000
    while server.scheduler.waiting or server.scheduler.running:
        first_admitted += admissions(server)
        server_limit -= 1
        assert server_limit
    place = {req: i for i, req in enumerate(first_admitted)}
    assert len(place) == len(first_admitted), "admitted for the first time once"
    for req in first_admitted:
        earlier = first_admitted[: place[req]]
        assert sum(other.ticket > req.ticket for other in earlier) <= max_overtakes
    for req in everybody:
        if req.finish_reason != "abort":
            assert req.output_ids == expected_output(req, server.vocab_size)[0]
    server.check_all_free()

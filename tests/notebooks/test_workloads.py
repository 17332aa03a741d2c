"""Workloads in counts of steps, whose numbers are the engine's; and replicas in virtual time: real tokens and hits, a clock
that is computed, and a death after which nothing is missing."""

import pytest

from nanoinfer.cluster import LeastLoaded, PrefixRouter, RoundRobin
from nanoinfer.cluster.costs import PassCosts
from nanoinfer.requests.req import Req
from nanoinfer.scheduler.scheduler import Scheduler
from notebooks.course import BEAR, FOX, HELLO
from notebooks.course.replicas import COSTS, Chat, ClusterRun, serve_chats
from notebooks.course.workloads import Figures, Limits, Request, Timed, azure_load, new_engine, serve, serve_timed


def test_a_request_arrives_before_its_step_and_makes_its_tokens() -> None:
    run = serve([Request(FOX, 5), Request(HELLO, 3, at=2)])
    assert run.passes == "EDEDDD"
    assert run.new_tokens == [14, 1, 7, 2, 2, 1]  # HELLO's <s> is in the tree by then
    assert [len(ids) for ids in run.token_ids] == [5, 3]
    assert run.waiting == [0] * 6
    assert len(run.ratio) == 6


def test_a_stop_string_ends_a_request_before_its_tokens_are_used_up() -> None:
    (tokens,) = serve([Request(FOX, 60, stop=".")], traced=False).token_ids
    assert len(tokens) < 20


def test_prompts_may_be_token_ids_and_settings_reach_the_engine() -> None:
    run = serve([Request([1, 5, 9], 2), Request([1, 7], 2)], max_running_requests=1)
    assert run.passes == "EDED"
    assert run.waiting == [1, 1, 0, 0]
    assert run.engine.config.max_running_requests == 1


def test_a_scheduler_in_place_of_the_package_s_decides() -> None:
    class Static(Scheduler):
        def _admit(self) -> None:
            if not self.running:
                super()._admit()

    assert isinstance(new_engine(Static).scheduler, Static)
    assert serve([Request(FOX, 3), Request(BEAR, 2, at=1)], Static).passes == "EDDED"


def test_a_scheduler_without_retraction_ends_with_an_error_that_the_run_tells() -> None:
    class Greedy(Scheduler):
        def _make_room_for(self, decoding: list[Req]) -> list[Req]:
            return decoding

    workload = [Request(FOX, 20), Request(BEAR, 20)]
    run = serve(workload, Greedy, max_total_tokens=40, schedule_conservativeness=0.001)
    assert "slots" in run.error
    assert [str(output.finish_reason) for output in run.outputs.values()] == ["abort", "abort"]
    assert serve(workload, max_total_tokens=40, schedule_conservativeness=0.001).error == ""


def test_requests_under_load_get_their_tokens_one_after_the_other_and_figures_are_those_of_their_times() -> None:
    load = azure_load(12, prompt_scale=1 / 40, output_scale=1 / 20)
    timed = serve_timed(new_engine(), load, rate=1e4)
    assert [len(each.times) for each in timed] == [ask.new_tokens for ask in load]
    assert all(each.times == sorted(each.times) for each in timed)
    assert all(each.ttft > 0 for each in timed)
    two = [Timed(0.0, [1.0, 2.0]), Timed(1.0, [4.0, 4.5])]
    figures = Figures.of(two, Limits(ttft=1.0, gap=1.0))
    assert (figures.ttft_p50, figures.gap_p50, figures.good) == (2.0, 0.75, 0.5)
    assert figures.throughput == 4 / 4.5
    assert not Limits(ttft=1.0, gap=0.9).hold(two[0])


COST = PassCosts(1.0, 0.125, 0.0, 0.0)
ONE, OTHER = list(range(10, 50)), list(range(60, 100))
CHATS = [
    Chat("one", ONE, [[3, 4], [5, 6]], new_tokens=4),
    Chat("two", ONE, [[7, 8]], at=2.0, new_tokens=4),
    Chat("three", OTHER, [[9]], at=2.0, new_tokens=4),
]


@pytest.fixture(scope="module")
def alone() -> ClusterRun:
    return serve_chats(CHATS[:1], RoundRobin(), replicas=["A"], costs=COST)


def test_a_pass_takes_what_its_costs_say(alone: ClusterRun) -> None:
    first, second = alone.served
    assert first.ttft == 1 + 42 * 0.125
    assert first.end_at == first.first_token_at + 3
    assert second.at == first.end_at + 1.0, "its pause"
    new = len(second.prompt) - second.cached_tokens
    assert second.ttft == 1 + new * 0.125
    assert [each.end - each.start for each in alone.passes["A"][:2]] == [6.25, 1.0]


def test_each_prompt_is_all_that_was_said_and_what_the_tree_has_of_it_is_found(alone: ClusterRun) -> None:
    first, second = alone.served
    assert second.prompt == [*ONE, 3, 4, *first.token_ids, 5, 6]
    assert second.cached_tokens >= len(first.prompt)
    assert alone.computed == sum(len(each.prompt) - each.cached_tokens for each in alone.served)
    assert alone.hit_rate == second.cached_tokens / (len(first.prompt) + len(second.prompt))


def test_where_requests_go_changes_no_token() -> None:
    runs = [serve_chats(CHATS, policy, replicas=names) for policy, names in (
        (RoundRobin(), "A"), (LeastLoaded(), "AB"), (lambda clock: PrefixRouter(COSTS, clock=clock), "ABC")
    )]  # fmt: skip
    assert runs[0].tokens() == runs[1].tokens() == runs[2].tokens()
    assert [each.replicas for each in runs[1].served][:2] == [["A"], ["B"]]


def test_the_requests_of_a_replica_that_dies_go_on_elsewhere_with_the_same_tokens() -> None:
    whole = serve_chats(CHATS, RoundRobin(), replicas="AB", costs=COST)
    for when, done in ((1.0, 0), (6.5, 1), (13.0, 1)):
        run = serve_chats(CHATS, RoundRobin(), replicas="AB", costs=COST, dies=("A", when))
        assert run.tokens() == whole.tokens(), when
        assert all(len(each.token_ids) == 4 for each in run.served)
        assert run.served[0].replicas == ["A", "B"]
        assert all(each.end <= when for each in run.passes["A"])
        assert all(each.replicas[-1] == "B" for each in run.served)
        assert run.served[0].done == done


def test_a_router_is_told_later_where_reports_take_time() -> None:
    class Recording(RoundRobin):
        def __init__(self) -> None:
            super().__init__()
            self.batches = list[tuple[str, int]]()

        def note_events(self, replica: str, batch: object) -> bool:
            self.batches.append((replica, batch.seq))  # type: ignore[attr-defined]
            return len(self.batches) != 1  # the first time, as if one were missing

        def note_snapshot(self, replica: str, snapshot: object) -> None:
            self.batches.append((replica, -1))

    policy = Recording()
    serve_chats(CHATS[:1], policy, replicas=["A"], report_seconds=0.5)
    assert policy.batches[:2] == [("A", 0), ("A", -1)]
    assert [seq for _, seq in policy.batches[2:]] == list(range(1, len(policy.batches) - 1))

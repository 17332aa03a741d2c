"""Workloads in counts of steps: what `serve` counts, and that its numbers are those of the engine."""

from nanoinfer.requests.req import Req
from nanoinfer.scheduling.scheduler import Scheduler
from notebooks.course import BEAR, FOX, HELLO
from notebooks.course.workloads import Request, new_engine, serve


def test_a_request_arrives_before_its_step_and_makes_its_tokens() -> None:
    run = serve([Request(FOX, 5), Request(HELLO, 3, at=2)])
    assert run.passes == "EDEDDD"
    assert run.new_tokens == [14, 1, 7, 2, 2, 1]  # HELLO's <s> is in the tree by then
    assert [len(ids) for ids in run.token_ids] == [5, 3]
    assert run.waiting == [0] * 6
    assert len(run.seconds) == len(run.ratio) == len(run.in_use) == 6


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

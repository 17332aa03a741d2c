"""A process that forks while another of its threads makes a pass."""

import os
import signal

import pytest

from tests.helpers.async_engines import gated, in_a_pass, llm_around
from tests.helpers.engines import assert_all_free, greedy
from tests.helpers.waiting import HANG_S, Worker, until


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_process_forked_while_another_thread_makes_a_pass_can_use_the_engine() -> None:
    engine, gate = gated(open_at_once=False)
    llm = llm_around(engine)
    call = in_a_pass(llm, gate, [5], greedy(3))

    def let_pass() -> None:
        until(lambda: engine.turns.waiting, "a fork that waits for the pass to end")
        gate.open()

    opener = Worker(let_pass)
    child = os.fork()
    if child == 0:
        signal.alarm(int(HANG_S))
        code = 1
        try:
            code = 0 if llm.generate([70], greedy(2))[0].token_ids == [71, 72] else 2
            engine.check_integrity()
            code = code if len(engine.loop.request_ids()) + engine.stats().running == 0 else 3
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    opener.result()
    assert call.result()[0].token_ids == [6, 7, 8]
    assert_all_free(engine)

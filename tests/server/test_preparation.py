"""Tokenizers and compilers of grammars that raise or hang end the requests that need them, and no others."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.helpers.servers import BODY, BreakingTokenizer, gated_server
from tests.helpers.waiting import HANG_S, until


@pytest.mark.parametrize(("error", "status"), [(ValueError("bad"), 400), (KeyError("k"), 400), (RecursionError(), 400)])
def test_a_tokenizer_that_raises_ends_one_request(error: Exception, status: int) -> None:
    def fail() -> list[int]:
        raise error

    with gated_server(is_open=True) as (server, _, engine):
        engine.builder.tokenizer = BreakingTokenizer(engine.builder.tokenizer, fail)  # type: ignore[assignment]
        answer = server.post("/v1/completions", {**BODY, "prompt": "break"})
        assert (answer.status_code, answer.json()["error"]["param"]) == (status, "prompt")
        server.check_idle()


def test_tokenizers_that_hang_end_their_requests_and_do_not_pile_up() -> None:
    free, hanging, most = threading.Event(), [], []

    def hang() -> list[int]:
        hanging.append(1)
        most.append(len(hanging))
        free.wait(HANG_S)
        hanging.pop()
        return [1]

    with gated_server(is_open=True, settings={"preparation_timeout_s": 0.1}) as (server, _, engine):
        engine.builder.tokenizer = BreakingTokenizer(engine.builder.tokenizer, hang)  # type: ignore[assignment]
        with ThreadPoolExecutor(12) as threads:
            sent = [threads.submit(server.post, "/v1/completions", {**BODY, "prompt": "break"}) for _ in range(20)]
            answers = [each.result() for each in sent]
        codes = Counter((answer.status_code, answer.json()["error"]["code"]) for answer in answers)
        assert codes == {(500, "preparation_timeout"): 8, (503, "overloaded"): 12}
        until(lambda: len(most) == 8)  # threads that were given up begin, too
        assert max(most) == 8
        server.check_idle()  # with a prompt of token ids, which needs no tokenizer
        free.set()
        until(lambda: not hanging)
        server.service.background._timeout_s = HANG_S  # from now on, time shall not matter
        assert server.post("/v1/completions", {**BODY, "prompt": "break"}).status_code == 200


def test_grammars_have_threads_and_a_deadline_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    free = threading.Event()
    with gated_server(is_open=True, settings={"preparation_timeout_s": 0.1}) as (server, _, engine):
        monkeypatch.setattr(engine.grammars, "prepare", lambda *args: free.wait(HANG_S))
        slow = {**BODY, "prompt": [1], "guided_regex": "a"}
        with ThreadPoolExecutor(12) as threads:
            sent = [threads.submit(server.post, "/v1/completions", slow) for _ in range(8)]
            answers = [each.result() for each in sent]
        codes = Counter((answer.status_code, answer.json()["error"]["code"]) for answer in answers)
        assert codes == {(500, "preparation_timeout"): 4, (503, "overloaded"): 4}
        monkeypatch.undo()
        server.service.background._timeout_s = server.service.compilers._timeout_s = HANG_S
        assert server.post("/v1/completions", {**BODY, "prompt": "b"}).status_code == 200  # the tokenizer is free
        free.set()
        assert server.post("/v1/completions", slow).status_code == 200
        server.check_idle()

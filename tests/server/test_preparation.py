"""Tokenizers, chat templates and compilers of grammars that raise or hang end the requests that need them, no others."""

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from nanoinfer import LLM
from nanoinfer.server.background import Background
from tests.helpers.engines import LetterTokenizer
from tests.helpers.servers import BODY, BreakingTokenizer, gated_server, let_in, patient_app
from tests.helpers.waiting import HANG_S, until, until_async
from tests.server.test_lock import ask

CHAT = {"model": "nanoinfer", "messages": [{"role": "user", "content": "hush"}], "max_tokens": 2, "temperature": 0}


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


def test_a_call_that_has_waited_for_a_thread_has_all_of_its_time() -> None:
    """It is not to blame for what others took."""
    free, has_begun = [threading.Event() for _ in range(2)], [threading.Event() for _ in range(2)]

    def work(number: int) -> int:
        has_begun[number].set()
        assert free[number].wait(HANG_S)
        return number

    async def wait_and_work() -> list[int]:
        loop, passed = asyncio.get_running_loop(), [0.0]
        clock = loop.time
        loop.time = lambda: clock() + passed[0]  # type: ignore[method-assign]
        background = Background(10 * HANG_S, at_once=1)
        calls = [asyncio.create_task(background.call(partial(work, i), "the tokenizer")) for i in range(2)]
        for number in range(2):
            await until_async(has_begun[number].is_set)
            passed[0] += 8 * HANG_S
            for _ in range(3):  # timers that are due run now
                await asyncio.sleep(0)
            free[number].set()
        return await asyncio.gather(*calls)

    assert asyncio.run(wait_and_work()) == [0, 1]


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


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ 1 // 0 }}", "the chat template fails on it (ZeroDivisionError)"),
        ("{{ messages[5].content }}", "chat template"),
        ("{{ raise_exception('not so') }}", "not so"),
        ("{% for", "chat template"),
        ("{{ messages.__class__.__mro__[1].__subclasses__() }}", "chat template"),
    ],
)
def test_a_chat_template_that_raises_ends_one_request(template: str, message: str) -> None:
    llm = LLM("story", max_total_tokens=256)
    llm.tokenizer.hf_tokenizer.chat_template = template
    app = patient_app(llm)
    for path in ("/v1/chat/completions", "/tokenize"):
        body = {**CHAT, "model": "story"} if path != "/tokenize" else {"messages": CHAT["messages"]}
        answer = ask(app, "POST", path, json=body)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, "messages"), answer.text
        assert message in error["message"]
        assert "hush" not in error["message"]
    assert ask(app, "POST", "/v1/completions", json={**BODY, "model": "story"}).status_code == 200


def test_a_chat_template_that_hangs_ends_one_request() -> None:
    free, hanging = threading.Event(), threading.Event()

    def hang(*args: object) -> list[int]:
        hanging.set()
        free.wait(HANG_S)
        return [1]

    with gated_server(is_open=True, settings={"preparation_timeout_s": 0.1}) as (server, _, engine):
        engine.builder.chat_prompt = hang  # type: ignore[method-assign]
        answer = server.post("/v1/chat/completions", CHAT)
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "preparation_timeout")
        until(hanging.is_set)
        server.check_idle()
        free.set()


@pytest.mark.parametrize("stream", [False, True])
def test_a_tokenizer_that_cannot_decode_a_token_ends_one_request(stream: bool) -> None:
    class Forgetful(LetterTokenizer):
        def decode(self, token_ids: Sequence[int]) -> str:
            if ord("e") in token_ids:
                raise KeyError("hush")
            return super().decode(token_ids)

    with gated_server() as (server, gate, engine), ThreadPoolExecutor(2) as threads:
        engine.builder.tokenizer = Forgetful()
        sent = [
            threads.submit(server.post, "/v1/completions", {**BODY, "prompt": prompt, "stream": stream})
            for prompt in ("abc", "mno")
        ]
        let_in(server, gate, engine, 2)
        gate.open()
        failed, served = (each.result() for each in sent)
        events = served.text.split("\n\n")[:-2] if stream else [served.text]
        choices = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events]
        assert "".join(choice["text"] for choice in choices) == "pqrstuvw"
        assert '"code":"step_failed"' in failed.text.replace('": "', '":"')
        assert "KeyError" in failed.text
        assert "hush" not in failed.text
        server.check_idle()

"""The live page's feed and addresses: its messages are a trace of the engine, secret where prompts are; nobody watches,
nothing runs; what the engine does needs the key."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from nanoinfer import AsyncEngine, Engine, SamplingParams
from nanoinfer.server.live import feed as feeds
from nanoinfer.server.live import recording
from nanoinfer.server.live.feed import Feed
from nanoinfer.server.live.recording import Recording
from nanoinfer.server.live.routes import FILES, LIBRARY, POLICY
from nanoinfer.viz.trace import Trace, record
from tests.helpers.async_engines import with_barrier
from tests.helpers.engines import Clock, LetterTokenizer, greedy, make_engine, serve
from tests.helpers.servers import Running, patient_app, running
from tests.helpers.traces import assert_same
from tests.helpers.waiting import HANG_S, run, until_async


def read(messages: bytes) -> dict[str, Any]:
    """What a page has after these messages, as in a file."""
    document: dict[str, Any] = {}
    for line in messages.decode().splitlines():
        if not line.startswith("data: ") or (message := json.loads(line.removeprefix("data: "))) == {}:
            continue
        if "engine" in message:
            document = {"texts": {}, "pieces": {}, "requests": [], "events": []}
        for name, value in message.items():
            if name in ("requests", "events"):
                document[name] += value
            else:
                document[name] = {**document[name], **value} if name in ("texts", "pieces") else value
    return document


class Taped:
    """An engine, and all messages of a recording of it."""

    def __init__(self, engine: Engine, show_prompts: bool = True):
        self._recording, self.messages = Recording(engine, show_prompts, {"about": 1}), b""

    def trace(self, folder: Path) -> Trace:
        """What somebody who saves the page's trace and opens it gets now."""
        news = self._recording.take()
        if any(news):
            self.messages += self._recording.message(*news)
        (folder / "trace.json").write_text(json.dumps(read(self.messages)))
        return Trace.load(folder / "trace.json")


# --- what the messages say --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"drafter": "ngram"}, {"host_cache_tokens": 128}])
def test_the_messages_are_a_trace_of_what_the_engine_has(options: dict[str, Any], tmp_path: Path) -> None:
    engine = make_engine(rows=3, slots=96, chunked_prefill_size=5, adaptive_drafts=False, **options)
    serve(engine, "abcdef", max_new_tokens=3)
    taped = Taped(engine)
    with record(engine) as whole:
        for i, prompt in enumerate(("abcdefgh", "abcxyz", "abcdqr", "zzzzzzzz", "abcdefghijk", "klm") * 2):
            params = SamplingParams(max_new_tokens=9, temperature=float(i % 2), seed=1, n=1 + i % 2)
            engine.add_request(prompt, params, extra_key=[None, "a"][i % 2])
            if i == 4:
                engine.pause(next(iter(engine.open_requests.groups)))
            if i == 8:
                engine.flush_cache()
            for _ in range(3):
                engine.step()
            assert_same(taped.trace(tmp_path), engine)
    trace = taped.trace(tmp_path)
    assert [trace.text(i) for i in range(len(trace.requests))] == [whole.text(i) for i in range(len(whole.requests))]
    assert read(taped.messages)["about"] == {"about": 1}


class ByteTokenizer(LetterTokenizer):
    """A token is a byte; 1, 2 and 3 are those of the euro's sign."""

    def decode(self, token_ids: Any, **options: Any) -> str:
        return bytes(b"\0\xe2\x82\xac"[token] if token < 4 else token for token in token_ids).decode(errors="replace")


def test_a_character_of_several_tokens_is_whole_though_they_come_one_by_one(tmp_path: Path) -> None:
    engine = make_engine(tokenizer=ByteTokenizer())
    taped = Taped(engine)
    engine.add_request([97, 1], greedy(2))  # which is continued with 2 and 3
    while engine.has_unfinished():
        engine.step()
        trace = taped.trace(tmp_path)
    assert trace.text(0) == "a€"


def hidden(prompts: tuple[str, ...], key: str, tmp_path: Path) -> bytes:
    """The messages of a run with drafts and a step that fails, whose error quotes a prompt."""
    engine = make_engine(slots=96, drafter="ngram", adaptive_drafts=False, clock=Clock())
    for prompt in prompts:
        engine.add_request(prompt, greedy(6), extra_key=key)
    engine.step()
    engine.step()
    taped = Taped(engine, show_prompts=False)  # it begins with outputs
    model = engine.model_runner.model

    def fail(*_: Any) -> Any:
        raise RuntimeError(prompts[0])

    engine.model_runner.model = fail
    with pytest.raises(RuntimeError):
        engine.step()
    engine.model_runner.model = model
    serve(engine, prompts[1], max_new_tokens=4)
    assert {event.error for event in taped.trace(tmp_path).events} == {None, "RuntimeError"}
    return taped.messages


def test_without_show_prompts_not_a_byte_depends_on_what_was_written(tmp_path: Path) -> None:
    one = hidden(("abcdef", "abcxyz"), "secret", tmp_path)
    assert one == hidden(("ghijkl", "ghiopq"), "other", tmp_path)
    assert b'"key 1"' in one


# --- who watches ------------------------------------------------------------------------------------------------------

Test = Callable[[Feed, AsyncEngine, Any], Awaitable[None]]


def with_feed(test: Test) -> None:
    async def body() -> None:
        engine, _ = with_barrier()
        async with AsyncEngine(engine) as front:
            settings = SimpleNamespace(show_prompts=False)
            service: Any = SimpleNamespace(engine=front, settings=settings, is_ending=asyncio.Event())
            feed = Feed(service, {})
            await test(feed, front, service)
            service.is_ending.set()
            await until_async(lambda: feed._task is None)

    run(body)


async def read_until(
    stream: AsyncIterator[bytes], condition: Callable[[dict[str, Any]], bool], messages: bytes = b""
) -> bytes:
    """These messages, and those of a stream until what a page has fulfils a condition."""
    async for part in stream:
        messages += part
        if condition(read(messages)):
            return messages
    raise AssertionError("the stream has ended")


def ended(requests: int) -> Callable[[dict[str, Any]], bool]:
    return lambda page: sum(len(event.get("ended", ())) for event in page["events"]) == requests


def test_it_records_only_while_somebody_watches() -> None:
    async def test(feed: Feed, front: AsyncEngine, _: Any) -> None:
        core = front.llm
        owners = (core, core.scheduler)  # type: ignore[attr-defined]
        before = [dict(vars(owner)) for owner in owners]
        await front.generate("abc", greedy(3))
        assert (feed._task, feed._messages) == (None, [])
        stream = feed.stream()
        assert read(await anext(stream))["requests"] == []
        await stream.aclose()
        await until_async(lambda: [dict(vars(owner)).keys() for owner in owners] == [old.keys() for old in before])
        await until_async(lambda: (feed._task, feed._messages) == (None, []))

    with_feed(test)


def test_all_who_watch_get_the_same_whenever_they_come_and_however_slowly_they_read() -> None:
    async def test(feed: Feed, front: AsyncEngine, _: Any) -> None:
        first, slow = feed.stream(), feed.stream()
        beginning = [await anext(first), await anext(slow)]
        for prompt in ("abc", "abcdef", "xyz"):
            await front.generate(prompt, greedy(3))
        followed = await read_until(first, ended(3), beginning[0])
        late = feed.stream()
        assert beginning[1] + await anext(slow) == await anext(late) == followed
        for stream in (first, slow, late):
            await stream.aclose()
        assert feed.watchers == 0

    with_feed(test)


def test_a_full_recording_begins_anew_also_for_those_who_read_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MOST_STEPS", 3)

    async def test(feed: Feed, front: AsyncEngine, _: Any) -> None:
        quick, slow = feed.stream(), feed.stream()
        beginning = await anext(quick)
        await anext(slow)
        await front.generate("abc", greedy(3))
        await read_until(quick, lambda page: "tree" in page["events"][0], beginning)
        part = read(await anext(slow))
        assert part["events"][0]["mode"] == "START"
        assert part["requests"] == [], "what has ended is in the recording before"
        for stream in (quick, slow):
            await stream.aclose()

    with_feed(test)


def test_a_failure_ends_the_feed_but_no_request_and_whoever_comes_back_begins_anew(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(feed: Feed, front: AsyncEngine, _: Any) -> None:
        stream = feed.stream()
        with caplog.at_level(logging.ERROR), monkeypatch.context() as patch:
            patch.setattr(feeds.Recording, "take", lambda self: 1 / 0)
            assert await anext(stream) == b"event: end\ndata: {}\n\n"
        assert "the live page's feed failed" in caplog.text
        assert (await front.generate("abc", greedy(2))).text == "de"
        assert read(await anext(feed.stream()))["events"][0]["mode"] == "START"

    with_feed(test)


# --- the page's addresses, over real connections: what is open to everybody, and what needs a key ----------------------

KEY = {"authorization": "Bearer a-key"}


def serving(**settings: Any) -> Any:
    engine = make_engine(slots=512)
    return running(patient_app(engine, **settings))


@pytest.fixture(scope="module")
def locked() -> Iterator[Running]:
    with serving(api_keys=["a-key"]) as up:
        yield up


@pytest.fixture(scope="module")
def shown() -> Iterator[Running]:
    with serving(show_prompts=True) as up:
        yield up


def first_message(up: Running, headers: dict[str, str] | None = None) -> dict[str, Any]:
    with httpx.stream("GET", f"{up.url}/live/events", headers=headers, timeout=HANG_S) as response:
        assert response.status_code == 200
        line = next(line for line in response.iter_lines() if line.startswith("data: "))
    return json.loads(line.removeprefix("data: "))


def complete(up: Running, prompt: str, **more: Any) -> None:
    body = {"model": up.service.base_name, "prompt": prompt, "max_tokens": 4, "temperature": 0}
    assert up.post("/v1/completions", body, **more).status_code == 200


@pytest.mark.parametrize("path", ["/", *(f"/static/{name}" for name in FILES)])
def test_the_pages_own_files_need_no_key_and_may_load_nothing_from_elsewhere(locked: Running, path: str) -> None:
    response = locked.get(path)
    assert response.status_code == 200
    assert response.headers["content-security-policy"] == f"{POLICY}; frame-ancestors 'none'"
    assert POLICY.startswith("default-src 'self';")
    assert response.headers["x-content-type-options"] == "nosniff"
    for elsewhere in ("http:", "https:", "//cdn", "@import", "unsafe-inline", " style="):
        text = response.text.replace("http://www.w3.org/2000/svg", "")
        assert elsewhere not in text.replace("//www", "") or path.endswith(LIBRARY)


@pytest.mark.parametrize(
    "path", ["/static/page.htm", "/static/routes.py", "/static/..%2froutes.py", "/static/player.js"]
)
def test_other_files_are_not_served(locked: Running, path: str) -> None:
    response = locked.get(path, headers=KEY)
    assert response.status_code == 404
    assert response.json()["error"]["type"] == "not_found_error"


def test_what_the_engine_does_needs_the_key(locked: Running) -> None:
    assert locked.get("/live/events").status_code == 401
    assert locked.get("/live/events?key=a-key&api_key=a-key").status_code == 401, "never in the address"


def test_the_tree_is_shown_and_what_was_written_only_with_show_prompts(locked: Running, shown: Running) -> None:
    for up, headers, tokens in ((locked, KEY, [0] * 9), (shown, None, [*range(97, 106)])):
        complete(up, "abcdef", headers=headers)
        message = first_message(up, headers)
        assert message["engine"]["max_total_tokens"] == 512
        assert (message["about"]["show_prompts"], message["about"]["has_chat_template"]) == (up is shown, False)
        (event,) = message["events"]
        assert [operation[3] for operation in event["tree"]] == [tokens]
        up.service.core.check_integrity()


def test_a_server_ends_while_somebody_watches() -> None:
    with serving() as up, httpx.stream("GET", f"{up.url}/live/events", timeout=HANG_S) as response:
        lines = response.iter_lines()
        assert next(lines) == "event: news"
        up.end()
        assert "event: end" in list(lines)
    assert up.service.engine.is_closed

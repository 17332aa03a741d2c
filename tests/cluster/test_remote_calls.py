"""Calls of a cluster without Ray: the replicas are engines in this process, and fail when a test says so."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from nanoinfer import LLM, SamplingParams
from nanoinfer.async_llm import AsyncEngine
from nanoinfer.cluster.serve import remote_call
from nanoinfer.cluster.serve.protocol import Accepted, Answer, Call, Ended, News, Refused, answer_call
from nanoinfer.cluster.serve.remote_call import RemoteCall
from nanoinfer.engine.async_stream import AsyncStream, Delivery
from nanoinfer.errors import EngineClosedError, InvalidRequestError, QueueFullError, ReplicaLostError, StepFailedError
from nanoinfer.outputs import FinishReason, RequestOutput, StreamPiece
from nanoinfer.requests.request import Request
from tests.helpers.engines import Clock
from tests.helpers.waiting import HANG_S, until_async

PROMPT = [1, 5, 9, 12]
Spoil = Callable[[Call, int, Answer], Answer | None]  # an answer of the attempt with this number; None: it is lost


class Answers:
    """What a replica answers, until something goes wrong."""

    def __init__(self, answers: AsyncIterator[Answer], spoil: Callable[[Answer], Answer | None]):
        self._answers, self._spoil, self.cancelled = answers, spoil, False
        self.tokens = 0  # that have come

    def __aiter__(self) -> "Answers":
        return self

    async def __anext__(self) -> Answer:
        answer = self._spoil(await anext(self._answers))
        if answer is None:
            raise ConnectionError("the actor died")
        if isinstance(answer, News):
            self.tokens += sum(len(piece.token_ids) for piece in answer.pieces)
        return answer

    def cancel(self) -> None:
        self.cancelled = True


class FakeReplicas:
    """One engine plays all replicas, replica 0, 1, 2 ... one after the other. The first one may be `silent`."""

    def __init__(self, engine: AsyncEngine, spoil: Spoil, silent: bool):
        self._engine, self._spoil, self._silent = engine, spoil, silent
        self.fleet = self  # which is told of first tokens and ends
        self.calls: list[Call] = []
        self.answers: list[Answers] = []
        self.notes: list[tuple[Any, ...]] = []

    def generate(self, call: Call) -> Answers:
        number = len(self.calls)
        self.calls.append(call)
        answers = answer_call(self._engine, call, f"replica {number}") if number or not self._silent else silence()
        self.answers.append(Answers(answers, lambda answer: self._spoil(call, number, answer)))
        return self.answers[-1]

    def note_first_token(self, call_id: str, cached_tokens: int) -> None:
        self.notes.append(("first token", call_id))

    def note_end(self, call_id: str, output_tokens: int | None = None) -> None:
        self.notes.append(("end", call_id, output_tokens))


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("story", max_total_tokens=2048, max_running_requests=8)


Called = tuple[list[StreamPiece], RequestOutput, FakeReplicas]


async def silence() -> AsyncIterator[Answer]:
    await asyncio.Event().wait()
    yield Accepted("never")


async def called(request: Request, spoil: Spoil, most_moves: int = 4, silent: bool = False) -> Called:
    """Bring a request to its end; the error that it ends with is raised."""
    async with AsyncEngine(LLM("story", max_total_tokens=2048, max_running_requests=8)) as engine:
        replicas = FakeReplicas(engine, spoil, silent)
        delivery = Delivery(asyncio.get_running_loop())
        seconds = 0.05 if silent else HANG_S
        call = RemoteCall(7, request, "ingress", replicas, delivery, (seconds, seconds, most_moves))
        task = asyncio.create_task(call.run())
        if silent:
            await until_async(lambda: replicas.calls, "the first replica's call")
            call._silence_s = call._replica_timeout_s = HANG_S  # the others may take their time
        await call.accepted
        stream = AsyncStream(delivery, 7, lambda delivery, keep: task.cancel())
        pieces = [piece async for piece in stream]
        await task
        assert all(answers.cancelled for answers in replicas.answers)
        await engine.check_integrity()
        return pieces, stream.final, replicas


def alone(llm: LLM, request: Request) -> RequestOutput:
    return llm.generate([request.prompt], request.params, use_tqdm=False)[0]


def same(pieces: list[StreamPiece], output: RequestOutput, wanted: RequestOutput) -> None:
    """Pieces and output are those of `wanted`, token for token."""
    for i, completion in enumerate(wanted.outputs):
        own = [piece for piece in pieces if piece.index == i]
        assert [token for piece in own for token in piece.token_ids] == completion.token_ids
        assert "".join(piece.text for piece in own) == completion.text == output.outputs[i].text
        assert [piece.finish_reason for piece in own if piece.finish_reason] == [completion.finish_reason]
        assert output.outputs[i].token_ids == completion.token_ids
        assert output.outputs[i].stop_reason == completion.stop_reason
        assert (output.outputs[i].logprobs is None) == (completion.logprobs is None)
        assert len(output.outputs[i].logprobs or ()) == len(completion.logprobs or ())


def lose_after(*counts: int, cut: int | None = None) -> Spoil:
    """The attempt with number i is lost once it has brought counts[i] tokens; later ones are not.

    An engine that is far ahead of its reader may have brought all of them by then. With `cut`, an attempt that is lost
    brings so many tokens of each completion, without regard to its text, and no end.
    """
    seen: Counter[int] = Counter()
    brought: Counter[tuple[int, int]] = Counter()

    def shortened(number: int, piece: StreamPiece) -> StreamPiece:
        room = max((cut or 0) - brought[number, piece.index], 0)
        brought[number, piece.index] += len(piece.token_ids)
        return replace(piece, token_ids=piece.token_ids[:room], finish_reason=None)

    def spoil(call: Call, number: int, answer: Answer) -> Answer | None:
        if number < len(counts) and isinstance(answer, News):
            if seen[number] >= counts[number]:
                return None
            if cut is not None:
                answer = News([shortened(number, piece) for piece in answer.pieces])
            seen[number] += sum(len(piece.token_ids) for piece in answer.pieces)
        return answer

    return spoil


PARAMS = [
    SamplingParams(max_new_tokens=20, temperature=0),
    SamplingParams(max_new_tokens=20, seed=3, n=3),
    SamplingParams(max_new_tokens=20, seed=3, logprobs=2, frequency_penalty=1.0),
    SamplingParams(max_new_tokens=20, seed=8, prompt_logprobs=True),
    SamplingParams(max_new_tokens=20, seed=8, n=2, prompt_logprobs=True, prompt_top_logprobs=2),
    SamplingParams(max_new_tokens=30, seed=5, stop=["the", " was a"]),
]


@pytest.mark.parametrize("params", PARAMS)
@pytest.mark.parametrize("counts", [(0,), (1,), (5, 0, 3), (19,)])
async def test_a_call_that_moves_gives_what_one_engine_gives(
    llm: LLM, params: SamplingParams, counts: tuple[int, ...]
) -> None:
    request = Request(PROMPT, params)
    pieces, output, replicas = await called(request, lose_after(*counts))
    wanted = alone(llm, request)
    same(pieces, output, wanted)
    assert output.prompt_logprobs == wanted.prompt_logprobs
    assert output.prompt_top_logprobs == wanted.prompt_top_logprobs
    told = [name for name, *_ in replicas.notes if name == "first token"]
    assert len(told) == sum(answers.tokens > 0 for answers in replicas.answers), "by each replica that has computed it"
    assert ("end", "ingress-7", sum(len(each.token_ids) for each in wanted.outputs)) in replicas.notes
    assert len(replicas.calls) <= len(counts) + 1
    assert all(f"replica {i}" in replicas.calls[-1].avoid for i in range(len(replicas.calls) - 1))


async def test_what_was_sent_is_not_computed_again(llm: LLM) -> None:
    request = Request(PROMPT, SamplingParams(max_new_tokens=20, seed=3, n=2))
    _, _, replicas = await called(request, lose_after(8, cut=4))
    first, second = replicas.calls
    assert [len(each.output_ids) for each in first.requests] == [0, 0]
    assert sum(len(each.output_ids) for each in second.requests) >= 8
    assert {each.params.n for each in second.requests} == {1}


async def test_an_engine_that_ends_aborts_nothing(llm: LLM) -> None:
    """Its last pieces say `abort`; nobody has asked for that, so the client never sees them."""

    def spoil(call: Call, number: int, answer: Answer) -> Answer | None:
        if number or not isinstance(answer, News) or not answer.pieces:
            return answer
        (piece,) = answer.pieces
        cut = replace(piece, token_ids=[], text="held back", finish_reason=FinishReason.ABORT)
        return News([cut], [Ended(0, 0, 0)])

    request = Request(PROMPT, SamplingParams(max_new_tokens=9, seed=1))
    pieces, output, replicas = await called(request, spoil)
    same(pieces, output, alone(llm, request))
    assert len(replicas.calls) == 2


@pytest.mark.parametrize("error", [QueueFullError("256 requests wait"), EngineClosedError("shut down")])
async def test_a_replica_that_refuses_is_avoided(llm: LLM, error: Exception) -> None:
    def spoil(call: Call, number: int, answer: Answer) -> Answer | None:
        return Refused("replica 0", error) if number == 0 else answer

    request = Request(PROMPT, SamplingParams(max_new_tokens=5, temperature=0))
    pieces, output, replicas = await called(request, spoil)
    same(pieces, output, alone(llm, request))
    assert replicas.calls[1].avoid == {"replica 0"}


async def test_a_full_cluster_refuses(llm: LLM) -> None:
    def spoil(call: Call, number: int, answer: Answer) -> Answer | None:
        return Refused("the only one", QueueFullError("256 requests wait"))

    with pytest.raises(QueueFullError, match="256 requests wait"):
        await called(Request(PROMPT), spoil)


async def test_a_request_that_cannot_be_served_is_refused_once(llm: LLM) -> None:
    request = Request(PROMPT, SamplingParams(max_new_tokens=5, seed=1, regex="(("))
    with pytest.raises(InvalidRequestError, match="regex"):
        await called(request, lambda call, number, answer: answer)


async def test_a_step_that_fails_ends_the_request_and_is_not_tried_elsewhere(llm: LLM) -> None:
    calls: list[Call] = []

    def spoil(call: Call, number: int, answer: Answer) -> Answer | None:
        calls.append(call)
        if isinstance(answer, News) and answer.pieces:
            cut = replace(answer.pieces[0], finish_reason=FinishReason.ABORT)
            return News([cut], [Ended(0, 0, 0, ArithmeticError("no"))])
        return answer

    with pytest.raises(StepFailedError, match="ArithmeticError: no"):
        await called(Request(PROMPT, SamplingParams(max_new_tokens=9, seed=1)), spoil)
    assert len({id(call) for call in calls}) == 1


async def test_a_request_that_is_lost_again_and_again_ends_with_a_sentence(llm: LLM) -> None:
    request = Request(PROMPT, SamplingParams(max_new_tokens=9, seed=1))
    with pytest.raises(ReplicaLostError, match="was lost 3 times, at last because replica 2: ConnectionError"):
        await called(request, lose_after(*[0] * 9), most_moves=2)


async def test_a_replica_that_says_nothing_has_lost_its_calls(llm: LLM) -> None:
    request = Request(PROMPT, SamplingParams(max_new_tokens=5, temperature=0))
    pieces, output, replicas = await called(request, lambda call, number, answer: answer, silent=True)
    same(pieces, output, alone(llm, request))
    assert len(replicas.calls) == 2


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """What calls take for the time."""
    clock = Clock()
    monkeypatch.setattr(remote_call, "time", SimpleNamespace(monotonic=clock))
    return clock


async def test_a_deadline_counts_from_the_first_attempt(clock: Clock) -> None:
    lose = lose_after(3, 0, cut=3)

    def spoil(call: Call, number: int, answer: Answer) -> Answer | None:
        found = lose(call, number, answer)
        if found is None:
            clock.now += (990, 20)[number]
        return found

    request = Request(PROMPT, SamplingParams(max_new_tokens=9, seed=1, ignore_eos=True), timeout_s=1000)
    pieces, output, replicas = await called(request, spoil)
    assert [call.requests[0].timeout_s for call in replicas.calls] == [1000, 10], "and the third would come too late"
    assert output.finish_reason is FinishReason.TIMEOUT
    assert pieces[-1].finish_reason is FinishReason.TIMEOUT


@pytest.mark.parametrize("params", [PARAMS[0], PARAMS[1], PARAMS[-1]])
async def test_a_replica_that_dies_after_the_last_token_has_given_all(llm: LLM, params: SamplingParams) -> None:
    """Only the word that it was the last is lost: nobody has to go on, and nobody could."""

    def spoil(call: Call, number: int, answer: Answer) -> Answer | None:
        is_end = isinstance(answer, News) and answer.ends and not answer.pieces
        return None if (is_end and len(answer.ends) == len(call.requests)) or (is_end and params.n > 1) else answer

    request = Request(PROMPT, params)
    pieces, output, replicas = await called(request, spoil)
    same(pieces, output, alone(llm, request))
    assert output.error is None
    assert len(replicas.calls) == 1 if params.n == 1 else len(replicas.calls) <= 3

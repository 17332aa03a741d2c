"""Sessions (seed 004) in hands that do what they should not, and the settings that the seed has."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nanoinfer import LLM
from nanoinfer.sessions.inference import InferenceEngine, InferenceSession, KVCache
from nanoinfer.sessions.offline_scheduler import OfflineScheduler

PROMPT = [5, 9, 200, 31, 7]
GREEDY: dict[str, Any] = {"temperature": 0.0, "stop_on_eos": False}


@pytest.fixture(scope="module")
def engine(checkpoint: Callable[..., Path]) -> InferenceEngine:
    return InferenceEngine(checkpoint("llama"))


@pytest.fixture
def session(engine: InferenceEngine) -> InferenceSession:
    session = InferenceSession(engine, 6, **GREEDY)
    session.prefill(PROMPT)
    return session


def rest(session: InferenceSession) -> list[int]:
    while not session.finished:
        session.step_once()
    return session.generated_ids


# --- one pass, one row -------------------------------------------------------------------------------------------


def test_a_row_taken_twice_is_refused(engine: InferenceEngine, session: InferenceSession) -> None:
    expected = engine.generate(PROMPT, 6, **GREEDY)
    logits = engine.decode_step_sessions([session])
    session.apply_batch_logits(logits)
    with pytest.raises(ValueError, match="token 6, the newest, has no K/V yet; each decode_step_sessions"):
        session.apply_batch_logits(logits)
    assert session.generated_ids == expected[:2]
    assert rest(session) == expected


def test_a_row_before_any_pass_is_refused(engine: InferenceEngine, session: InferenceSession) -> None:
    logits = torch.zeros(engine.model.config.vocab_size)
    with pytest.raises(ValueError, match="token 5, the newest"):
        session.apply_batch_logits(logits)
    with pytest.raises(ValueError, match="has not been prefilled"):
        InferenceSession(engine).apply_batch_logits(logits)
    assert rest(session) == engine.generate(PROMPT, 6, **GREEDY)


def test_a_released_session_takes_no_rows(engine: InferenceEngine, session: InferenceSession) -> None:
    logits = engine.decode_step_sessions([session])
    session.release()
    with pytest.raises(ValueError, match="the newest, has no K/V"):
        session.apply_batch_logits(logits)
    assert session.step_count == 1


def test_without_kv_rows_are_the_callers_business(engine: InferenceEngine) -> None:
    session = InferenceSession(engine, 4, **GREEDY)
    session.prefill(PROMPT, keep_kv=False)
    while not session.finished:
        logits, _ = engine.extend(session.req.token_ids[: session.req.num_tokens].tolist(), keep=False)
        session.apply_batch_logits(logits)
    assert session.generated_ids == engine.generate(PROMPT, 4, **GREEDY)


# --- other types than expected -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda row: row[0].tolist(), "last_logits: must be a tensor, got list"),
        (lambda row: row.numpy(), "last_logits: must be a tensor, got ndarray"),
        (lambda row: row.long(), "last_logits: dtype torch.int64, must be floating point"),
        (lambda row: row > 0, "last_logits: dtype torch.bool"),
        (lambda row: row.to(torch.complex64), "last_logits: dtype torch.complex64"),
    ],
)
def test_logits_that_are_no_floating_point_tensor_are_refused(
    change: Callable[[torch.Tensor], Any], message: str, engine: InferenceEngine, session: InferenceSession
) -> None:
    logits = engine.decode_step_sessions([session])
    with pytest.raises(ValueError, match=message):
        session.apply_batch_logits(change(logits))
    assert session.step_count == 1
    session.apply_batch_logits(logits)
    assert rest(session) == engine.generate(PROMPT, 6, **GREEDY)


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.8, "seed": 3}])
def test_tensors_with_a_gradient_work(settings: dict[str, Any], engine: InferenceEngine) -> None:
    session = InferenceSession(engine, 6, **{**GREEDY, **settings})
    session.prefill(PROMPT)
    while not session.finished:
        session.kv_cache = [(keys.clone().requires_grad_(), values) for keys, values in session.kv_cache]
        logits = engine.decode_step_sessions([session])
        assert not any(tensor.requires_grad for layer in session.kv_cache for tensor in layer)
        session.apply_batch_logits(logits.clone().requires_grad_())
    assert session.generated_ids == engine.generate(PROMPT, 6, **{**GREEDY, **settings})


def test_a_pass_over_what_is_no_list_of_sessions_is_refused(engine: InferenceEngine, session: InferenceSession) -> None:
    before = replace(engine.account)
    wrong: list[tuple[Any, str]] = [
        (session, "sessions: must be a list of InferenceSessions, got InferenceSession"),
        ({session}, "sessions: must be a list of InferenceSessions, got set"),
        ((each for each in [session]), "sessions: must be a list of InferenceSessions, got generator"),
        ("ab", "sessions: must be a list of InferenceSessions, got str"),
        (None, "sessions: must be a list of InferenceSessions, got NoneType"),
        ([session, "b"], r"sessions\[1\]: must be an InferenceSession, got str"),
        ([session, 0], r"sessions\[1\]: must be an InferenceSession, got int"),
    ]
    for sessions, message in wrong:
        with pytest.raises(ValueError, match=message):
            engine.decode_step_sessions(sessions)
    assert engine.account == before


def test_extend_takes_lists_and_refuses_what_the_model_cannot_compute(engine: InferenceEngine) -> None:
    expected, _ = engine.extend(np.array(PROMPT))
    for token_ids in (PROMPT, tuple(PROMPT), torch.tensor(PROMPT), np.array(PROMPT, dtype=np.int32)):
        torch.testing.assert_close(engine.extend(token_ids)[0], expected)  # type: ignore[arg-type]
    before = replace(engine.account)
    wrong: list[tuple[Any, str]] = [
        ([5, 320], "token_ids: token id 320: must be in 0..319"),
        ([5, -1], "token_ids: token id -1"),
        ([], "token_ids: is empty"),
        ([[5, 9]], "token_ids: must be"),
        ([1] * 257, "257"),
    ]
    for token_ids, message in wrong:
        with pytest.raises(ValueError, match=message):
            engine.extend(token_ids)
    assert engine.account == before


# --- K/V that was changed ----------------------------------------------------------------------------------------


def changed(kv_cache: KVCache, layer: int, change: Callable[[torch.Tensor], Any]) -> list[Any]:
    """A copy in which V of one layer is another."""
    return [(keys, change(values) if i == layer else values) for i, (keys, values) in enumerate(kv_cache)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda kv: kv[:2], "kv_cache: 2, must be a list of 3"),
        (lambda kv: None, "kv_cache: NoneType, must be a list of 3"),
        (lambda kv: [*kv[:2], kv[2][0]], r"kv_cache\[2\]: must be a pair"),
        (lambda kv: changed(kv, 1, torch.Tensor.tolist), r"kv_cache\[1\]: must be a pair of tensors"),
        (lambda kv: changed(kv, 1, lambda v: v[0]), r"kv_cache\[1\] V: shape \[2, 5, 16\]"),
        (
            lambda kv: changed(kv, 1, lambda v: v[:, :1]),
            r"kv_cache\[1\] V: shape \[1, 1, 5, 16\], must be \[1, 2, 5, 16\]",
        ),
        (lambda kv: changed(kv, 1, lambda v: v[..., :8]), r"kv_cache\[1\] V: shape \[1, 2, 5, 8\]"),
        (lambda kv: changed(kv, 1, lambda v: v.expand(2, -1, -1, -1)), r"kv_cache\[1\] V: shape \[2, 2, 5, 16\]"),
        (lambda kv: changed(kv, 2, lambda v: v[:, :, :4]), r"kv_cache\[2\] V: shape \[1, 2, 4, 16\]"),
        (lambda kv: changed(kv, 2, lambda v: torch.cat((v, v), 2)), r"kv_cache\[2\] V: shape \[1, 2, 10, 16\]"),
        (lambda kv: changed(kv, 0, lambda v: torch.cat((v, v[:, :, :1]), 2)), r"V: shape \[1, 2, 6, 16\]"),
        (lambda kv: changed(kv, 0, torch.Tensor.double), r"kv_cache\[0\] V: torch.float64 on cpu"),
        (lambda kv: changed(kv, 0, lambda v: v.to("meta")), r"kv_cache\[0\] V: torch.float32 on meta"),
        (
            lambda kv: [tuple(t[:, :, 1:] for t in pair) for pair in kv],
            r"\[1, 2, 4, 16\], must be \[1, 2, 5 or 6, 16\]",
        ),
    ],
)
def test_kv_that_does_not_fit_is_named_and_nothing_changes(
    change: Callable[[KVCache], Any], message: str, engine: InferenceEngine, session: InferenceSession
) -> None:
    other = InferenceSession(engine, 6, **GREEDY)
    other.prefill([3, 4])
    kv_cache, before = session.kv_cache, replace(engine.account)
    session.kv_cache = change(kv_cache)
    with pytest.raises(ValueError, match=rf"sessions\[1\]: .*{message}"):
        engine.decode_step_sessions([other, session])
    with pytest.raises(ValueError, match=f"session: .*{message}"):
        session.apply_batch_logits(torch.zeros(engine.model.config.vocab_size))
    assert (engine.account, other.kv_len, session.step_count) == (before, 2, 1)
    session.kv_cache = kv_cache
    assert rest(session) == engine.generate(PROMPT, 6, **GREEDY)


def test_kv_with_other_strides_is_the_same_kv(engine: InferenceEngine, session: InferenceSession) -> None:
    session.kv_cache = [
        tuple(tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in pair)  # type: ignore[misc]
        for pair in session.kv_cache
    ]
    assert rest(session) == engine.generate(PROMPT, 6, **GREEDY)


# --- settings ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_new_tokens", 9),
        ("temperature", 1.0),
        ("top_k", 3),
        ("top_p", 0.5),
        ("stop_on_eos", True),
        ("seed", 1),
        ("do_sample", False),
    ],
)
def test_settings_are_fixed_by_the_prefill(
    name: str, value: Any, engine: InferenceEngine, session: InferenceSession
) -> None:
    before = getattr(session, name)
    with pytest.raises(ValueError, match=rf"{name}={value}: settings are fixed by prefill"):
        setattr(session, name, value)
    assert getattr(session, name) == before
    assert rest(session) == engine.generate(PROMPT, 6, **GREEDY)


@pytest.mark.parametrize("name", ["max_tokens", "max_new_token", "ignore_eos", "n"])
def test_a_setting_that_there_is_not_is_refused(name: str, engine: InferenceEngine) -> None:
    session = InferenceSession(engine, 3, **GREEDY)
    with pytest.raises(ValueError, match=rf"^{name}=3: a session has no {name}; its settings are max_new_tokens, "):
        setattr(session, name, 3)
    assert not hasattr(session, name)


def test_what_a_subclass_adds_may_be_assigned(engine: InferenceEngine) -> None:
    class Named(InferenceSession):
        name = ""

    session = Named(engine)
    session.name, session._note = "a", "b"  # type: ignore[attr-defined]
    assert (session.name, session._note) == ("a", "b")  # type: ignore[attr-defined]


def test_step_count_counts_the_sampled_tokens(engine: InferenceEngine) -> None:
    session = InferenceSession(engine, 3, **GREEDY)
    counts = [session.step_count]
    session.prefill(PROMPT)
    counts.append(session.step_count)
    while not session.finished:
        session.step_once()
        counts.append(session.step_count)
    session.step_once()
    assert [*counts, session.step_count] == [0, 1, 2, 3, 3]


@pytest.mark.parametrize("unlimited", [0, -1, np.int64(0)])
def test_without_a_limit_a_session_goes_on_to_the_end_of_the_context(
    unlimited: int, checkpoint: Callable[..., Path]
) -> None:
    engine = InferenceEngine(LLM(checkpoint("llama"), max_context_len=24, max_total_tokens=64).model)
    assert engine.generate(PROMPT, unlimited, **GREEDY) == engine.generate(PROMPT, 24 - len(PROMPT), **GREEDY)
    assert len(engine.generate([1] * 23, unlimited, **GREEDY)) == 1
    with pytest.raises(ValueError, match="max_context_len=24"):
        engine.generate([1] * 24, unlimited, **GREEDY)


def test_without_a_limit_an_end_token_ends_a_session(engine: InferenceEngine) -> None:
    free = engine.generate(PROMPT, 12, **GREEDY)
    end = free[4]
    config = replace(engine.model.config, eos_token_ids=(end,))
    stopping = InferenceEngine(replace(engine.model, config=config))
    assert stopping.generate(PROMPT, 0, temperature=0.0) == free[: free.index(end) + 1]


def test_without_sampling_a_session_is_greedy_at_any_temperature(engine: InferenceEngine) -> None:
    expected = engine.generate(PROMPT, 8, **GREEDY)
    settings: dict[str, Any] = {"temperature": 5.0, "top_k": 50, "seed": 1, "stop_on_eos": False}
    assert engine.generate(PROMPT, 8, do_sample=False, **settings) == expected
    assert engine.generate(PROMPT, 8, do_sample=True, **settings) != expected
    scheduler = OfflineScheduler(engine)
    scheduler.add_request(PROMPT, 8, do_sample=False, **settings)
    while scheduler.has_unfinished():
        scheduler.step()
    assert scheduler.sessions[0].generated_ids == expected

"""OfflineScheduler: the first scheduler of the series, which runs sessions side by side."""

from itertools import count
from typing import Any

from nanoinfer.requests.request import Prompt
from nanoinfer.sessions.inference import InferenceEngine, InferenceSession


class OfflineScheduler:
    """Runs sessions side by side. A step is one decode pass for all of them (`batched`), or one pass for each.

    This already is continuous batching: a request may join between any two steps. A request that has ended is in no more
    passes and holds no K/V; its tokens stay in `sessions`, where `run` finds them.
    """

    def __init__(self, engine: InferenceEngine, batched: bool = True):
        self.engine, self.batched = engine, batched
        self.sessions: dict[int, InferenceSession] = {}
        self._active: list[int] = []
        self._ids = count()

    def add_request(self, prompt: Prompt, max_new_tokens: int = 128, **settings: Any) -> int:
        """Prefill a prompt right away and return the request's id. `settings` and errors as in InferenceSession and its
        `prefill`; when it raises, nothing was added."""
        session = InferenceSession(self.engine, max_new_tokens, **settings)
        session.prefill(prompt)
        request_id = next(self._ids)
        self.sessions[request_id] = session
        if not session.finished:
            self._active.append(request_id)
        return request_id

    @property
    def kv_bytes(self) -> int:
        """How many bytes of K/V its sessions hold now."""
        return sum(self.sessions[request_id].kv_bytes for request_id in self._active)

    def has_unfinished(self) -> bool:
        """True while `step` has something to do."""
        self._active = [request_id for request_id in self._active if not self.sessions[request_id].finished]
        return bool(self._active)

    def step(self) -> dict[int, int]:
        """Sample one more token for every unfinished request: {request id: token id}; empty when there is none."""
        if not self.has_unfinished():
            return {}
        sessions = [self.sessions[request_id] for request_id in self._active]
        if self.batched:
            rows = self.engine.decode_step_sessions(sessions).split(1)
            tokens = [session.apply_batch_logits(row) for session, row in zip(sessions, rows, strict=True)]
        else:
            tokens = [session.step_once() for session in sessions]
        return {rid: token for rid, token in zip(self._active, tokens, strict=True) if token is not None}

    def run(self) -> dict[int, str]:
        """Step until all requests have ended. Returns {request id: prompt and output as text} for every request so far.

        ValueError, before the first step, when the model has no tokenizer files.
        """
        if self.sessions and self.engine.tokenizer is None:
            raise ValueError("run: this model has no tokenizer files; call step, and read each session's generated_ids")
        while self.has_unfinished():
            self.step()
        return {request_id: session.decode_text() for request_id, session in self.sessions.items()}

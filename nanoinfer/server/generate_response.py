"""What /generate answers."""

import time
from typing import Any

from nanoinfer.requests.outputs import RequestOutput
from nanoinfer.requests.stream_pieces import StreamPiece
from nanoinfer.server.errors import ApiError
from nanoinfer.server.generation import Generation, Wish
from nanoinfer.server.logprobs import LEAST, Entry
from nanoinfer.server.service import Service
from nanoinfer.server.shape import DONE, Shape, dumps, reason_in


class GenerateShape(Shape):
    """One object per choice: alone, or in a list where several were asked for. Events have `index`, and all text so far."""

    def __init__(self, service: Service, wish: Wish, answer_id: str, is_list: bool, top_logprobs: int):
        super().__init__(answer_id, wish, service.token_names, include_usage=False)
        self._top, self._is_list = top_logprobs, is_list or wish.choices_per_prompt > 1
        self._started = time.perf_counter()
        self._so_far: dict[int, StreamPiece] = {}

    def choice_events(self, i: int, piece: StreamPiece) -> str:
        if not (piece.text or piece.token_ids or reason_in(piece)):
            return ""
        before = self._so_far.get(i)
        whole = self._so_far[i] = piece if before is None else before + piece
        shown = self._shown(
            whole.text, whole.token_ids, reason_in(whole), whole.stop_reason, whole.prompt_tokens, whole.cached_tokens,
            whole.logprobs,
        )  # fmt: skip
        return f"data: {dumps({'index': i, **shown} if self._is_list else shown)}\n\n"

    def last_events(self, generation: Generation, error: ApiError | None) -> str:
        return DONE if error is None else f"data: {dumps(error.content)}\n\n{DONE}"

    def whole(self, generation: Generation, outputs: list[RequestOutput]) -> Any:
        choices = [
            self.choice(0, output, k)
            for output in outputs
            for k in range(len(output.outputs))
            for _ in range(self.wish.copies)
        ]
        return choices if self._is_list else choices[0]

    def choice(self, i: int, output: RequestOutput, k: int) -> dict[str, Any]:
        one = output.outputs[k]
        return self._shown(
            one.text,
            one.token_ids,
            one.finish_reason,
            one.stop_reason,
            output.prompt_tokens,
            one.cached_tokens,
            one.logprobs,
        )

    def _shown(
        self,
        text: str,
        tokens: list[int],
        reason: str | None,
        stop_reason: int | str | None,
        prompt_tokens: int,
        cached_tokens: int,
        logprobs: list[Entry] | None,
    ) -> dict[str, Any]:
        meta: dict[str, Any] = {
            "id": self.answer_id,
            "finish_reason": _reason(reason, stop_reason, tokens),
            "prompt_tokens": prompt_tokens,
            "completion_tokens": len(tokens),
            "cached_tokens": cached_tokens,
            "e2e_latency": time.perf_counter() - self._started,
        }
        if logprobs is not None:
            meta["output_token_logprobs"] = [_triple(*next(iter(entry.items()))) for entry in logprobs]
            if self._top:
                meta["output_top_logprobs"] = [_likeliest(entry, self._top) for entry in logprobs]
        return {"text": text, "output_ids": tokens, "meta_info": meta}


def _reason(reason: str | None, stop_reason: int | str | None, tokens: list[int]) -> dict[str, Any] | None:
    """SGLang's form: {"type": "length", "length": 16} or {"type": "stop", "matched": what ended it}."""
    if reason is None:
        return None
    if reason == "length":
        return {"type": "length", "length": len(tokens)}
    return {"type": str(reason), "matched": tokens[-1] if stop_reason is None and tokens else stop_reason}


def _triple(token: int, logprob: float) -> tuple[float, int, None]:
    return max(logprob, LEAST), token, None


def _likeliest(entry: Entry, count: int) -> list[tuple[float, int, None]]:
    return [_triple(*each) for each in sorted(entry.items(), key=lambda item: -item[1])[:count]]

"""The first engines of the series: every session owns its K/V, and decodes alone or in one padded batch.

They have no tree, and no pools that outlive a pass: they are the baseline for engines that do. The model and the sampler
are the same. Every pass, even of a single session, builds a small pool of its own: a rectangle as wide as the longest
session. It copies the sessions' K/V into it, runs, and cuts the result up again. `KVAccount` counts what that costs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import count
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from nanoinfer.model.attention import select_attention_backend
from nanoinfer.model.attention.base import wanted_features
from nanoinfer.model.loader import LoadedModel, as_loaded_model
from nanoinfer.model.model_runner import ModelRunner
from nanoinfer.requests.req import Req
from nanoinfer.requests.request import Prompt
from nanoinfer.requests.request_builder import RequestBuilder
from nanoinfer.sampling.sampler import Sampler
from nanoinfer.sampling_params import SamplingParams

KVCache = list[tuple[torch.Tensor, torch.Tensor]]  # K and V of each layer, each [1, Hk, S, D]


@dataclass
class KVAccount:
    """What the passes of an InferenceEngine have cost since its start. The totals only grow. Bytes are K/V in all layers.

    - `forwards`, `tokens_computed`: how many passes the model made, and how many tokens went through them.
    - `bytes_copied`: between the sessions and the passes' rectangles, in both directions.
    - `decode_bytes_used`, `decode_bytes_padding`: bytes in decode passes' rectangles: sessions' tokens, and padding.

    The cost of one step is a difference: `before = dataclasses.replace(engine.account)`, step, `engine.account - before`.
    `InferenceSession.kv_bytes` and `OfflineScheduler.kv_bytes` say how much is held now.
    """

    forwards: int = 0
    tokens_computed: int = 0
    bytes_copied: int = 0
    decode_bytes_used: int = 0
    decode_bytes_padding: int = 0

    def __sub__(self, before: "KVAccount") -> "KVAccount":
        return KVAccount(*(getattr(self, field.name) - getattr(before, field.name) for field in fields(self)))


class InferenceEngine:
    """Runs a model over the K/V that sessions hold. `model`: as in `LLM`, or an `LLM`'s loaded model (`llm.model`).
    `attention_backend`: as in `LLM`."""

    def __init__(
        self,
        model: LoadedModel | str | Path,
        dtype: str | torch.dtype | None = None,
        device: str | torch.device | None = None,
        random_seed: int | None = None,
        attention_backend: str = "torch_native",
    ):
        self.model = as_loaded_model(model, dtype, device)
        where = (self.model.dtype, self.model.device)
        self.attention_backend = select_attention_backend(attention_backend, *where, wanted_features(self.model.model))
        self.tokenizer, self.account = self.model.tokenizer, KVAccount()
        self.sampler = Sampler(getattr(self.model, "kernels", None))
        self.builder = RequestBuilder(
            self.model.config.vocab_size, self.model.end_token_ids, self.tokenizer, random_seed
        )
        self.session_ids = count()

    @property
    def kv_bytes_per_token(self) -> int:
        return self.model.config.kv_bytes_per_token(self.model.dtype)

    def generate(self, prompt: Prompt, max_new_tokens: int = 128, use_cache: bool = True, **settings: Any) -> list[int]:
        """Serve one prompt to its end, and return the sampled tokens, including an end token.

        With `use_cache=False` nothing is kept between tokens: each token computes the whole sequence again. `settings`
        and errors as in InferenceSession and its `prefill`.
        """
        session = InferenceSession(self, max_new_tokens, **settings)
        session.prefill(prompt, keep_kv=use_cache)
        while not session.finished:
            if use_cache:
                session.step_once()
            else:
                logits, _ = self.extend(session.req.token_ids[: session.req.num_tokens], keep=False)
                session.apply_batch_logits(logits)
        return session.generated_ids

    def extend(self, token_ids: Sequence[int] | np.ndarray, keep: bool = True) -> tuple[torch.Tensor, KVCache]:
        """Compute a whole sequence, `token_ids` int64 [S]. Returns the logits [1, V] of its last token, and its K/V (empty
        unless `keep`). ValueError when it is empty, outside the vocabulary or longer than the context."""
        token_ids = self.builder.prompt_ids(token_ids, "token_ids")
        total = len(token_ids)
        runner = self._runner(1, total)
        logits, _ = runner.forward_extend(torch.from_numpy(token_ids), [0], [total], [0], range(total))
        self.account.forwards += 1
        self.account.tokens_computed += total
        return logits, self._cut(runner.token_to_kv_pool, [total], total)[0] if keep else []

    def decode_step_sessions(self, sessions: Sequence["InferenceSession"]) -> torch.Tensor:
        """Compute the newest token of every session in one pass, add its K/V to each `kv_cache`, and return logits [B, V].

        Then the caller gives each session its row (`apply_batch_logits`). Until then, the same pass can be made again. The
        sessions' K/V is padded to the longest, [B, longest + 1] tokens. Without sessions there is no pass: logits [0, V].
        ValueError, with nothing changed, when a session is there twice, has finished, has no K/V or K/V that does not fit,
        or belongs to another model.
        """
        check_sessions(sessions, self.model)
        if not sessions:
            return torch.empty(0, self.model.config.vocab_size, dtype=self.model.dtype, device=self.model.device)
        past = [session.req.num_tokens - 1 for session in sessions]
        lens, width = [n + 1 for n in past], max(past) + 1
        runner = self._runner(len(sessions), width)
        self._fill(runner.token_to_kv_pool, [session.kv_cache for session in sessions], past, width)
        logits = runner.forward_decode(
            torch.tensor([int(session.req.token_ids[n]) for session, n in zip(sessions, past, strict=True)]),
            range(len(sessions)),
            lens,
            None,  # prefix_lens: in a decode pass it is always all tokens but one
            [row * width + n for row, n in enumerate(past)],
        )
        for session, kv_cache in zip(sessions, self._cut(runner.token_to_kv_pool, lens, width), strict=True):
            session.kv_cache = kv_cache
        account = self.account
        account.forwards += 1
        account.tokens_computed += len(sessions)
        account.decode_bytes_used += sum(lens) * self.kv_bytes_per_token
        account.decode_bytes_padding += (len(lens) * width - sum(lens)) * self.kv_bytes_per_token
        return logits

    def _runner(self, rows: int, width: int) -> ModelRunner:
        """A runner over pools of `rows` x `width` slots, row after row, which is how padded batches are in memory."""
        req_to_token_pool = ReqToTokenPool(rows, width)
        req_to_token_pool.req_to_token.copy_(torch.arange(rows * width).view(rows, width))
        token_to_kv_pool = self.model.new_kv_pool(rows * width)
        return ModelRunner(self.model.model, req_to_token_pool, token_to_kv_pool, self.attention_backend)

    def _fill(self, pool: TokenToKVPool, caches: Sequence[KVCache], lens: Sequence[int], width: int) -> None:
        for layer in range(self.model.config.num_hidden_layers):
            for row, (cache, length) in enumerate(zip(caches, lens, strict=True)):
                keys, values = (kv.detach()[0, :, :length].transpose(0, 1) for kv in cache[layer])  # [length, Hk, D]
                pool.set_kv_buffer(layer, slice(row * width, row * width + length), keys, values)
        self.account.bytes_copied += sum(lens) * self.kv_bytes_per_token

    def _cut(self, pool: TokenToKVPool, lens: Sequence[int], width: int) -> list[KVCache]:
        """Copy each row's K/V into a separate cache. Views would keep the whole rectangle in memory, with its padding."""
        caches: list[KVCache] = [[] for _ in lens]
        for layer in range(self.model.config.num_hidden_layers):
            for row, length in enumerate(lens):
                kv = pool.read(layer, slice(row * width, row * width + length))
                keys, values = (part.transpose(0, 1)[None].clone() for part in kv)  # [1, Hk, S, D]
                caches[row].append((keys, values))
        self.account.bytes_copied += sum(lens) * self.kv_bytes_per_token
        return caches


class InferenceSession:
    """One request that owns its K/V. `kv_cache`: K and V [1, Hk, S, D] per layer; empty before `prefill` and at the end.

    You give settings here, or assign them until `prefill` fixes them. `max_new_tokens` (0 or less: as many as the context
    has room for), `temperature` (0 is greedy), `top_k` (-1: off), `top_p` and `seed` are as in SamplingParams.
    `stop_on_eos`: any of the model's end tokens ends the session. `do_sample=False`: greedy, whatever the temperature.
    Assigning any other name is a ValueError, because it would have no effect.
    """

    SETTINGS = ("max_new_tokens", "temperature", "top_k", "top_p", "stop_on_eos", "seed", "do_sample")

    def __init__(
        self,
        engine: InferenceEngine,
        max_new_tokens: int = 128,
        temperature: float = 1.0,
        top_k: int = -1,
        top_p: float = 1.0,
        stop_on_eos: bool = True,
        seed: int | None = None,
        do_sample: bool = True,
    ):
        self._req: Req | None = None
        self._keeps_kv = True
        self.engine = engine
        self.kv_cache: KVCache = []
        self.max_new_tokens, self.temperature, self.top_k, self.top_p = max_new_tokens, temperature, top_k, top_p
        self.stop_on_eos, self.seed, self.do_sample = stop_on_eos, seed, do_sample
        self.params()  # so that wrong settings raise now, not in `prefill`

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.SETTINGS and self._req is not None:
            raise ValueError(f"{name}={value!r}: settings are fixed by prefill; make a new session to change them")
        known = name in (*self.SETTINGS, "engine", "kv_cache") or hasattr(type(self), name)
        if not known and not name.startswith("_"):
            raise ValueError(f"{name}={value!r}: a session has no {name}; its settings are {', '.join(self.SETTINGS)}")
        super().__setattr__(name, value)

    def params(self, prompt_len: int = 0) -> SamplingParams:
        """The settings as SamplingParams, for a prompt of `prompt_len` tokens. ValueError naming one out of range."""
        for name in ("stop_on_eos", "do_sample"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name}={getattr(self, name)!r}: must be True or False")
        limit = self.max_new_tokens
        if isinstance(limit, Integral) and not isinstance(limit, bool) and limit <= 0:
            limit = max(self.engine.model.max_context_len - prompt_len, 1)
        params = SamplingParams(
            max_new_tokens=limit,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            ignore_eos=not self.stop_on_eos,
            seed=self.seed,
        )
        return params if self.do_sample else replace(params, temperature=0.0)

    @property
    def req(self) -> Req:
        """The state of this session's request. ValueError before `prefill`."""
        if self._req is None:
            raise ValueError("session: has not been prefilled")
        return self._req

    @property
    def prefilled(self) -> bool:
        return self._req is not None

    @property
    def generated_ids(self) -> list[int]:
        """The tokens sampled so far, as a new list."""
        return self._req.output_ids if self._req is not None else []

    @property
    def step_count(self) -> int:
        """How many tokens have been sampled, including the one from the prefill."""
        return self._req.num_output_tokens if self._req is not None else 0

    @property
    def finished(self) -> bool:
        return self._req is not None and self._req.finished

    @property
    def kv_len(self) -> int:
        """For how many tokens the session holds K/V."""
        return self.kv_cache[0][0].shape[2] if self.kv_cache else 0

    @property
    def kv_bytes(self) -> int:
        """How many bytes of K/V the session holds."""
        return sum(tensor.nbytes for layer in self.kv_cache for tensor in layer)

    def prefill(self, prompt: Prompt, keep_kv: bool = True) -> int:
        """Compute the prompt (text or token ids), then sample and return the first token.

        `keep_kv=False` drops its K/V, for a caller that recomputes everything every time. InvalidRequestError when the
        prompt is empty, is neither text nor ids, is outside the vocabulary, or is too long for the model with
        `max_new_tokens`; ValueError when the session was prefilled before. When it raises, the session is unchanged.
        """
        if self.prefilled:
            raise ValueError("session: has been prefilled before; make a new one for another prompt")
        builder, context = self.engine.builder, self.engine.model.max_context_len
        prompt_ids = builder.prompt_ids(prompt)
        params = self.params(len(prompt_ids))
        builder.check_context(prompt_ids, params, context)
        (req,) = builder.build(next(self.engine.session_ids), prompt_ids, params)
        logits, kv_cache = self.engine.extend(prompt_ids, keep_kv)
        req.append(int(self.engine.sampler.sample(logits, [req])[0]))
        self.kv_cache = [] if req.finished else kv_cache
        self._keeps_kv, self._req = keep_kv, req
        return int(req.token_ids[req.prompt_len])

    def step_once(self) -> int | None:
        """Compute the newest token alone, then sample and return the next one; None when the session has finished."""
        if self.finished:
            return None
        return self.apply_batch_logits(self.engine.decode_step_sessions([self]))

    def apply_batch_logits(self, last_logits: torch.Tensor) -> int | None:
        """Sample the next token from this session's row of logits, [V] or [1, V]; None when the session has finished.

        A session that ends drops its K/V. ValueError when `last_logits` is not exactly one row, or when the newest token
        has not been through a pass, because the row would then be that of the token before. (If a session keeps no K/V,
        only the caller can know this.)
        """
        if self.finished:
            return None
        req, vocab_size = self.req, self.engine.model.config.vocab_size
        if last_logits.shape not in ((vocab_size,), (1, vocab_size)):
            raise ValueError(
                f"last_logits: shape {list(last_logits.shape)}, must be [{vocab_size}] or [1, {vocab_size}]"
            )
        if self._keeps_kv and self.kv_len < req.num_tokens:
            raise ValueError(
                f"last_logits: token {req.num_tokens - 1}, the newest, has no K/V yet; each decode_step_sessions gives a "
                "session one row, which it can take only once"
            )
        token_id = int(self.engine.sampler.sample(last_logits.detach().view(1, -1), [req])[0])
        req.append(token_id)
        if self.finished:
            self.release()
        return token_id

    def release(self) -> None:
        """Drop the K/V. An unfinished session cannot continue after that."""
        self.kv_cache = []

    def decode_text(self) -> str:
        """Prompt and output as text, without special tokens. ValueError when the model has no tokenizer files."""
        if self.engine.tokenizer is None:
            raise ValueError("decode_text: this model has no tokenizer files; read generated_ids")
        return self.engine.tokenizer.decode(self.req.token_ids[: self.req.num_tokens])


def check_sessions(sessions: Sequence[InferenceSession], model: LoadedModel) -> None:
    """ValueError unless they are different sessions of `model`, prefilled, unfinished and with their K/V."""
    for i, session in enumerate(sessions):
        if session.engine.model is not model:
            raise ValueError(f"sessions[{i}]: belongs to another model")
        if session.finished or not session.prefilled:
            raise ValueError(f"sessions[{i}]: has {'finished' if session.finished else 'not been prefilled'}")
        if session.kv_len < session.req.num_tokens - 1:
            raise ValueError(f"sessions[{i}]: has K/V of {session.kv_len} tokens, its K/V was released")
    if len(set(map(id, sessions))) < len(sessions):
        raise ValueError("sessions: the same session is there twice")

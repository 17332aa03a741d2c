"""Measures where the time of an engine's steps goes, by wrapping functions from the outside while a profile is taken.

Engine and model contain no clocks, except one in C++ for captured passes, which a profile switches on. `Profiler` replaces
methods of their classes by timed ones and later puts the originals back. When one wrapped function calls another, the time
counts only for the inner one. So the parts, including "other", add up to the step.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import wraps
from inspect import isfunction
from types import TracebackType
from typing import Any

import torch
from torch import nn
from tqdm.auto import tqdm

from nanoinfer.bench.peers.nanoinfer import Peer
from nanoinfer.bench.peers.worker import serve
from nanoinfer.bench.workloads import Job
from nanoinfer.engine.engine import Engine
from nanoinfer.kernels.program import Program
from nanoinfer.model.captured_passes import CapturedPass
from nanoinfer.model.forward_batch import ForwardBatch
from nanoinfer.model.input_metadata import InputMetadata
from nanoinfer.model.layers.logits_processor import LogitsOutput
from nanoinfer.model.model_runner import ModelRunner

OTHER = "other"  # the rest of the step: work outside all wrapped functions
FORWARD = "forward: other"  # the rest of the model's pass: residual sums, views, modules that are not listed below
# Last component of a module's name in the model → part of the pass; CLASSES: the end of its class's name → part.
MODULES = {
    "embed_tokens": "forward: embed",
    "qkv_proj": "forward: qkv",
    "q_proj": "forward: qkv",
    "k_proj": "forward: qkv",
    "v_proj": "forward: qkv",
    "o_proj": "forward: o",
    "mlp": "forward: mlp",
    "gate_up_proj": "forward: mlp",
    "gate_proj": "forward: mlp",
    "up_proj": "forward: mlp",
    "down_proj": "forward: mlp",
    "lm_head": "forward: lm_head",
}
CLASSES = {"Norm": "forward: norm", "MLP": "forward: mlp", "Embedding": "forward: embed"}
ROTARY = "forward: rotary"
# C++ function → part, for the calls of captured passes; the others belong to the module in which they are made.
FUNCTIONS = {
    "gather_rows": "forward: embed",
    "add_rms_norm": "forward: norm",
    "norm_heads": "forward: norm",
    "rotate": ROTARY,
    "store_rows": "forward: K/V store",
    "attention": "forward: attention",
}
WARM_UP = "warm up"


@dataclass
class StepKind:
    """All steps of one kind (`extend`, `decode`, `verify`): how many there are, and their seconds by part."""

    steps: int = 0
    seconds: float = 0.0
    parts: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))


class Profiler:
    """Times every step of `engine` inside a `with` block; `kinds` is the result. Only one may be active at a time."""

    def __init__(self, engine: Engine):
        self.engine = engine
        self.kinds: defaultdict[str, StepKind] = defaultdict(StepKind)
        self._undo: list[tuple[Any, str, Any]] = []
        self._inside: list[float] = []  # per open call: seconds spent in wrapped calls below it
        self._parts: defaultdict[str, float] = defaultdict(float)  # of the current step
        self._modes: list[str] = []  # of the current step's passes of the engine's model; a draft model's say nothing
        self._runs: list[tuple[Program, float]] = []  # of the current step: captured passes, and the seconds of each
        self._labels: dict[int, str] = {}  # id of a module → part
        self._programs: dict[Program, defaultdict[str, float]] = {}  # captured passes → seconds by kind of step

    def __enter__(self) -> "Profiler":
        runner = self.engine.model_runner
        self._wrap_step()
        for owner, name, part in (
            (type(self.engine.scheduler), "schedule", "schedule"),
            (type(self.engine.scheduler), "process_batch_result", "process"),
            (type(self.engine.sampler), "sample", "sample"),
            (type(self.engine.sampler), "logprobs", "sample"),
            (type(runner.token_to_kv_pool), "set_kv_buffer", "forward: K/V store"),
            (type(runner.attention_backend), "store", "forward: K/V store"),
            (type(runner.attention_backend), "init_forward", "metadata"),
        ):
            self._wrap(owner, name, part)
        for name in _methods(type(runner.attention_backend)):
            if name.startswith("forward"):
                self._wrap(type(runner.attention_backend), name, "forward: attention")
        self._wrap_metadata()
        self._wrap_forward()
        self._wrap_captured()
        if isinstance(runner.model, nn.Module):
            self._wrap_modules(runner.model)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self.engine.turns.visit():  # callers have their outputs before the step that made them ends
            self._finish()

    def _finish(self) -> None:
        """Put the originals back, and share out the time of captured passes."""
        for owner, name, original in reversed(self._undo):
            if original is None:
                delattr(owner, name)  # the original is inherited
            else:
                setattr(owner, name, original)
        self._undo.clear()
        self._labels.clear()
        for program, of_kinds in self._programs.items():
            whole = sum(of_kinds.values())
            for name, label, all_seconds in program.seconds():
                part = FUNCTIONS.get(name) or MODULES.get(label.rpartition(".")[2], FORWARD)
                for kind_of_step, spent in of_kinds.items():
                    seconds = all_seconds * spent / whole
                    self.kinds[kind_of_step].parts[part] += seconds
                    self.kinds[kind_of_step].parts[FORWARD] -= seconds  # the pass was timed as a whole
            program.measure(False)
        self._programs.clear()

    # --- what is wrapped -----------------------------------------------------------------------------------------

    def _wrap_step(self) -> None:
        """Wrap the outermost function. A step's kind is known only at its end, so its parts are collected until then."""
        original = type(self.engine).step

        @wraps(original)
        def step(engine: Engine, *args: Any, **kwargs: Any) -> Any:
            self._parts.clear()
            self._modes.clear()
            self._runs.clear()
            start = self._enter()
            try:
                return original(engine, *args, **kwargs)
            finally:
                seconds = self._leave(OTHER, start)
                name = "+".join(sorted(set(self._modes))) or "idle"
                for program, spent in self._runs:
                    self._programs[program][name] += spent
                kind = self.kinds[name]
                kind.steps, kind.seconds = kind.steps + 1, kind.seconds + seconds
                for part, spent in self._parts.items():
                    kind.parts[part] += spent

        self._replace(type(self.engine), "step", step)

    def _wrap_metadata(self) -> None:
        original = InputMetadata.of.__func__  # type: ignore[attr-defined]

        @wraps(original)
        def of(cls: type, *args: Any) -> Any:
            start = self._enter()
            try:
                return original(cls, *args)
            finally:
                self._leave("metadata", start)

        self._replace(InputMetadata, "of", classmethod(of))

    def _wrap_forward(self) -> None:
        """Note the kind of each pass of the engine's runner, not of a draft model's."""
        runner = self.engine.model_runner
        original = type(runner).forward_batch

        @wraps(original)
        def forward_batch(called: ModelRunner, batch: ForwardBatch) -> LogitsOutput:
            if called is runner:
                self._modes.append(batch.forward_mode.name.lower())
            return original(called, batch)

        self._replace(type(runner), "forward_batch", forward_batch)

    def _wrap_captured(self) -> None:
        """Time captured passes as a whole, and their calls in C++. The pass that records counts like one in Python."""
        original = CapturedPass.run

        @wraps(original)
        def run(captured: CapturedPass) -> Any:
            program = captured.program
            if program is not None and program not in self._programs:
                self._programs[program] = defaultdict(float)
                program.measure()
            start = self._enter()
            try:
                return original(captured)
            finally:
                seconds = self._leave(FORWARD, start)
                if program is not None:
                    self._runs.append((program, seconds))

        self._replace(CapturedPass, "run", run)

    def _wrap_modules(self, model: nn.Module) -> None:
        """Wrap the methods of the classes of all modules that have a part. The instance decides the part; what the model
        itself does is the rest."""
        self._labels[id(model)] = FORWARD
        for name, module in model.named_modules():
            last, kind = name.rpartition(".")[2], type(module).__name__
            part = MODULES.get(last) or next((part for end, part in CLASSES.items() if kind.endswith(end)), None)
            if part is not None:
                self._labels.setdefault(id(module), part)
        labelled = {type(module) for module in model.modules() if id(module) in self._labels}
        for cls in labelled:
            for name in _methods(cls):
                self._wrap(cls, name, None)
            if "forward" not in cls.__dict__:
                self._wrap(cls, "forward", None)
        for kernels in {type(module.kernels) for module in model.modules() if hasattr(module, "kernels")}:
            self._wrap(kernels, "embed", "forward: embed")
            self._wrap(kernels, "rotate", ROTARY)

    # --- how it is timed ------------------------------------------------------------------------------------------

    def _wrap(self, owner: type, name: str, part: str | None) -> None:
        """Time a method as `part`. `part=None`: as the part of the instance it is called on, or not at all if that has
        none."""
        if callable(getattr(owner, name, None)):
            self._replace(owner, name, self._timed_function(getattr(owner, name), part))

    def _timed_function(self, original: Callable[..., Any], part: str | None) -> Callable[..., Any]:
        @wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            label = part or self._labels.get(id(args[0]))
            if label is None:
                return original(*args, **kwargs)
            start = self._enter()
            try:
                return original(*args, **kwargs)
            finally:
                self._leave(label, start)

        return timed

    def _enter(self) -> float:
        self._inside.append(0.0)
        return time.perf_counter()

    def _leave(self, part: str, start: float) -> float:
        """Return the seconds since `start`. Adds them to the part, without those of wrapped calls inside."""
        seconds = time.perf_counter() - start
        self._parts[part] += seconds - self._inside.pop()
        if self._inside:
            self._inside[-1] += seconds
        return seconds

    def _replace(self, owner: Any, name: str, new: Any) -> None:
        self._undo.append((owner, name, vars(owner).get(name)))
        setattr(owner, name, new)


def profile_model(
    path: str, dtype: str, threads: int, jobs: Mapping[str, Sequence[Job]], **options: Any
) -> dict[str, Any]:
    """Serve jobs in this process. Returns `{kind: {"steps", "seconds", "parts"}}` for each workload.

    `jobs`: by workload, one per round; the workload named `warm up` is served but not profiled. `options` are LLM's.
    """
    before = torch.get_num_threads()
    peer = Peer(path, dtype, threads, **options)
    try:
        profiles = {}
        for name, several in jobs.items():
            with Profiler(peer.engine) if name != WARM_UP else nullcontext() as profiler:
                for job in tqdm(several, desc=f"profile {name}", unit="run"):
                    message = job.as_message()
                    serve(peer, message["prime"])
                    serve(peer, message["requests"])
            if profiler is not None:
                profiles[name] = as_json(profiler.kinds)
        return profiles
    finally:
        torch.set_num_threads(before)


def as_json(kinds: Mapping[str, StepKind]) -> dict[str, Any]:
    """Steps, seconds and seconds by part, for each kind of step."""
    return {
        name: {"steps": kind.steps, "seconds": kind.seconds, "parts": dict(kind.parts)} for name, kind in kinds.items()
    }


def _methods(cls: type) -> list[str]:
    """Names of the public methods that a class itself defines, except properties and static methods."""
    return [name for name, value in vars(cls).items() if isfunction(value) and not name.startswith("_")]

"""Other engines' n-gram drafts on the workload `copying`: each engine with and without, in its own Python."""

import random
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from nanoinfer.bench.draft_workloads import Ask
from nanoinfer.bench.engines import PEERS, EngineFailure, EngineSpec, Worker, parse_engine
from nanoinfer.bench.machine import Checkpoint
from nanoinfer.bench.metrics import same_requests
from nanoinfer.bench.session import reported
from nanoinfer.bench.workloads import Job, Request

PEER_WORKLOAD = "copying"
NO_DRAFTS = ("nanoinfer", "transformers", "peft", "openvino")


def draft_peers(compare: Sequence[str]) -> list[EngineSpec]:
    """The engines of `--compare`. ValueError naming one whose drafts cannot be compared, or that is named twice."""
    engines: list[EngineSpec] = []
    for text in compare:
        spec = parse_engine(text)
        if spec.file.stem in NO_DRAFTS:
            why = "is always measured" if spec.is_ours else "drafts no n-grams here"
            raise ValueError(
                f"--compare {spec.name}: {why}; vllm and llamacpp do, or a file PEER.py with an option ngram"
            )
        if spec.name in [other.name for other in engines]:
            raise ValueError(f"--compare {spec.name}: given twice")
        if spec.file.stem == "llamacpp":
            spec = replace(spec, file=PEERS / "llamacpp_lookup.py")
        engines.append(spec)
    return engines


def with_ngrams(spec: EngineSpec, count: int) -> EngineSpec:
    """The engine with at most `count` drafts per request and pass, from matches of two to four tokens where it can be
    said."""
    options: dict[str, Any] = {"ngram": count}
    if spec.file.stem == "vllm":
        lengths = {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
        options = {"speculative_config": {"method": "ngram", "num_speculative_tokens": count, **lengths}}
    return replace(spec, options={**spec.options, **options})


@dataclass
class DraftPeers:
    """The loaded engines: by name and number of drafts (0: without) a worker, or why there is none. `close` stops them."""

    specs: Sequence[EngineSpec]
    counts: Sequence[int]
    workers: dict[tuple[str, int], Worker | str] = field(default_factory=dict)
    versions: dict[str, Any] = field(default_factory=dict)
    _stack: ExitStack = field(default_factory=ExitStack)

    def load(self, checkpoint: Checkpoint, threads: int, timeout: float) -> None:
        """Load every engine without drafts and with each number of them."""
        for spec in self.specs:
            for count in (0, *self.counts):
                engine = with_ngrams(spec, count) if count else spec
                command = engine.command(checkpoint.path, checkpoint.dtype, threads)
                try:
                    worker = self._stack.enter_context(Worker(command, engine.environment(threads), timeout))
                    self.workers[spec.name, count] = worker
                    self.versions[spec.name] = worker.about["versions"]
                except EngineFailure as failure:
                    self.workers[spec.name, count] = reported(spec, failure)

    def measure(
        self, asks: Sequence[Ask], together: int, number: int, ours: Sequence[Sequence[int]]
    ) -> list[dict[str, Any]]:
        """Serve the requests, `together` at a time, in shuffled order of engines; returns a dictionary per engine and
        number of drafts. `ours`: nanoinfer's tokens, which theirs are compared with."""
        runs = []
        for spec in random.Random(f"{together}/{number}").sample(self.specs, len(self.specs)):
            served = {count: self._serve(spec, count, asks, together) for count in (0, *self.counts)}
            without = served[0]
            for count, answer in served.items():
                run: dict[str, Any] = {"round": number, "requests": together, "engine": spec.name, "drafts": count}
                if "error" in answer:
                    run["error"] = answer["error"]
                else:
                    run["seconds"], tokens = answer["seconds"], answer["tokens"]
                    run["new_tokens"] = sum(map(len, tokens))
                    run["as_ours"] = [same_requests(ours, tokens), len(tokens)]
                    if "error" not in without:
                        run["seconds_without"] = without["seconds"]
                        run["as_without"] = [same_requests(without["tokens"], tokens), len(tokens)]
                runs.append(run)
        return runs

    def _serve(self, spec: EngineSpec, count: int, asks: Sequence[Ask], together: int) -> Mapping[str, Any]:
        worker = self.workers[spec.name, count]
        if isinstance(worker, str):
            return {"error": worker}
        tokens: list[list[int]] = []
        seconds = 0.0
        try:
            for start in range(0, len(asks), together):
                group = asks[start : start + together]
                job = Job([Request(ask.prompt, ask.params.max_new_tokens) for ask in group], [], shared=False)
                answer = worker.ask(job.as_message())
                tokens += answer["tokens"]
                seconds += answer["wall_s"]
        except EngineFailure as failure:
            return {"error": reported(spec, failure)}
        return {"tokens": tokens, "seconds": seconds}

    def close(self) -> None:
        """Stop all engines."""
        self._stack.close()

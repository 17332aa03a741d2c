"""Metrics: what `/metrics` shows, under vLLM's names where the meaning is the same, so that its dashboards work."""

from collections.abc import Iterable, Mapping, Sequence
from time import perf_counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from nanoinfer.engine.engine import Engine

if TYPE_CHECKING:
    from nanoinfer.server.generation import Generation

REASONS = ("stop", "length", "abort", "timeout")
ABORTS = ("disconnect", "shutdown", "error")
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000)


def sample(engine: Engine) -> dict[str, Any]:
    """An engine's statistics, and the size of its tree. Call it in the engine's thread."""
    return {**engine.stats(), "tree_nodes": engine.radix_cache.num_nodes}


class Metrics(Collector):
    """The counters and histograms of one server, and what its engines count."""

    def __init__(self, model_name: str):
        self._model, self._registry = model_name, CollectorRegistry()
        self._registry.register(self)

        def counter(name: str, text: str, label: str, values: Iterable[str] = ()) -> Counter:
            made = Counter(name, text, ["model_name", label], registry=self._registry)
            for value in values:
                made.labels(model_name, value)  # is there from the start, as 0
            return made

        def histogram(name: str, text: str, buckets: Sequence[float]) -> Histogram:
            made = Histogram(f"vllm:{name}", text, ["model_name"], registry=self._registry, buckets=buckets)
            return made.labels(model_name)

        self._ends = counter("vllm:request_success", "Completions by how they ended.", "finished_reason", REASONS)
        self._aborts = counter("nanoinfer:requests_aborted", "Requests that were ended early.", "reason", ABORTS)
        self._responses = counter("nanoinfer:http_responses", "Responses by status.", "status")
        self._first_tokens = histogram("time_to_first_token_seconds", "Seconds to the first token.", SECONDS)
        self.token_gaps = histogram(
            "inter_token_latency_seconds", "Seconds between two tokens of a completion.", SECONDS
        )
        self._latencies = histogram("e2e_request_latency_seconds", "Seconds from arrival to the end.", SECONDS)
        self._prompt_sizes = histogram("request_prompt_tokens", "Prompt tokens per request.", TOKENS)
        self._output_sizes = histogram("request_generation_tokens", "Output tokens per request.", TOKENS)
        self._max_tokens = histogram("request_params_max_tokens", "The max_tokens of requests.", TOKENS)

    def note_response(self, status: int) -> None:
        """Count an answer; 0: none, since its client went."""
        self._responses.labels(self._model, status).inc()

    def note_end(self, generation: "Generation") -> None:
        """Count a generation that is over."""
        request = generation.request
        for end in generation.ends:
            self._ends.labels(self._model, end).inc()
        self._prompt_sizes.observe(request.prompt_tokens)
        self._output_sizes.observe(generation.output_tokens)
        self._max_tokens.observe(request.params.max_new_tokens)
        self._latencies.observe(perf_counter() - generation.started)
        if generation.first_token_at is not None:
            self._first_tokens.observe(generation.first_token_at - generation.started)
        if reason := generation.closed_by or ("error" if generation.failed else None):
            self._aborts.labels(self._model, reason).inc()

    def text(self, samples: Sequence[Mapping[str, Any]]) -> bytes:
        """Everything in Prometheus' text format. `samples`: one per engine; their numbers are added up."""
        self._samples = samples
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        """What the engines count, in the form that `prometheus_client` writes."""
        first, *_ = self._samples
        numbers = [name for name, value in first.items() if isinstance(value, int | float)]
        stats = SimpleNamespace(**{name: sum(each[name] for each in self._samples) for name in numbers})
        used, in_tree = stats.protected_slots + stats.request_slots, stats.evictable_slots + stats.protected_slots
        slots = {"free": stats.free_slots, "tree_evictable": stats.evictable_slots}
        slots |= {"tree_protected": stats.protected_slots, "requests": stats.request_slots}
        fetched = {"host": stats.host_fetched_tokens, "disk": stats.disk_fetched_tokens}
        gauge, counter = GaugeMetricFamily, CounterMetricFamily
        rows: tuple[tuple[Any, ...], ...] = (
            (gauge, "vllm:num_requests_running", "Requests that hold K/V now.", stats.running),
            (gauge, "vllm:num_requests_waiting", "Requests that wait now.", stats.waiting),
            (gauge, "vllm:kv_cache_usage_perc", "Share of the slots that requests use.", used / stats.total_slots),
            (counter, "vllm:prompt_tokens", "Prompt tokens of admitted requests.", stats.prompt_tokens),
            (counter, "vllm:generation_tokens", "Tokens that passes have sampled.", stats.output_tokens),
            (counter, "vllm:prefix_cache_queries", "Prompt tokens looked up in the tree.", stats.prompt_tokens),
            (counter, "vllm:prefix_cache_hits", "Prompt tokens found in the tree.", stats.cached_tokens),
            (counter, "vllm:num_preemptions", "Requests that were retracted.", stats.retractions),
            (gauge, "nanoinfer:host_held_tokens", "Tokens with K/V in host memory.", stats.host_held_tokens),
            (gauge, "nanoinfer:num_requests_paused", "Requests that are paused now.", stats.paused),
            (gauge, "nanoinfer:tree_nodes", "Nodes of the radix tree.", stats.tree_nodes),
            (gauge, "nanoinfer:tree_tokens", "Tokens in the radix tree.", in_tree),
            (gauge, "nanoinfer:loaded_adapters", "Adapters that are loaded.", first["loaded_adapters"]),
            (gauge, "nanoinfer:tokens_per_second", "Recent output tokens per second.", stats.tokens_per_second),
            (gauge, "nanoinfer:slots", "Slots by owner.", slots, "owner"),
            (counter, "nanoinfer:fetched_tokens", "Tokens whose K/V came back from a tier.", fetched, "tier"),
        )
        for kind, name, text, value, *label in rows:
            family = kind(name, text, labels=["model_name", *label])
            for key, number in value.items() if label else (("", value),):
                family.add_metric([self._model, key] if label else [self._model], number)
            yield family

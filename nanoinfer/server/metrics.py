"""Metrics: what `/metrics` shows, under vLLM's names where the meaning is the same, so that its dashboards work.

Counting happens in plain numbers, for it happens per token; `prometheus_client` sees them when somebody asks.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from nanoinfer.engine.engine import Engine
from nanoinfer.engine.stats import EngineStats
from nanoinfer.server.buckets import TOKENS, Buckets

if TYPE_CHECKING:
    from nanoinfer.server.generation import Generation

CONTENT_TYPE = CONTENT_TYPE_LATEST
REASONS = ("stop", "length", "abort", "timeout")
ABORTS = ("disconnect", "shutdown", "error")
ADDED_UP = (  # of EngineStats, where several engines serve
    *("waiting", "running", "paused", "retractions", "tokens_per_second"),
    *("total_slots", "free_slots", "evictable_slots", "protected_slots", "request_slots"),
    *("prompt_tokens", "cached_tokens", "output_tokens"),
    *("host_held_tokens", "host_fetched_tokens", "disk_fetched_tokens"),
)


@dataclass(frozen=True)
class Sample:
    """An engine between two steps: its statistics and the size of its tree."""

    stats: EngineStats
    tree_nodes: int

    @classmethod
    def of(cls, engine: Engine) -> "Sample":
        """Look at an engine. Call it in the engine's thread."""
        return cls(engine.stats(), engine.radix_cache.num_nodes)

    @classmethod
    def sum(cls, samples: "Sequence[Sample]") -> "Sample":
        """Several engines as one: what `/metrics` shows is added up, the rest is the first engine's."""
        first, *_ = samples
        stats = replace(first.stats, **{name: sum(each.stats[name] for each in samples) for name in ADDED_UP})
        return cls(stats, sum(each.tree_nodes for each in samples))


class Metrics:
    """The counters and histograms of one server."""

    def __init__(self, model_name: str):
        self.model_name = model_name
        self.ends: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        self.aborts: Counter[str] = Counter(dict.fromkeys(ABORTS, 0))
        self.responses: Counter[str] = Counter()  # by HTTP status
        self.first_tokens, self.token_gaps, self.latencies = Buckets(), Buckets(), Buckets()
        self.prompt_sizes, self.output_sizes, self.max_tokens = Buckets(TOKENS), Buckets(TOKENS), Buckets(TOKENS)

    def note_end(self, generation: "Generation") -> None:
        """Count a generation that is over."""
        wish, counts = generation.wish, generation.counts
        self.ends.update(counts.ends)
        self.prompt_sizes.observe(wish.prompt_tokens)
        self.output_sizes.observe(counts.output_tokens)
        self.max_tokens.observe(wish.params.max_new_tokens)
        self.latencies.observe(perf_counter() - generation.started)
        if generation.first_token_at is not None:
            self.first_tokens.observe(generation.first_token_at - generation.started)
        if generation.closed_by is not None:
            self.aborts[generation.closed_by] += 1
        elif generation.failed:
            self.aborts["error"] += 1

    def text(self, sample: Sample) -> bytes:
        """Everything in Prometheus' text format."""
        registry = CollectorRegistry()
        registry.register(_Collected(self, sample))
        return generate_latest(registry)


class _Collected(Collector):
    """Numbers in the form that `prometheus_client` writes."""

    def __init__(self, metrics: Metrics, sample: Sample):
        self._metrics, self._stats, self._tree_nodes = metrics, sample.stats, sample.tree_nodes
        self._labels = {"model_name": metrics.model_name}

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        metrics, stats = self._metrics, self._stats
        used = stats.protected_slots + stats.request_slots
        yield self._gauge("vllm:num_requests_running", "Requests that hold K/V now.", stats.running)
        yield self._gauge("vllm:num_requests_waiting", "Requests that wait now.", stats.waiting)
        yield self._gauge("vllm:kv_cache_usage_perc", "Share of the slots that requests use.", used / stats.total_slots)
        yield self._counter("vllm:prompt_tokens", "Prompt tokens of admitted requests.", stats.prompt_tokens)
        yield self._counter("vllm:generation_tokens", "Tokens that passes have sampled.", stats.output_tokens)
        yield self._counter("vllm:prefix_cache_queries", "Prompt tokens looked up in the tree.", stats.prompt_tokens)
        yield self._counter("vllm:prefix_cache_hits", "Prompt tokens found in the tree.", stats.cached_tokens)
        yield self._counter("vllm:num_preemptions", "Requests that were retracted.", stats.retractions)
        yield self._counters("vllm:request_success", "Completions by how they ended.", "finished_reason", metrics.ends)
        for name, text, buckets in (
            ("vllm:time_to_first_token_seconds", "Seconds from arrival to the first token.", metrics.first_tokens),
            ("vllm:inter_token_latency_seconds", "Seconds between two tokens of a completion.", metrics.token_gaps),
            ("vllm:e2e_request_latency_seconds", "Seconds from arrival to the end.", metrics.latencies),
            ("vllm:request_prompt_tokens", "Prompt tokens per request.", metrics.prompt_sizes),
            ("vllm:request_generation_tokens", "Output tokens per request.", metrics.output_sizes),
            ("vllm:request_params_max_tokens", "The max_tokens of requests.", metrics.max_tokens),
        ):
            yield self._histogram(name, text, buckets)
        yield self._counters("nanoinfer:requests_aborted", "Requests that were ended early.", "reason", metrics.aborts)
        yield self._counters("nanoinfer:http_responses", "Responses by status.", "status", metrics.responses)
        slots = GaugeMetricFamily("nanoinfer:slots", "Slots by owner.", labels=[*self._labels, "owner"])
        for owner, count in (
            ("free", stats.free_slots),
            ("tree_evictable", stats.evictable_slots),
            ("tree_protected", stats.protected_slots),
            ("requests", stats.request_slots),
        ):
            slots.add_metric([*self._labels.values(), owner], count)
        yield slots
        fetched = {"host": stats.host_fetched_tokens, "disk": stats.disk_fetched_tokens}
        yield self._counters("nanoinfer:fetched_tokens", "Tokens whose K/V came back from a storey.", "tier", fetched)
        yield self._gauge("nanoinfer:host_held_tokens", "Tokens with K/V in host memory.", stats.host_held_tokens)
        yield self._gauge("nanoinfer:num_requests_paused", "Requests that are paused now.", stats.paused)
        yield self._gauge("nanoinfer:tree_nodes", "Nodes of the radix tree.", self._tree_nodes)
        tokens = stats.evictable_slots + stats.protected_slots
        yield self._gauge("nanoinfer:tree_tokens", "Tokens in the radix tree.", tokens)
        yield self._gauge("nanoinfer:loaded_adapters", "Adapters that are loaded.", stats.loaded_adapters)
        yield self._gauge("nanoinfer:tokens_per_second", "Recent output tokens per second.", stats.tokens_per_second)

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(name, text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _counters(self, name: str, text: str, label: str, values: Mapping[str, int]) -> Metric:
        family = CounterMetricFamily(name, text, labels=[*self._labels, label])
        for key, value in values.items():
            family.add_metric([*self._labels.values(), key], value)
        return family

    def _histogram(self, name: str, text: str, buckets: Buckets) -> Metric:
        family = HistogramMetricFamily(name, text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), buckets.cumulative(), buckets.sum)
        return family

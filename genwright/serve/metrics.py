"""Metrics for Prometheus, under the names that vLLM uses."""

from dataclasses import astuple
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.registry import Collector

from genwright.serve.frames import End
from genwright.text.engine.engine_stats import EngineStats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_HISTOGRAMS = {
    "time_to_first_token_seconds": "Time to first token.",
    "inter_token_latency_seconds": "Time between the tokens of a sequence.",
    "e2e_request_latency_seconds": "Time from a request's arrival to its end.",
    "request_queue_time_seconds": "Time that a request waited before it ran.",
}
_GAUGES = {
    "num_requests_running": "Sequences that are computed.",
    "num_requests_waiting": "Sequences that wait to be computed.",
    "kv_cache_usage_perc": "Share of the cache's pages in use; 1 is all.",
}
_ENGINE_COUNTERS = {  # counted by the engine
    "prefix_cache_queries": "Tokens looked up in the prefix cache.",
    "prefix_cache_hits": "Tokens found in the prefix cache.",
    "num_preemptions": "Sequences that were taken back to the queue.",
}
_COUNTERS = {
    "prompt_tokens": "Tokens of prompts.",
    "generation_tokens": "Tokens generated.",
}


class Metrics(Collector):
    """The metrics of one server."""

    def __init__(self, model: str):
        self.registry = CollectorRegistry()
        self._labels = {"model_name": model, "engine": "0"}
        self._histograms = {
            name: self._new(Histogram, name, text, buckets=_SECONDS) for name, text in _HISTOGRAMS.items()
        }
        self._gauges = [self._new(Gauge, name, text) for name, text in _GAUGES.items()]
        self._counters = {name: self._new(Counter, name, text) for name, text in _COUNTERS.items()}
        labels = [*self._labels, "finished_reason"]
        self._ended = Counter("vllm:request_success", "Sequences that ended.", labels, registry=self.registry)
        self._restarts = Counter(
            "genwright:engine_restarts", "Times that the engine process was started again.", registry=self.registry
        )
        self._stats, self._before = EngineStats(), EngineStats()  # of this engine process, and of those before it
        self.registry.register(self)

    def _new(self, kind: Any, name: str, text: str, **settings: Any) -> Any:
        return kind(f"vllm:{name}", text, list(self._labels), registry=self.registry, **settings).labels(**self._labels)

    def collect(self) -> list[CounterMetricFamily]:
        """The counters that the engine itself counts."""
        found = []
        for index, (name, text) in enumerate(_ENGINE_COUNTERS.items(), 3):
            family = CounterMetricFamily(f"vllm:{name}", text, labels=list(self._labels))
            family.add_metric(list(self._labels.values()), astuple(self._stats)[index] + astuple(self._before)[index])
            found.append(family)
        return found

    def set_stats(self, stats: EngineStats) -> None:
        for gauge, value in zip(self._gauges, (stats.running, stats.waiting, stats.cache_use), strict=True):
            gauge.set(value)
        self._stats = stats

    def engine_died(self) -> None:
        """Keep the counts of an engine that ended, because a new one starts from zero."""
        counts = [a + b for a, b in zip(astuple(self._stats), astuple(self._before), strict=True)]
        self._before = EngineStats(*counts)
        self.set_stats(EngineStats())
        self._restarts.inc()

    def first_token(self, seconds: float) -> None:
        self._histograms["time_to_first_token_seconds"].observe(seconds)

    def next_token(self, seconds: float) -> None:
        self._histograms["inter_token_latency_seconds"].observe(seconds)

    def generated(self, tokens: int) -> None:
        self._counters["generation_tokens"].inc(tokens)

    def sequence_ended(self, end: End) -> None:
        self._histograms["request_queue_time_seconds"].observe(end.queued)
        self._histograms["e2e_request_latency_seconds"].observe(end.total)
        self._counters["prompt_tokens"].inc(end.prompt_tokens)
        self._ended.labels(**self._labels, finished_reason=end.reason).inc()

    def text(self) -> bytes:
        return generate_latest(self.registry)

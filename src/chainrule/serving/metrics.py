"""Prometheus metrics of the server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from weakref import WeakKeyDictionary

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from chainrule.serving.engine import Engine
from chainrule.serving.requests import Ticket

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class EngineCollector(Collector):
    """The counts of an engine, read when they are asked for."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def collect(self) -> Iterator[Metric]:
        engine, stats = self.engine, self.engine.stats
        gauges = {
            "running_requests": ("Requests that are being decoded", engine.running),
            "waiting_requests": ("Requests in the queue", engine.waiting),
            "prefix_cache_bytes": ("Memory of the prefix cache", engine.prefix_cache.bytes),
        }
        counters = {
            "engine_requests_submitted": ("Requests submitted to the engine", stats.submitted),
            "engine_requests_refused": ("Requests refused because the queue was full", stats.refused),
            "engine_requests_finished": ("Texts that were finished", stats.finished),
            "engine_requests_cancelled": ("Requests cancelled by their clients", stats.cancelled),
            "engine_requests_failed": ("Requests that ended with an error", stats.failed),
            "prompt_tokens": ("Tokens of prompts that were read", stats.prompt_tokens),
            "prefix_cache_tokens": ("Tokens of prompts found in the prefix cache", stats.cached_tokens),
            "generated_tokens": ("Tokens generated", stats.generated_tokens),
        }
        for name, (about, value) in gauges.items():
            yield GaugeMetricFamily(f"chainrule_{name}", about, value)
        for name, (about, value) in counters.items():
            yield CounterMetricFamily(f"chainrule_{name}", about, value)


class ServerMetrics:
    """All metrics of one server, in a registry of its own."""

    def __init__(self, engine: Engine) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(EngineCollector(engine))
        ProcessCollector(registry=self.registry)
        self.requests = Counter("chainrule_http_requests", "HTTP requests", ["path", "status"], registry=self.registry)
        self.seconds = Histogram(
            "chainrule_http_seconds", "Duration of HTTP requests", ["path"], registry=self.registry, buckets=SECONDS
        )
        self.first_token = Histogram(
            "chainrule_first_token_seconds", "Time to the first token", registry=self.registry, buckets=SECONDS
        )
        self.between_tokens = Histogram(
            "chainrule_between_tokens_seconds", "Time between tokens", registry=self.registry, buckets=SECONDS
        )
        self._last: WeakKeyDictionary[Ticket, float] = WeakKeyDictionary()

    def tokens_arrived(self, ticket: Ticket, count: int) -> None:
        """Note the time of new tokens of a request."""
        now = time.monotonic()
        before = self._last.get(ticket)
        if before is None:
            self.first_token.observe(now - ticket.submitted)
        else:
            self.between_tokens.observe((now - before) / count)
        self._last[ticket] = now

    def text(self) -> bytes:
        return generate_latest(self.registry)

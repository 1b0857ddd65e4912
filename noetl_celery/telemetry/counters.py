"""Counters and histograms of a worker process, in files that one process of the worker adds up for Prometheus.

This is prometheus_client's multiprocess mode: each process writes to files of its own in a shared folder. A process
that takes the place of another one (the node started again, a process of its pool replaced) goes on with its files, so
that they are never more than there are places, and no count is lost with a process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prometheus_client import Counter, Histogram, values

from noetl_celery.telemetry.declared import COUNTED, Metric


class Counters:
    """The counted metrics of this process; ``place`` is its name, which no other process has at the same time."""

    def __init__(self, place: str) -> None:
        # Chosen anew: Celery's plugins may have imported prometheus_client before the folder was known.
        values.ValueClass = values.MultiProcessValue(lambda: place)  # type: ignore[no-untyped-call]
        self._metrics = {metric: _made(metric) for metric in COUNTED}
        self._children: dict[tuple[Metric, Sequence[str]], Any] = {}
        for metric in COUNTED:
            for value in metric.known:
                self.add(metric, (value,), 0)

    def add(self, metric: Metric, labels: Sequence[str], amount: float = 1) -> None:
        """Counts; with an ``amount`` of 0 it is there, so that the first one is seen as a rise."""
        child = self._child(metric, labels)
        if amount:
            child.inc(amount)

    def observe(self, metric: Metric, labels: Sequence[str], seconds: float) -> None:
        """Notes how long something took."""
        self._child(metric, labels).observe(seconds)

    def _child(self, metric: Metric, labels: Sequence[str]) -> Any:
        child = self._children.get((metric, labels))
        if child is None:
            child = self._children[metric, labels] = self._metrics[metric].labels(*labels)
        return child


def _made(metric: Metric) -> Counter | Histogram:
    if metric.kind == "histogram":
        return Histogram(metric.name, metric.help, metric.labels, registry=None, buckets=metric.buckets)
    return Counter(metric.name, metric.help, metric.labels, registry=None)

"""Spans of executions, stages, frames, rows and tasks for OpenTelemetry; which part of a trace a span is follows from
our own ids, so that no message has to say it and each process may send what it ends.

What is set is what OpenTelemetry's own variables say (``OTEL_TRACES_EXPORTER``, ``OTEL_EXPORTER_OTLP_ENDPOINT``,
``OTEL_TRACES_SAMPLER``, ``OTEL_RESOURCE_ATTRIBUTES`` …). Nobody waits for a collector: what cannot be sent is dropped.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import entry_points, version

from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags, set_span_in_context

from noetl_celery.hiding import hidden
from noetl_celery.telemetry import wanted

log = logging.getLogger(__name__)

PACKAGE = "noetl-celery"
#: how long the end of a process waits for spans to be sent
FLUSH_SECONDS = 2.0
#: what says more about a collector that is away than anybody wants to read; we say it once
_TALKATIVE = ("opentelemetry.exporter", "opentelemetry.sdk._shared_internal")

Attributes = Mapping[str, str | int | float | bool]


def trace_id(execution_id: int) -> int:
    """The trace of an execution: its id, then bits that look random, as samplers go by the lower half."""
    return execution_id << 64 | _hash(f"execution {execution_id}")


def row_span_id(frame_id: int, row_index: int) -> int:
    """The span of a row. Executions, stages and frames have their own id as span id."""
    return _hash(f"row {frame_id} {row_index}")


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") or 1


@dataclass(frozen=True, slots=True)
class Span:
    """A span that has ended. Times are Unix time in nanoseconds; ``id`` None: any. ``error`` is told without secrets;
    ``caller`` is the execution and the span that wait for this one."""

    execution_id: int
    id: int | None
    parent: int | None
    name: str
    begun: int
    ended: int
    attributes: Attributes = field(default_factory=dict)
    error: str | None = None
    caller: tuple[int, int] | None = None


class Spans:
    """Sends spans. To be made in the process that uses it: its thread does not survive a fork."""

    def __init__(self) -> None:
        for name in _TALKATIVE:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self._ids = _GivenIds()
        named = Resource.create({"service.version": version(PACKAGE)})
        if not named.attributes.get(SERVICE_NAME) or str(named.attributes[SERVICE_NAME]).startswith("unknown_service"):
            named = named.merge(Resource({SERVICE_NAME: PACKAGE}))
        self._provider = TracerProvider(resource=named, id_generator=self._ids, shutdown_on_exit=False)
        for exporter in _exporters():
            self._provider.add_span_processor(BatchSpanProcessor(_Quiet(exporter)))
        self._tracer = self._provider.get_tracer("noetl_celery", version(PACKAGE))
        self.sampled = lru_cache(maxsize=4096)(self._sampled)

    def _sampled(self, execution_id: int) -> bool:
        """Is the trace of this execution one of those that are sent? All processes find the same."""
        decision = self._provider.sampler.should_sample(Context(), trace_id(execution_id), "execution")
        return decision.decision is not Decision.DROP

    def send(self, span: Span) -> None:
        """Queues a span. Never waits, never raises."""
        if not self.sampled(span.execution_id):
            return
        trace = trace_id(span.execution_id)
        within = Context() if span.parent is None else set_span_in_context(_remote(trace, span.parent), Context())
        self._ids.give(trace, span.id)
        caller = span.caller
        links = [] if caller is None else [Link(_place(trace_id(caller[0]), caller[1]))]
        started = self._tracer.start_span(
            span.name, within, attributes=dict(span.attributes), links=links, start_time=span.begun
        )
        if span.error is not None:
            started.set_status(Status(StatusCode.ERROR, hidden(span.error)))
        started.end(max(span.ended, span.begun))

    def close(self) -> None:
        """Sends what is queued, if that does not take long."""
        ending = threading.Thread(target=self._provider.shutdown, name="noetl-spans-end", daemon=True)
        ending.start()
        ending.join(FLUSH_SECONDS)


def _place(trace: int, span: int) -> SpanContext:
    return SpanContext(trace, span, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _remote(trace: int, span: int) -> NonRecordingSpan:
    return NonRecordingSpan(_place(trace, span))


class _GivenIds(IdGenerator):
    """The ids that the next span of this thread has."""

    def __init__(self) -> None:
        self._given = threading.local()
        self._random = RandomIdGenerator()

    def give(self, trace: int, span: int | None) -> None:
        self._given.ids = trace, span or self._random.generate_span_id()

    def generate_trace_id(self) -> int:
        return int(self._given.ids[0])

    def generate_span_id(self) -> int:
        return int(self._given.ids[1])


class _Quiet(SpanExporter):
    """Says once that spans cannot be sent, and once that they can be again."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter, self._away = exporter, False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            result = self._exporter.export(spans)
        except Exception as error:
            self._note(True, f"{type(error).__name__}: {error}")
            return SpanExportResult.FAILURE
        self._note(result is not SpanExportResult.SUCCESS, "the collector does not take them")
        return result

    def _note(self, away: bool, why: str) -> None:
        if away and not self._away:
            log.warning("spans cannot be sent, and are dropped until they can: %s", why)
        elif self._away and not away:
            log.warning("spans can be sent again")
        self._away = away

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return self._exporter.force_flush(timeout_millis)


def _exporters() -> list[SpanExporter]:
    return [_exporter(name) for name in wanted.exporters()]


def _exporter(name: str) -> SpanExporter:
    if name == "console":
        return ConsoleSpanExporter()
    (found,) = entry_points(group=wanted.EXPORTERS, name=name)
    made = found.load()()
    assert isinstance(made, SpanExporter)
    return made

"""Spans: when they are wanted, which ids they have, and what a collector that is away costs."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from noetl_celery import hiding
from noetl_celery.ids import new_id
from noetl_celery.telemetry import spans, wanted
from noetl_celery.telemetry.spans import Span, Spans, row_span_id, trace_id

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    levels = {name: logging.getLogger(name).level for name in spans._TALKATIVE}
    yield
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, False),
        ({ENDPOINT: "http://collector:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "console"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", ENDPOINT: "http://collector:4318"}, False),
        ({"OTEL_SDK_DISABLED": "true", ENDPOINT: "http://collector:4318"}, False),
    ],
)
def test_spans_are_sent_when_opentelemetry_is_told_to(
    variables: dict[str, str], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert wanted.traces() is expected
    assert wanted.lacking() is None


def test_a_missing_extra_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wanted, "find_spec", lambda name: None)
    assert wanted.lacking() is None, "nobody wants spans"
    monkeypatch.setenv(ENDPOINT, "http://collector:4318")
    assert "pip install 'noetl-celery[otel]'" in (wanted.lacking() or "")


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"OTEL_TRACES_EXPORTER": "otlp,carrier-pigeon"}, "carrier-pigeon"),
        ({ENDPOINT: "http://collector:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "otlp_proto_grpc"),
    ],
)
def test_an_exporter_that_is_not_there_is_said(
    variables: dict[str, str], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert f"the exporter {named} is not installed" in (wanted.lacking() or "")


def test_ids_follow_from_ours_in_every_process() -> None:
    execution, frame = new_id(), new_id()
    assert trace_id(execution) >> 64 == execution, "its first half is the execution's id"
    assert trace_id(execution) == trace_id(execution)
    rows = {row_span_id(frame, row) for row in range(1000)}
    assert len(rows) == 1000
    assert all(0 < row < 1 << 64 for row in rows)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Callable[[Spans], list[dict[str, Any]]]:
    """Ends spans that go nowhere else; what came of them."""
    kept = InMemorySpanExporter()
    monkeypatch.setattr(spans, "_exporters", lambda: [kept])

    def read(made: Spans) -> list[dict[str, Any]]:
        made.close()
        return [json.loads(span.to_json()) for span in kept.get_finished_spans()]

    return read


def test_a_span_is_where_its_ids_say(sent: Callable[[Spans], list[dict[str, Any]]]) -> None:
    hiding.learn("Xk29-slumber-quay")
    execution, stage = new_id(), new_id()
    made = Spans()
    made.send(Span(execution, stage, execution, "drain", 1_000, 2_000, {"noetl.step": "drain"}, "at Xk29-slumber-quay"))
    made.send(Span(execution, execution, None, "a/b", 1_000, 500, caller=(stage, 7)))
    child, root = sent(made)
    assert child["context"]["trace_id"] == root["context"]["trace_id"] == f"0x{trace_id(execution):032x}"
    assert child["context"]["span_id"] == f"0x{stage:016x}"
    assert child["parent_id"] == f"0x{execution:016x}" == root["context"]["span_id"]
    assert root["parent_id"] is None
    assert child["status"] == {"status_code": "ERROR", "description": "at ***"}
    assert root["links"][0]["context"]["span_id"] == "0x0000000000000007"
    assert root["end_time"] == root["start_time"], "clocks differ, spans do not end before they begin"
    assert root["resource"]["attributes"]["service.name"] == "noetl-celery"


def test_a_sampler_takes_whole_executions(
    sent: Callable[[Spans], list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.25")
    executions = [new_id() for _ in range(400)]
    made, other = Spans(), Spans()
    for execution in executions:
        made.send(Span(execution, execution, None, "a/b", 1, 2))
        made.send(Span(execution, None, execution, "task", 1, 2))
    found = [str(span["context"]["trace_id"]) for span in sent(made)]
    chosen = {f"0x{trace_id(execution):032x}" for execution in executions if other.sampled(execution)}
    other.close()
    assert 40 < len(chosen) < 180
    assert sorted(found) == sorted([*chosen, *chosen]), "all spans of an execution, or none"


class Away:
    """A collector that is away, and comes back."""

    def __init__(self) -> None:
        self.answers = [ConnectionError("refused"), SpanExportResult.FAILURE, SpanExportResult.SUCCESS]

    def export(self, batch: object) -> SpanExportResult:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_collector_that_is_away_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    quiet = spans._Quiet(Away())
    for _ in range(3):
        quiet.export([])
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "cannot be sent" in caplog.messages[0]
    assert caplog.messages[1] == "spans can be sent again"


def test_an_unreachable_collector_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    before = set(threading.enumerate())
    with closing(Spans()) as made:
        for number in range(10_000):
            made.send(Span(number + 1, None, None, "task", 1, 2))
    for thread in set(threading.enumerate()) - before:
        thread.join()  # what it draws by lot, between tries, would disturb the tests that come after it

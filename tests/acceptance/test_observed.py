"""Real workers, as Prometheus, an OpenTelemetry collector and a reader of log lines see them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from nodes import Cluster, Worker, cluster, wait_for
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client.parser import text_string_to_metric_families

from noetl_celery.cli.embedded import free_port
from noetl_celery.execution import Execution
from noetl_celery.telemetry import declared
from noetl_celery.telemetry.spans import row_span_id, trace_id

pytestmark = pytest.mark.acceptance

ROWS = 23
DRAIN = ("test/recovery", "start")


@dataclass
class Collector:
    """Takes spans over OTLP (HTTP, protobuf), as a real one does."""

    url: str
    spans: list[dict[str, Any]] = field(default_factory=list)

    def of(self, execution: int) -> list[dict[str, Any]]:
        """The spans of an execution."""
        return [span for span in self.spans if span["trace"] == trace_id(execution)]

    def take(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = next(
                item.value.string_value for item in resource.resource.attributes if item.key == "service.name"
            )
            for scope in resource.scope_spans:
                self.spans += [_span(span) | {"service": service} for span in scope.spans]


def _span(span: Any) -> dict[str, Any]:
    attributes = {item.key: getattr(item.value, item.value.WhichOneof("value")) for item in span.attributes}
    return {
        "trace": int.from_bytes(span.trace_id, "big"),
        "id": int.from_bytes(span.span_id, "big"),
        "parent": int.from_bytes(span.parent_span_id, "big"),
        "name": span.name,
        "begun": span.start_time_unix_nano,
        "ended": span.end_time_unix_nano,
        "failed": span.status.message if span.status.code == 2 else None,
        "links": [int.from_bytes(link.span_id, "big") for link in span.links],
        **attributes,
    }


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            made.take(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        made = Collector(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield made
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("observed"), NOETL_LOG_FORMAT="json") as made:
        made.env |= {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "200"}
        made.env["TMPDIR"] = str(made.folder)  # workers that are killed leave their folder
        yield made


@pytest.fixture(scope="module")
def port() -> int:
    return free_port(19500)


@pytest.fixture(scope="module")
def worker(system: Cluster, port: int) -> Worker:
    return system.worker("seen", "-c", "2", "--metrics-port", str(port))


def counted(port: int, name: str) -> dict[tuple[str, ...], float]:
    """The samples of a metric, by the values of its labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
        families = text_string_to_metric_families(reply.read().decode())
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    labels = next((metric.labels for metric in declared.ALL if name.startswith(metric.name)), ())
    return {tuple(sample.labels[label] for label in labels): sample.value for sample in samples}


def ran(system: Cluster, batch: str, **workload: Any) -> Execution:
    system.fill(batch, ROWS)
    execution = system.submit(batch, **workload)
    assert execution.wait(timeout=60) == "COMPLETED"
    return execution


def test_the_tree_of_spans_is_whole(system: Cluster, worker: Worker, collector: Collector) -> None:
    execution = ran(system, "spans").id
    wait_for(lambda: any(span["id"] == execution for span in collector.of(execution)), "the execution's span is there")
    frames = system.q("SELECT frame_id, stage_id, rows FROM noetl.frame WHERE execution_id = %s", execution)
    stages = system.q("SELECT stage_id, step_name FROM noetl.stage WHERE execution_id = %s", execution)
    expected = 1 + len(stages) + len(frames) + 2 * (ROWS + 1)  # each row has one task
    wait_for(lambda: len(collector.of(execution)) >= expected, "all spans are there")
    spans = collector.of(execution)
    by_id = {span["id"]: span for span in spans}
    assert len(spans) == len(by_id) == expected
    assert {span["service"] for span in spans} == {"noetl-celery"}
    assert {span["noetl.execution_id"] for span in spans} == {str(execution)}
    assert (by_id[execution]["parent"], by_id[execution]["name"]) == (0, "test/recovery")
    for stage in stages:
        found = by_id[stage["stage_id"]]
        assert (found["parent"], found["name"], found["noetl.status"]) == (execution, stage["step_name"], "COMPLETED")
    for frame in frames:
        assert by_id[frame["frame_id"]]["parent"] == frame["stage_id"]
        for index in range(frame["rows"]):
            row = by_id[row_span_id(frame["frame_id"], index)]
            assert (row["name"], row["parent"], row["noetl.row"]) == ("row", frame["frame_id"], index)
            (task,) = (span for span in spans if span["parent"] == row["id"])
            assert task["noetl.tool"] == "postgres"
            assert row["begun"] <= task["begun"] <= task["ended"] <= row["ended"]
    for span in spans:
        assert span["ended"] >= span["begun"]
        assert span["failed"] is None
        parent = by_id.get(span["parent"])
        assert parent is not None or span["id"] == execution
        if span["name"] not in {"row"} and parent is not None and parent["name"] != "row":
            assert parent["begun"] <= span["begun"]


def test_a_failure_is_in_its_spans_and_a_child_names_its_caller(
    system: Cluster, worker: Worker, collector: Collector
) -> None:
    head = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: %s, path: test/%s}\nworkflow:\n"
    bad = "- step: work\n  tool: {kind: python, code: 'raise ValueError(\"at postgresql://u:hush-hush@h/d\")'}\n"
    call = "- step: call\n  tool: {kind: playbook, path: test/bad}\n"
    for name, steps in (("bad", bad), ("calls", call)):
        file = system.folder / f"{name}.yaml"
        file.write_text(head % (name, name) + steps)
        system.client.register(file)
    execution = system.client.submit("test/calls")
    assert execution.wait(timeout=30) == "FAILED"
    child = system.value("SELECT execution_id FROM noetl.execution WHERE parent_execution_id = %s", execution.id)
    wait_for(lambda: len(collector.of(child)) == 5, "the child's spans are there")
    failed = collector.of(child)
    assert {span["name"] for span in failed if span["failed"]} == {"test/bad", "work", "row"}
    assert all("hush-hush" not in str(span) for span in collector.spans)
    assert next(span for span in failed if "noetl.tool" in span)["error.type"] == "python"
    row = row_span_id(system.value("SELECT frame_id FROM noetl.frame WHERE execution_id = %s", execution.id), 0)
    assert next(span for span in failed if span["id"] == child)["links"] == [row]
    wait_for(lambda: row in {span["id"] for span in collector.of(execution.id)}, "the caller's row is there")


def test_what_is_counted_is_what_was_done(system: Cluster, worker: Worker, port: int) -> None:
    before = counted(port, "noetl_rows_total").get((*DRAIN, "cursor", "ok"), 0)
    execution = ran(system, "counts")
    frames = system.value(
        "SELECT count(*) FROM noetl.frame JOIN noetl.stage USING (stage_id) WHERE step_name = 'start' "
        "AND stage.kind = 'cursor' AND frame.status = 'COMPLETED'"
    )
    wait_for(lambda: counted(port, "noetl_frames_total")[*DRAIN, "cursor"] == frames, "frames are counted")
    assert counted(port, "noetl_rows_total")[*DRAIN, "cursor", "ok"] == before + ROWS
    assert counted(port, "noetl_row_seconds_count")[DRAIN] == before + ROWS
    assert counted(port, "noetl_claims_total")[*DRAIN, "filled"] == frames
    assert counted(port, "noetl_executions_total")["test/recovery", "completed"] >= 1
    assert execution.status() == "COMPLETED"


def test_counts_outlive_a_process_that_is_killed(system: Cluster, worker: Worker, port: int) -> None:
    before = counted(port, "noetl_rows_total").get((*DRAIN, "cursor", "ok"), 0)
    system.fill("killed", ROWS)
    execution = system.submit("killed", pause=0.05)
    wait_for(lambda: system.done("killed") > 5, "rows are at work")
    (busy, *_) = system.q("SELECT w.pid FROM noetl.run r JOIN noetl.worker w USING (worker_id)")
    os.kill(busy["pid"], signal.SIGKILL)
    assert execution.wait(timeout=60) == "COMPLETED"
    wait_for(lambda: sum(counted(port, "noetl_runs_died_total").values()) >= 1, "its end is counted")
    assert sum(counted(port, "noetl_reruns_total").values()) >= 1
    # What its process had written and not yet counted is all that may be missing.
    assert before + ROWS - 5 <= counted(port, "noetl_rows_total")[*DRAIN, "cursor", "ok"] <= before + ROWS
    folder = next(iter(worker.nodes().values())).environ()["PROMETHEUS_MULTIPROC_DIR"]
    places = Counter(name.partition("_")[0] for name in os.listdir(folder))
    assert places == {"counter": 3, "histogram": 3}, "the process that took its place goes on with its files"


def test_log_lines_are_objects_that_say_what_they_are_about(system: Cluster, worker: Worker) -> None:
    file = system.folder / "speaks.yaml"
    file.write_text(
        "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: speaks, path: test/speaks}\nworkflow:\n"
        "- step: talk\n  tool: {kind: python, name: say, code: 'print(\"one\\ntwo\")'}\n"
    )
    system.client.register(file)
    execution = system.client.submit("test/speaks")
    assert execution.wait(timeout=30) == "COMPLETED"
    frame = system.value("SELECT frame_id FROM noetl.frame WHERE execution_id = %s", execution.id)

    def lines() -> list[dict[str, str]]:
        # Before its log begins, Celery warns whoever is root.
        return [
            json.loads(line) for line in worker.text[worker.text.index('{"time"') :].splitlines() if line[:1] == "{"
        ]

    def spoken() -> list[dict[str, str]]:
        return [line for line in lines() if line["logger"] == "noetl_celery.task"]

    wait_for(lambda: len(spoken()) == 2, "both lines are there")
    names = {"execution_id": str(execution.id), "step": "talk", "frame_id": str(frame), "row": "0", "task": "say"}
    for line, text in zip(spoken(), ("one", "two"), strict=True):
        assert line == {"time": line["time"], "level": "INFO", "logger": "noetl_celery.task", "message": text, **names}
    assert any("died; its rows are run again" in line["message"] and "frame_id" in line for line in lines())


def test_a_second_worker_on_the_port_says_so(system: Cluster, worker: Worker, port: int) -> None:
    for command in (
        ["-m", "noetl_celery", "worker", "--metrics-port", str(port)],
        ["-m", "celery", "-A", "noetl_celery", "worker", "-P", "threads", "-n", "second@test"],
    ):
        done = subprocess.run(
            [sys.executable, *command],
            env=system.env | {"NOETL_METRICS_PORT": str(port)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 1, done.stderr
        assert f":{port}: Address already in use" in done.stderr
        assert "NOETL_METRICS_PORT" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_plain_celery_worker_is_counted_too(system: Cluster, worker: Worker) -> None:
    own = free_port(19600)
    node = system.start("plain", "-P", "prefork", "-c", "2", queues="plain", NOETL_METRICS_PORT=str(own))
    assert counted(own, "noetl_reruns_total") == {("crash",): 0, ("stop",): 0}
    node.ended = True
    node.process.terminate()
    node.process.wait(30)
    with pytest.raises(OSError, match="refused"):
        counted(own, "noetl_reruns_total")


def test_a_worker_ends_in_time_although_nobody_collects(system: Cluster) -> None:
    nowhere = system.worker("alone", "-c", "1", OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9")
    execution = ran(system, "nobody")
    assert execution.status() == "COMPLETED"
    nowhere.ended = True
    nowhere.process.terminate()
    assert nowhere.process.wait(40) == 0
    assert nowhere.text.count("spans cannot be sent") <= 3, "once for each process"

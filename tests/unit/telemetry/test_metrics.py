"""Metrics: their names keep to the conventions of Prometheus, and processes that count together are added up."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import values
from prometheus_client.parser import text_string_to_metric_families

from noetl_celery.cli.embedded import free_port
from noetl_celery.errors import ServiceError
from noetl_celery.settings import Settings, load
from noetl_celery.telemetry import declared, watch
from noetl_celery.telemetry.declared import Metric
from noetl_celery.telemetry.serving import Endpoint
from noetl_celery.telemetry.wanted import FOLDER

#: what one process does: two rows and a claim that failed
PROCESS = """
import sys
from noetl_celery.telemetry import declared as m
from noetl_celery.telemetry.counters import Counters
counters = Counters(sys.argv[1])
counters.add(m.ROWS, ("a/b", "drain", "cursor", "ok"), 2)
counters.add(m.ROWS, ("a/b", "drain", "cursor", "failed"), 0)
counters.observe(m.ROW_SECONDS, ("a/b", "drain"), 0.02)
counters.observe(m.ROW_SECONDS, ("a/b", "drain"), 500)
"""


def names(metric: Metric) -> str:
    return metric.name


@pytest.mark.parametrize("metric", declared.ALL, ids=names)
def test_a_metric_keeps_to_the_conventions(metric: Metric) -> None:
    assert re.fullmatch(r"noetl(_[a-z]+)+", metric.name)
    assert (metric.kind == "counter") == metric.name.endswith("_total")
    assert not re.search(r"_(count|sum|bucket|info|created)$", metric.name), "reserved"
    assert not re.search(r"gauge|counter|histogram|_(ms|millis\w*|minutes|hours)(_|$)", metric.name)
    assert metric.kind != "histogram" or metric.name.endswith("_seconds"), "a base unit"
    assert re.fullmatch(r"[A-Z].*\.", metric.help)
    for label in metric.labels:
        assert re.fullmatch(r"[a-z_]+", label)
        assert label not in {"le", "quantile", "job", "instance"}
        assert not label.endswith("id"), "an id has too many values"
    assert (metric.kind == "histogram") == bool(metric.buckets)
    assert list(metric.buckets) == sorted(set(metric.buckets))
    assert not metric.known or len(metric.labels) == 1


def test_no_name_is_used_twice() -> None:
    found = [metric.name for metric in declared.ALL]
    assert len(set(found)) == len(found)


def test_every_metric_is_listed() -> None:
    made = {value for value in vars(declared).values() if isinstance(value, Metric)}
    assert made == set(declared.ALL)


@pytest.fixture
def served() -> Settings:
    return load(metrics_port=free_port(19400), metrics_host="127.0.0.1")


def counted(settings: Settings) -> dict[str, dict[tuple[str, ...], float]]:
    """What the endpoint says: by name of a sample, by label values."""
    with urllib.request.urlopen(f"http://127.0.0.1:{settings.metrics_port}/metrics", timeout=10) as reply:
        assert reply.headers["Content-Type"].startswith("text/plain")
        text = reply.read().decode()
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def count(place: str, env: dict[str, str]) -> None:
    subprocess.run([sys.executable, "-c", PROCESS, place], env=os.environ | env, check=True, timeout=60)


def test_processes_are_added_up_and_none_is_forgotten(served: Settings) -> None:
    with Endpoint(served) as endpoint:
        count("bodies-1", endpoint.env)
        count("bodies-2", endpoint.env)
        count("bodies-1", endpoint.env)  # another process in the same place: the first one has ended
        found = counted(served)
        assert sum(found["noetl_rows_total"].values()) == 6
        assert len(found["noetl_rows_total"]) == 2, "an outcome that has not come is there as 0"
        assert list(found["noetl_row_seconds_count"].values()) == [6]
        assert found["noetl_reruns_total"] == {("crash",): 0, ("stop",): 0}
        folder = Path(endpoint.env[FOLDER])
        assert len(list(folder.glob("counter_*"))) == 2, "no more files than there are places"
    assert not folder.exists()


def test_without_a_port_nothing_is_served_or_counted() -> None:
    with Endpoint(load()) as endpoint:
        assert endpoint.env == {}


def test_a_port_in_use_is_said(served: Settings) -> None:
    with Endpoint(served) as first:
        with pytest.raises(ServiceError, match=rf"metrics cannot be served at 127.0.0.1:{served.metrics_port}.*in use"):
            Endpoint(served).open()
        count("bodies-1", first.env)
        assert counted(served)["noetl_rows_total"], "the first one goes on"


def test_where_nobody_asks_nothing_is_imported() -> None:
    code = (
        "import sys\n"
        "from noetl_celery.settings import load\n"
        "from noetl_celery.telemetry import watch\n"
        "watch.start(load(), 'x'); watch.lease_lost('lane'); watch.stop()\n"
        "assert not {'prometheus_client', 'opentelemetry'} & set(sys.modules), 'imported'"
    )
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", FOLDER))}
    subprocess.run([sys.executable, "-c", code], env=clean, check=True, timeout=60)


def test_a_folder_that_is_gone_is_said_and_the_work_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path / "gone"))
    monkeypatch.setattr(values, "ValueClass", values.ValueClass)
    watch.start(load(), "x")
    watch.lease_lost("lane")
    assert "nothing is counted here" in caplog.text


def test_nobody_has_the_calls_of_somebody() -> None:
    calls = [name for name in vars(watch.LaneWatch) if not name.startswith("_")]
    assert calls
    assert all(name in vars(watch._LaneWatch) for name in calls)

"""The dashboard and the alerts ask for metrics that there are."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from noetl_celery.telemetry import declared

ROOT = Path(__file__).parents[3]
BOARD = json.loads((ROOT / "deploy" / "grafana" / "noetl-celery.json").read_text())
RULES = [
    rule
    for group in yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
METRICS = {metric.name: metric for metric in declared.ALL}
#: what must be seen somewhere
WANTED = [
    *("rows_total", "retries_total", "claims_total", "row_seconds", "open_frames", "outbox_oldest_seconds"),
    *("queue_messages", "leases_lost_total", "reruns_total", "lock_waits"),
]


def asked(expression: str) -> list[tuple[str, str]]:
    """The metrics of a query, each with its selector."""
    return re.findall(r"\b(noetl_\w+)(?:\{([^}]*)\})?", expression)


def metric_of(name: str) -> declared.Metric:
    """The metric that a sample belongs to."""
    return METRICS.get(name) or METRICS[re.sub(r"_(bucket|sum|count)$", "", name)]


def check(expression: str) -> None:
    assert expression.count("(") == expression.count(")")
    found = asked(expression)
    assert found
    for name, selector in found:
        metric = metric_of(name)
        assert metric.name == name or metric.kind == "histogram", name
        labels = set(re.findall(r"(\w+)\s*[=!]~?", selector))
        assert labels <= set(metric.labels), expression
        grouped = re.findall(r"\bby \(([^)]*)\)", expression)
        assert {label.strip() for by in grouped for label in by.split(",")} <= {*metric.labels, "le"}, expression
        if metric.kind == "gauge":
            assert not re.search(rf"(rate|increase)\({name}", expression), f"{name} goes up and down"
        else:
            assert re.search(rf"(rate|increase)\({name}", expression), f"{name} only rises"
        assert "histogram_quantile" not in expression or (name.endswith("_bucket") and "le" in grouped[0])


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: str(panel["title"]))
def test_a_panel_asks_for_what_there_is(panel: dict[str, Any]) -> None:
    assert panel["targets"]
    for target in panel["targets"]:
        check(target["expr"])
        assert target["datasource"]["uid"] == "${datasource}"
        shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        known = {label for name, _ in asked(target["expr"]) for label in metric_of(name).labels}
        assert shown <= known
    refs = [target["refId"] for target in panel["targets"]]
    assert len(set(refs)) == len(refs)


@pytest.mark.parametrize("name", WANTED)
def test_the_board_shows_it(name: str) -> None:
    assert any(f"noetl_{name}" in target["expr"] for panel in PANELS for target in panel["targets"])


def test_the_board_has_a_sane_shape() -> None:
    assert BOARD["schemaVersion"] >= 36
    assert BOARD["uid"] == "noetl-celery"
    assert "id" not in BOARD
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(ids)) == len(ids)
    variables = {variable["name"]: variable for variable in BOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(BOARD))) - {"__rate_interval", "__all"}
    assert used == set(variables)
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
    for one, other in combinations([panel["gridPos"] for panel in BOARD["panels"]], 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_an_alert_asks_for_what_there_is(rule: dict[str, Any]) -> None:
    check(rule["expr"])
    assert re.fullmatch(r"Noetl[A-Z]\w+", rule["alert"])
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert rule["annotations"].keys() == {"summary", "description"}
    assert re.fullmatch(r"\d+[smh]", rule.get("for", "1m"))


def test_every_alert_is_explained() -> None:
    page = (ROOT / "docs" / "observability.md").read_text()
    assert [rule["alert"] for rule in RULES if f"`{rule['alert']}`" not in page] == []


def test_every_metric_is_explained_as_the_code_has_it() -> None:
    page = (ROOT / "docs" / "observability.md").read_text()
    shown = dict(re.findall(r"^\| `(noetl_\w+)` \| (.+) \|$", page, re.MULTILINE))
    expected = {}
    for metric in declared.ALL:
        labels = ", ".join(f"`{label}`" for label in metric.labels) or "–"
        expected[metric.name] = f"{metric.kind} | {labels} | {metric.help}"
    assert shown == expected

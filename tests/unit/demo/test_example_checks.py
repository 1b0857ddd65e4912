"""What the examples' last steps say of results that are not complete."""

from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import yaml

#: example → what its check compares when all is well, and what it must not accept
CHECKS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "queue_drain": ({"counts": {"rows": 2, "done": 2}, "expected": 2}, {"counts": {"rows": 2, "done": 1}}),
    "paginate_api": ({"patients": 2, "total": 2}, {"patients": 1}),
    "fan_out_reduce": (
        {"patients": 2, "branches": {"allergies": {"patients": 2, "records": 5}}},
        {"branches": {"allergies": {"patients": 1, "records": 5}}},
    ),
    "child_playbooks": (
        {"stored": {"billed": 7, "treated": 7}, "bills": [{"cents": 3}, {"cents": 4}]},
        {"stored": {"billed": 7, "treated": 8}},
    ),
    "csv_to_postgres": (
        {"read": {"clean": 2, "value": "3.50"}, "loaded": {"orders": 2, "value": "3.5"}, "rejects": []},
        {"loaded": {"orders": 1, "value": "3.5"}},
    ),
    "dead_letters": (
        {"counts": {"messages": 10, "done": 9, "dead": 1}, "max_dead": 0.2},
        {"counts": {"messages": 10, "done": 8, "dead": 1}},
    ),
    "adaptive_rate": (
        {
            "counts": {"done": 2, "patients": 2},
            "expected": 2,
            "before": {"requests": 1, "throttled": 0, "failed": 0},
            "after": {"requests": 3, "throttled": 0, "failed": 0},
        },
        {"counts": {"done": 1, "patients": 2}},
    ),
    "cursor_reentry": ({"counts": {"done": 2, "patients": 2}, "total": 2, "batches": 1}, {"total": 3}),
    "python_etl": ({"loaded": {"rows": 1, "readings": 2}, "extracted": 3, "rejected": 1}, {"extracted": 4}),
    "nightly_report": (
        {"rows": [{"reported": 3, "visits": 3, "made_by": "1"}], "execution": "1", "remarks": 0},
        {"rows": [{"reported": 2, "visits": 3, "made_by": "1"}]},
    ),
}


def check(playbooks: Path, name: str, names: dict[str, Any]) -> Any:
    """What the python task of the example's last step makes of these inputs."""
    *_, last = yaml.safe_load((playbooks / f"{name}.yaml").read_text())["workflow"]
    tasks = last["tool"] if isinstance(last["tool"], list) else [last["tool"]]
    [task] = [task for task in tasks if task["kind"] == "python"]
    assert set(task["input"]) == set(names)
    exec(task["code"], names := dict(names))
    return names["result"]


@pytest.mark.parametrize("name", CHECKS)
def test_a_complete_result_passes(playbooks: Path, name: str) -> None:
    complete, _ = CHECKS[name]
    assert check(playbooks, name, complete)


@pytest.mark.parametrize("name", CHECKS)
def test_an_incomplete_result_does_not(playbooks: Path, name: str) -> None:
    complete, missing = CHECKS[name]
    with pytest.raises(ValueError, match=r"\d"):
        check(playbooks, name, complete | missing)


def test_rows_of_the_etl_are_made_by_plain_python(playbooks: Path) -> None:
    steps = {step["step"]: step for step in yaml.safe_load((playbooks / "python_etl.yaml").read_text())["workflow"]}
    names: dict[str, Any] = {"mean": mean, "defaultdict": defaultdict}
    exec(steps["transform"]["tool"]["code"], names)
    records = [
        {"id": "a", "patient": 1, "recorded_on": "2025-03-02", "value": 10},
        {"id": "b", "patient": 1, "recorded_on": "2025-03-09", "value": 20},
        {"id": "c", "patient": 2, "recorded_on": "2025-04-01", "value": 500},
    ]
    assert names["main"]([records[:2], records[2:]], [1, 190]) == {
        "rows": [{"patient": 1, "month": "2025-03-01", "readings": 2, "mean": 15}],
        "rejected": [{"id": "c", "value": 500}],
        "extracted": 3,
    }

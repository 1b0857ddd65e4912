"""The example playbooks: their shape, and that they are accepted as they are."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from noetl_celery.cursors.registry import CursorRegistry
from noetl_celery.playbook import compile_playbook
from noetl_celery.tools.registry import ToolRegistry

ROOT = Path(__file__).parents[3] / "playbooks"
EXAMPLES = sorted(str(file.relative_to(ROOT)) for file in ROOT.rglob("*.yaml"))


@pytest.fixture(scope="session", params=EXAMPLES)
def example(request: pytest.FixtureRequest, playbooks: Path) -> Path:
    path: Path = playbooks / request.param
    return path


@pytest.fixture(scope="session")
def patient_flow(playbooks: Path) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((playbooks / "patient_flow" / "patient_flow.yaml").read_text())
    return document


def steps_of(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {step["step"]: step for step in document["workflow"]}


def test_every_example_is_a_playbook_whose_arcs_lead_somewhere(example: Path) -> None:
    document = yaml.safe_load(example.read_text())
    steps = steps_of(document)

    assert document["apiVersion"] == "noetl.io/v2"
    assert document["kind"] == "Playbook"
    assert document["metadata"]["path"].startswith("examples/")
    assert len(steps) == len(document["workflow"])
    targets = {arc["step"] for step in steps.values() for arc in step.get("next", {}).get("arcs", [])}
    assert targets == steps.keys() - {"start"}


def test_every_example_compiles(example: Path) -> None:
    compiled = compile_playbook(example.read_text(), file=str(example), tools=ToolRegistry(), cursors=CursorRegistry())

    assert compiled.warnings == ()
    assert compiled.plan.entry == "start"


def test_every_example_is_explained(example: Path) -> None:
    first, *_ = example.read_text().splitlines()
    assert first.startswith("# ")


def test_patient_flow_loops_back_for_every_data_type(patient_flow: dict[str, Any]) -> None:
    steps = steps_of(patient_flow)

    assert [arc["step"] for arc in steps["next_type"]["next"]["arcs"]] == ["fetch_pages", "validate"]
    assert steps["fetch_pages"]["next"]["arcs"] == [{"step": "next_type", "when": '{{ event.name == "loop.done" }}'}]
    assert "ctx.data_type" in steps["next_type"]["set"]


def test_patient_flow_claims_frames(patient_flow: dict[str, Any]) -> None:
    loop = steps_of(patient_flow)["fetch_pages"]["loop"]

    assert "FOR UPDATE SKIP LOCKED" in loop["cursor"]["claim"]
    assert "LIMIT {{ __frame_max_rows }}" in loop["cursor"]["claim"]
    assert loop["spec"]["mode"] == "cursor"
    assert loop["spec"]["max_in_flight"] == 2
    assert patient_flow["workload"]["frame_rows"] == 25
    assert patient_flow["workload"]["row_concurrency"] == 4


def test_patient_flow_pages_with_a_pipeline(patient_flow: dict[str, Any]) -> None:
    tasks = {task["name"]: task for task in steps_of(patient_flow)["fetch_pages"]["tool"]}
    rules = {name: task["spec"]["policy"]["rules"] for name, task in tasks.items()}

    assert list(tasks) == ["begin", "fetch", "save", "paginate", "finish"]
    assert [rule["then"]["do"] for rule in rules["fetch"][:2]] == ["retry", "fail"]
    assert rules["fetch"][2]["else"]["then"]["set_iter"].keys() == {"page", "total", "records", "token"}
    assert rules["paginate"][0]["then"] == {"do": "jump", "to": "fetch"}


@pytest.mark.parametrize(
    ("done", "all_passed", "missing"),
    [
        ({"a": 2, "b": 2}, True, []),
        ({"a": 2, "b": 1}, False, ["b"]),
        ({"a": 2}, False, ["b"]),
        ({}, False, ["a", "b"]),
    ],
)
def test_patient_flow_passes_only_if_every_data_type_is_complete(
    patient_flow: dict[str, Any], done: dict[str, int], all_passed: bool, missing: list[str]
) -> None:
    rows = [{"data_type": name, "expected": 2, "done": count} for name, count in done.items()]
    names: dict[str, Any] = {"rows": rows, "data_types": ["a", "b"]}

    exec(steps_of(patient_flow)["report"]["tool"]["code"], names)

    assert names["result"] == {"rows": rows, "missing": missing, "all_passed": all_passed}


def test_no_example_holds_a_secret(example: Path) -> None:
    text = yaml.safe_dump(yaml.safe_load(example.read_text()))
    assert "password" not in text
    assert "secret" not in text
    assert "://" not in text.replace("http://127.0.0.1", "")

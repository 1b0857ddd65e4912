"""The JSON Schema: up to date, explained, and of one mind with the models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from pydantic import BaseModel

from noetl_celery import cli
from noetl_celery.cursors.registry import CursorRegistry
from noetl_celery.errors import PlaybookInvalid, Problems
from noetl_celery.playbook import compile_playbook, model
from noetl_celery.playbook import schema as schema_module
from noetl_celery.playbook.schema import as_text, playbook_schema
from noetl_celery.playbook.schema_text import ALSO_READ, TEXTS
from noetl_celery.playbook.source import plain, read
from noetl_celery.tools.registry import BUILT_IN, ToolRegistry

ROOT = Path(__file__).parents[3]
SHIPPED = Path(schema_module.__file__).with_name("schema.json")
VALID = sorted((ROOT / "playbooks").rglob("*.yaml")) + sorted((ROOT / "tests").rglob("playbooks/*.yaml"))
HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: x}\n"


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return playbook_schema(ToolRegistry(), CursorRegistry().kinds())


@pytest.fixture(scope="module")
def validator(schema: dict[str, Any]) -> Any:
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)


def accepted(validator: Any, text: str) -> bool:
    return bool(validator.is_valid(plain(read(text, file="f.yaml", problems=Problems()))))


def compiles(text: str) -> bool:
    try:
        compile_playbook(text, file="f.yaml", tools=ToolRegistry(), cursors=CursorRegistry())
    except PlaybookInvalid:
        return False
    return True


def test_the_shipped_file_is_up_to_date(schema: dict[str, Any]) -> None:
    assert ToolRegistry().kinds() == sorted(BUILT_IN), "a plugin is installed: its kinds are not for the shipped file"
    said = "run: noetl-celery schema --output noetl_celery/playbook/schema.json"
    assert SHIPPED.read_text() == as_text(schema), said


def models() -> list[type[BaseModel]]:
    kinds = [value for value in vars(model).values() if isinstance(value, type) and issubclass(value, BaseModel)]
    return [kind for kind in kinds if kind.__module__ == model.__name__ and kind is not model.Model]


def test_every_key_is_explained_and_nothing_else() -> None:
    keys = {kind.__name__: {field.alias or name for name, field in kind.model_fields.items()} for kind in models()}
    keys["Task"] -= {"older"}
    assert {name: set(texts) for name, texts in TEXTS.items()} == keys
    assert ALSO_READ.keys() <= keys.keys()


@pytest.mark.parametrize("file", VALID, ids=lambda path: path.name)
def test_playbooks_that_are_in_order_are_accepted(validator: Any, file: Path) -> None:
    assert compiles(file.read_text())
    assert accepted(validator, file.read_text())


STEPS = [
    "{step: a}",
    "{name: a, desc: x, tool: {kind: noop, args: {x: 1}}}",
    "{step: a, tool: , next: , loop: , spec: , set: }",
    "{step: 1, tool: {kind: noop}}",
    "{step: a, tool: [{name: x, kind: noop}, {y: {kind: noop, result: 1}}]}",
    "{step: a, tool: {x: {kind: noop}, y: {kind: noop}}}",
    "{step: a, tool: http, url: 'http://x'}",
    "{step: a, loop: {collection: [1], element: x, mode: async, concurrency: 3}}",
    "{step: a, next: a}",
    "{step: a, next: [a, {step: a, cond: x}]}",
    "{step: a, next: {step: a}}",
    "{step: a, next: {spec: {mode: inclusive, on_no_match: fail}, arcs: [{step: a, when: true, args: '{{ x }}'}]}}",
    "{step: a, loop: {in: [1], iterator: x, spec: {max_in_flight: '{{ n }}', frame: {max_rows: '5'}}}}",
    "{step: a, loop: {iterator: x, cursor: {kind: postgres, credential: c, claim: UPDATE t SET x = 1}}}",
    "{step: a, tool: {kind: postgres, auth: x, command: SELECT 1, spec: {policy: {rules: [{do: continue}]}}}}",
    "{step: a, tool: {kind: noop, policy: {rules: [{when: x, then: {do: retry, attempts: 2}}, {else: {do: fail}}]}}}",
    "{step: a, tool: {kind: noop, policy: {rules: [{else: , then: {do: fail}}]}}}",
    "{step: a, tool: {kind: noop, policy: {rules: [{else: {then: {set_ctx: {x: 1}}}}]}}}",
    "{step: a, spec: {policy: {admit: {rules: [{when: x, then: {allow: true}}, {else: {allow: false}}]}}}}",
    "{step: a, tool: {kind: python, code: 'result = 1', libs: [json], output: {store: {kind: x}}}}",
]


@pytest.mark.parametrize("step", STEPS)
def test_every_way_to_write_a_step_is_accepted(validator: Any, step: str) -> None:
    text = f"{HEAD}workload:\nexecutor: {{spec: }}\nworkflow: [{step}]\n"
    assert compiles(text)
    assert accepted(validator, text)


BROKEN = [
    "workflow: []",
    "workflow: {a: 1}",
    "workflw: [{step: a}]",
    "workload: 5\nworkflow: [{step: a}]",
    "extra: 1\nworkflow: [{step: a}]",
    "executor: {spec: {entry_step: [a]}}\nworkflow: [{step: a}]",
    "keychain: {a: 1}\nworkflow: [{step: a}]",
    "workflow: [a]",
    "workflow: [{desc: a}]",
    "workflow: [{step: 'a b'}]",
    "workflow: [{step: a, tol: {kind: noop}}]",
    "workflow: [{step: a, tool: {url: x}}]",
    "workflow: [{step: a, tool: {kind: htp}}]",
    "workflow: [{step: a, tool: {kind: noop, resul: 1}}]",
    "workflow: [{step: a, tool: {kind: noop}, url: x}]",
    "workflow: [{step: a, tool: {kind: noop, input: [1]}}]",
    "workflow: [{step: a, tool: {kind: noop, policy: {rules: {do: fail}}}}]",
    "workflow: [{step: a, tool: {kind: noop, policy: {rules: [{do: retyr}]}}}]",
    "workflow: [{step: a, tool: {kind: noop, policy: {rules: [{when: x, then: {do: retry, atempts: 1}}]}}}]",
    "workflow: [{step: a, tool: {kind: noop, policy: {rules: [{else: {do: retry, attempts: 0}}]}}}]",
    "workflow: [{step: a, set: [1]}]",
    "workflow: [{step: a, next: {arcs: [{stp: a}]}}]",
    "workflow: [{step: a, next: {spec: {mode: exclusiv}, arcs: []}}]",
    "workflow: [{step: a, spec: {timeout: 0}}]",
    "workflow: [{step: a, spec: {timeout: soon}}]",
    "workflow: [{step: a, loop: {in: [1], iterator: 1x}}]",
    "workflow: [{step: a, loop: {in: [1], iterator: x, spec: {mode: paralel}}}]",
    "workflow: [{step: a, loop: {in: [1], iterator: x, spec: {max_in_flight: 1.5}}}]",
    "workflow: [{step: a, loop: {in: [1], iterator: x, spec: {frame: {max_row: 1}}}}]",
    "workflow: [{step: a, loop: {iterator: x, cursor: {kind: postgrs, auth: c, claim: x}}}]",
    "workflow: [{step: a, loop: {iterator: x, cursor: {auth: c, clam: UPDATE}}}]",
    "workflow: [{step: a, spec: {policy: {failure: {mode: never}}}}]",
]


@pytest.mark.parametrize("body", BROKEN)
def test_what_the_models_refuse_is_refused(validator: Any, body: str) -> None:
    text = f"{HEAD}{body}\n"
    assert not compiles(text)
    assert not accepted(validator, text)


@pytest.mark.parametrize(
    "head", ["kind: Playbook", "apiVersion: v1\nkind: Playbook", "apiVersion: noetl.io/v2\nkind: Job"]
)
def test_what_is_no_playbook_is_refused(validator: Any, head: str) -> None:
    assert not accepted(validator, f"{head}\nmetadata: {{name: x}}\nworkflow: [{{step: a}}]\n")


def test_the_command_prints_it_or_writes_it(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.run(["schema"]) == 0
    printed = json.loads(capfd.readouterr().out)
    assert printed["properties"]["workflow"]["items"] == {"$ref": "#/definitions/Step"}
    file = tmp_path / "schema.json"
    assert cli.run(["schema", "--output", str(file)]) == 0
    captured = capfd.readouterr()
    assert captured.out == ""
    assert f"$schema={file}" in captured.err
    assert json.loads(file.read_text()) == printed
    assert cli.run(["schema", "--output", str(tmp_path)]) == 2
    assert "cannot be written" in capfd.readouterr().err


def test_a_tool_that_does_not_name_its_keys_may_have_any() -> None:
    class Tools:
        def kinds(self) -> list[str]:
            return ["odd"]

        def keys(self, kind: str) -> None:
            return None

    validator = jsonschema.Draft7Validator(playbook_schema(Tools(), ["postgres"]))
    document = yaml.safe_load(f"{HEAD}workflow: [{{step: a, tool: {{kind: odd, whatever: 1}}}}]")
    assert validator.is_valid(document)
    assert not validator.is_valid(document | {"workflow": [{"step": "a", "tool": {"kind": "noop"}}]})

"""A JSON Schema of the language, for editors: made from the models, with the spellings that are read besides.

It knows shapes, keys and values. What needs the whole playbook (steps that are not there, templates that do not parse)
is found by ``lint``.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, Protocol

from pydantic.json_schema import models_json_schema

from noetl_celery.playbook import model
from noetl_celery.playbook.schema_text import ALSO_READ, TEXTS
from noetl_celery.playbook.tasks import CHILD_KIND

_REF = "#/definitions/"
#: what an empty key (``next:`` with nothing after it) is read as: as if it were not there
_MAY_BE_EMPTY: Mapping[str, Collection[str]] = {
    "Document": ("workload", "executor", "workbook", "keychain"),
    "Executor": ("spec",),
    "Step": ("tool", "loop", "next", "spec", "input", "set"),
    "Task": ("policy", "input", "set", "spec"),
    "LoopSpec": ("frame", "policy"),
    "Next": ("spec",),
    "PolicyRule": ("then", "else"),
}
_WORKBOOK = "workbook"
_CALL_KEYS = frozenset({"payload", "retry"}) | model.Call.model_fields.keys()

Json = dict[str, Any]


class Kinds(Protocol):
    """What of the installed tools goes into the schema."""

    def kinds(self) -> Collection[str]:
        """The kinds there are."""
        ...

    def keys(self, kind: str) -> frozenset[str] | None:
        """Every key of a kind; None if it does not say."""
        ...


def playbook_schema(tools: Kinds, cursors: Collection[str]) -> Json:
    """The schema (draft 7, which editors know best); the same for the same models and kinds."""
    models = (model.Document, model.Step, model.KeychainEntry)
    _, made = models_json_schema([(kind, "validation") for kind in models], ref_template=_REF + "{model}")
    definitions = {name: _plain(name, found) for name, found in made["$defs"].items()}
    definitions["Task"] = _task(definitions["Task"], tools)
    definitions["PolicyRule"] = _rule(definitions["PolicyRule"], definitions["Then"], "Then")
    definitions["Admit"] = _rule(definitions["Admit"], definitions["AdmitThen"], "AdmitThen")
    definitions["Step"] = _step(definitions["Step"])
    definitions["Cursor"]["properties"]["kind"] |= {"enum": sorted(cursors)}
    definitions["Labelled"] = _labelled()
    for name, keys in ALSO_READ.items():
        for key, instead in keys.items():
            definitions[name]["properties"].setdefault(key, _other_spelling(key, instead))
    for name, empty in _MAY_BE_EMPTY.items():
        for key in empty:
            properties = definitions[name]["properties"]
            properties[key] = _or_empty(properties.get(key, {}))
    root = definitions.pop("Document")
    root["properties"]["workflow"] |= {"items": _ref("Step"), "minItems": 1}
    root["properties"]["keychain"] = _or_empty(
        {"type": "array", "items": _ref("KeychainEntry")} | _text("Document", "keychain")
    )
    head = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "NoETL playbook (noetl.io/v2)"}
    return {**head, **root, "title": head["title"], "definitions": dict(sorted(definitions.items()))}


def as_text(schema: Json) -> str:
    """The schema as a file: stable, a key a line."""
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def _plain(name: str, found: Json) -> Json:
    """A model's own schema without what editors have no use for, and with what each key means."""
    cleaned: Json = _without_titles(found)
    cleaned.pop("description", None)
    for key, value in cleaned.get("properties", {}).items():
        default = value.pop("default", None)
        cleaned["properties"][key] = _described(value, TEXTS.get(name, {}).get(key))
        if default is not None and not isinstance(default, dict | list):
            cleaned["properties"][key]["default"] = default
    return cleaned


def _without_titles(value: Any) -> Any:
    if isinstance(value, dict):
        # A property may be called `title`; its value is then a mapping.
        return {
            key: _without_titles(inner) for key, inner in value.items() if key != "title" or isinstance(inner, dict)
        }
    return [_without_titles(item) for item in value] if isinstance(value, list) else value


def _described(value: Json, text: str | None) -> Json:
    if text is None:
        return value
    return {"allOf": [value], "description": text} if "$ref" in value else {**value, "description": text}


def _task(task: Json, tools: Kinds) -> Json:
    """A task: our keys, and those of its kind. Keys may stand in its ``spec`` as well."""
    task["properties"].pop("older")
    own = (
        task["properties"].keys() | ALSO_READ["Task"].keys() | model.Step.model_fields.keys() - {"step", "loop", "tool"}
    )
    kinds = sorted({*tools.kinds(), CHILD_KIND, _WORKBOOK})
    task["properties"]["kind"] |= {"type": "string", "enum": kinds}
    policy = {"type": "object", "properties": {"policy": _ref("TaskPolicy")}}
    task["properties"]["spec"] = {**policy, "description": "the same keys may stand here; `policy` usually does"}
    cases = []
    for kind in kinds:
        keys = _CALL_KEYS if kind == CHILD_KIND else tools.keys(kind) if kind in tools.kinds() else None
        if keys is None:
            continue
        case: Json = {"propertyNames": {"enum": sorted(keys | own)}}
        case["properties"] = {key: {} for key in sorted(keys - own)}
        cases.append({"if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]}, "then": case})
    task["allOf"] = cases
    return task


def _rule(rule: Json, then: Json, name: str) -> Json:
    """``{when, then}``, ``{else: {then: …}}``, ``{else: {do: …}}`` and the keys of ``then`` right in the rule."""
    inside = {"type": "object", "properties": {"then": _ref(name)}, "required": ["then"], "additionalProperties": False}
    rule["properties"]["else"] = {
        "anyOf": [inside, _ref(name)],
        "description": "what is done if no rule before it holds",
    }
    for key, value in then["properties"].items():
        rule["properties"].setdefault(key, value)
    rule.pop("required", None)
    return rule


def _step(step: Json) -> Json:
    """A step: every way to write its tool and where it goes on."""
    many = {"type": "array", "items": {"anyOf": [_ref("Task"), _ref("Labelled")]}}
    older = {"type": "string", "deprecationMessage": "older form: write `tool: {kind: …}`"}
    step["properties"]["tool"] = {"anyOf": [_ref("Task"), many, _ref("Labelled"), older]} | _text("Step", "tool")
    arcs = {"type": "array", "items": {"anyOf": [_ref("ArcModel"), {"type": "string"}]}}
    following = [_ref("Next"), _ref("ArcModel"), arcs, {"type": "string"}]
    step["properties"]["next"] = {"anyOf": following} | _text("Step", "next")
    step.pop("required")
    step["anyOf"] = [{"required": ["step"]}, {"required": ["name"]}]
    # The keys of a tool stand beside it in the older form only.
    names = sorted(step["properties"].keys() | ALSO_READ["Step"].keys())
    step.pop("additionalProperties")
    step["if"] = {"properties": {"tool": {"type": "string"}}, "required": ["tool"]}
    step["else"] = {"propertyNames": {"enum": names}}
    return step


def _labelled() -> Json:
    """``label: {kind: …}``, the other way to name tasks."""
    return {
        "type": "object",
        "properties": {"kind": False},
        "additionalProperties": _ref("Task"),
        "minProperties": 1,
    }


def _other_spelling(key: str, instead: str | None) -> Json:
    if instead is None:
        return {"description": "read as well"} if key != "desc" else {"description": "for people"}
    return {"description": f"older form: write {instead}", "deprecationMessage": f"older form: write {instead}"}


def _or_empty(value: Json) -> Json:
    """The value, or nothing after its key."""
    shown: Json = {key: value[key] for key in ("description", "default") if key in value}
    inner = {key: item for key, item in value.items() if key not in shown}
    return {"anyOf": [inner, {"type": "null"}]} | shown if inner else shown


def _ref(name: str) -> Json:
    return {"$ref": _REF + name}


def _text(name: str, key: str) -> Json:
    return {"description": TEXTS[name][key]}

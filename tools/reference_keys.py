"""The tables of docs/keys.md, from the JSON Schema of playbooks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from noetl_celery.cursors.registry import CursorRegistry
from noetl_celery.playbook.schema import playbook_schema
from noetl_celery.tools.registry import ToolRegistry

_OF = "#/definitions/"
#: how the page calls the mappings that a value may be
_TITLES = {
    "ArcModel": "Arc",
    "AdmitRules": "Admission",
    "Admit": "Admission rule",
    "AdmitThen": "Admission: then",
    "Reduction": "Aggregate",
}
#: mappings of free keys: labels of tasks
_FREE = {"Labelled"}


def tables(_: str) -> str:
    """A table of keys for the document and each mapping in it, in the order in which one meets them."""
    schema = playbook_schema(ToolRegistry(), CursorRegistry().kinds())
    order: list[str] = []
    _visit(schema, schema["definitions"], order)
    parts = [_table("Document", schema)]
    parts += [_table(_title(name), schema["definitions"][name]) for name in order]
    return "\n\n".join(parts)


def _visit(node: Any, definitions: dict[str, Any], order: list[str]) -> None:
    for name in _references(node):
        if name not in order and name not in _FREE:
            order.append(name)
            _visit(definitions[name], definitions, order)


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if str(node.get("$ref", "")).startswith(_OF):
            yield node["$ref"].removeprefix(_OF)
        for value in node.values():
            yield from _references(value)
    elif isinstance(node, list):
        for value in node:
            yield from _references(value)


def _title(name: str) -> str:
    words = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name).strip()
    return _TITLES.get(name, words.capitalize())


def _anchor(name: str) -> str:
    return _title(name).lower().replace(" ", "-").replace(":", "")


def _table(title: str, node: dict[str, Any]) -> str:
    required = node.get("required", ())
    rows = [
        f"| `{key}`{' (required)' if key in required else ''} | {_values(value)} | {value.get('description', '')} |"
        for key, value in sorted(node["properties"].items(), key=lambda item: "deprecationMessage" in item[1])
    ]
    return "\n".join([f"## {title}", "", "| key | values | meaning |", "|---|---|---|", *rows])


def _values(value: dict[str, Any]) -> str:
    found = dict.fromkeys(_kinds(value))
    shown = [text for text in found if text] or ["anything"]
    default = value.get("default")
    return ", ".join(shown) + (
        f"; `{str(default).lower() if isinstance(default, bool) else default}` if not given"
        if default is not None
        else ""
    )


def _kinds(value: Any) -> Iterator[str]:
    """The kinds of values that are taken, without the empty one."""
    if not isinstance(value, dict):
        return
    if reference := str(value.get("$ref", "")).removeprefix(_OF):
        yield "tasks by their labels" if reference in _FREE else f"[{_title(reference).lower()}](#{_anchor(reference)})"
    elif "enum" in value or "const" in value:
        yield from (f"`{one}`" for one in value.get("enum", [value.get("const")]))
    elif value.get("type") == "array":
        inside = list(dict.fromkeys(_kinds(value.get("items", {}))))
        yield f"list of {' or '.join(inside)}" if inside else "list"
    elif "type" in value:
        kinds = value["type"] if isinstance(value["type"], list) else [value["type"]]
        words = {"object": "mapping", "string": "text", "integer": "number", "boolean": "`true`, `false`"}
        yield from (words.get(kind, kind) for kind in kinds if kind != "null")
    for several in ("anyOf", "oneOf", "allOf"):
        for one in value.get(several, ()):
            yield from _kinds(one)

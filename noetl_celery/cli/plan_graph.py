"""A playbook's outline as a graph for Mermaid and Graphviz."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from noetl_celery.playbook.outline import CONDITION, label, shortened

_MERMAID = {"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "&": "#amp;", "|": "#124;", "`": "#96;"}
_MERMAID |= {"\\": "#92;", "[": "#91;", "]": "#93;", "{": "#123;", "}": "#125;", "(": "#40;", ")": "#41;"}


def mermaid(data: Mapping[str, Any]) -> str:
    """A Mermaid flowchart. Names are labels only, so that anything may stand in them."""
    ids = _ids(data)
    lines = ["flowchart TD"]
    for step in data["steps"]:
        text = "<br/>".join(_mermaid_text(line) for line in label(step))
        opening, closing = ("[[", "]]") if step["loop"] else ("[", "]") if step["tasks"] else ("{{", "}}")
        lines.append(f'  {ids[step["name"]]}{opening}"{text}"{closing}')
    for source, arc in _arcs(data):
        when = f'|"{_mermaid_text(shortened(arc["when"], CONDITION))}"|' if arc["when"] else ""
        lines.append(f"  {ids[source]} {'-.->' if arc['back'] else '-->'}{when} {ids[arc['step']]}")
    lines.append(f"  style {ids[data['entry']]} stroke-width:3px")
    return "\n".join(lines)


def dot(data: Mapping[str, Any]) -> str:
    """A Graphviz digraph."""
    ids = _ids(data)
    lines = [f"digraph {_dot_text([data['path']])} {{", "  rankdir=TB", "  node [shape=box]"]
    for step in data["steps"]:
        shape = ", peripheries=2" if step["loop"] else "" if step["tasks"] else ", shape=diamond"
        bold = ", penwidth=2" if step["name"] == data["entry"] else ""
        lines.append(f"  {ids[step['name']]} [label={_dot_text(label(step))}{shape}{bold}]")
    for source, arc in _arcs(data):
        given = [f"label={_dot_text([shortened(arc['when'], CONDITION)])}"] if arc["when"] else []
        given += ["style=dashed"] if arc["back"] else []
        attributes = f" [{', '.join(given)}]" if given else ""
        lines.append(f"  {ids[source]} -> {ids[arc['step']]}{attributes}")
    return "\n".join([*lines, "}"])


def _ids(data: Mapping[str, Any]) -> dict[str, str]:
    return {step["name"]: f"s{number}" for number, step in enumerate(data["steps"])}


def _arcs(data: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    return ((step["name"], arc) for step in data["steps"] for arc in step["next"]["arcs"])


def _mermaid_text(text: str) -> str:
    return "".join(_MERMAID.get(char, char if char.isprintable() else " ") for char in text)


def _dot_text(lines: list[str]) -> str:
    clean = ["".join(char if char.isprintable() else " " for char in line) for line in lines]
    escaped = (line.replace("\\", "\\\\").replace('"', '\\"') for line in clean)
    return '"' + "\\n".join(escaped) + '"'

"""Catalogs of tools and cursors for tests, and the shortest way to compile a workflow."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import pytest

from noetl_celery.errors import PlaybookInvalid
from noetl_celery.playbook import Compiled, Plan, compile_playbook

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: test, path: tests/test}\n"


class Tools:
    """Four kinds; ``postgres`` needs a command, ``python`` keeps its code."""

    def kinds(self) -> Collection[str]:
        return {"http", "noop", "postgres", "python"}

    def check(self, kind: str, config: Mapping[str, Any]) -> Sequence[tuple[str | None, str]]:
        if kind == "postgres" and not {"command", "query"} & set(config):
            return [(None, "needs `command` or `query`")]
        if kind == "http" and not isinstance(config.get("url"), str):
            return [("url", "must be text")]
        return []

    def raw_keys(self, kind: str) -> frozenset[str]:
        return frozenset({"code"}) if kind == "python" else frozenset()


class Cursors:
    """One kind, which needs ``auth``."""

    def kinds(self) -> Collection[str]:
        return ["postgres"]

    def check(self, kind: str, config: Mapping[str, Any]) -> Sequence[tuple[str | None, str]]:
        return [] if "auth" in config else [("auth", "needs `auth`")]


def compiled(workflow: str, head: str = HEAD) -> Compiled:
    """Compiles the text of a workflow (the part below ``workflow:``)."""
    text = head + "workflow:\n" + textwrap.dedent(workflow).strip("\n") + "\n"
    return compile_playbook(text, file="f.yaml", tools=Tools(), cursors=Cursors())


def plan(workflow: str, head: str = HEAD) -> Plan:
    return compiled(workflow, head).plan


def refused(workflow: str, head: str = HEAD) -> list[str]:
    """What is wrong, as lines ``line:column: …`` (counted from the line after ``workflow:``)."""
    with pytest.raises(PlaybookInvalid) as caught:
        compiled(workflow, head)
    above = head.count("\n") + 1
    lines = []
    for problem in caught.value.problems:
        assert problem.file == "f.yaml"
        assert problem.line is not None
        assert not problem.warning
        rest = str(problem).split(":", 3)[3].strip()
        lines.append(f"{problem.line - above}:{problem.column}: {rest}")
    return lines


def warned(workflow: str, head: str = HEAD) -> list[str]:
    return [str(problem) for problem in compiled(workflow, head).warnings]

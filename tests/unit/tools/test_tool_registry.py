"""Finding tools by kind, and outcomes from whatever a tool does."""

from __future__ import annotations

import importlib.metadata
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from noetl_celery.errors import ErrorInfo, InputError, TemplateError, ToolError
from noetl_celery.tools import plugins
from noetl_celery.tools.base import Reply, Tool, ToolCall
from noetl_celery.tools.noop import NoopTool
from noetl_celery.tools.outcome import run_tool
from noetl_celery.tools.registry import BUILT_IN, GROUP, ToolRegistry


class Scripted:
    """A tool that returns or raises what it was given."""

    kind = "scripted"
    raw_keys: frozenset[str] = frozenset({"raw"})

    def __init__(self, does: Any = None) -> None:
        self.does = does
        self.closed = 0

    def check(self, config: Mapping[str, Any]) -> Sequence[tuple[str | None, str]]:
        return [("a", "wrong")]

    def run(self, call: ToolCall) -> Any:
        if isinstance(self.does, Exception):
            raise self.does
        return self.does

    def close(self) -> None:
        self.closed += 1


def call(**config: Any) -> ToolCall:
    return ToolCall(config, {}, lambda name: {}, print, {})


def entry_points(monkeypatch: pytest.MonkeyPatch, **targets: str) -> None:
    points = [importlib.metadata.EntryPoint(name, target, GROUP) for name, target in targets.items()]
    monkeypatch.setattr(plugins, "entry_points", lambda group: points)


def test_built_in_kinds_need_no_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    entry_points(monkeypatch)
    registry = ToolRegistry()
    assert registry.kinds() == sorted(BUILT_IN)
    for kind in BUILT_IN:
        tool = registry.get(kind)
        assert isinstance(tool, Tool)
        assert tool.kind == kind
        assert registry.get(kind) is tool
    registry.close()
    registry.close()


def test_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    entry_points(monkeypatch, mine=f"{__name__}:Scripted", broken="no_such_module:X", odd="builtins:dict")
    registry = ToolRegistry()
    assert registry.kinds() == sorted([*BUILT_IN, "broken", "mine", "odd"])
    assert registry.check("mine", {}) == [("a", "wrong")]
    assert registry.raw_keys("mine") == {"raw"}
    assert registry.raw_keys("broken") == frozenset()
    [(key, message)] = registry.check("broken", {})
    assert (key, "cannot be loaded" in message) == ("kind", True)
    with pytest.raises(InputError, match="`broken` cannot be loaded: ModuleNotFoundError"):
        registry.get("broken")
    with pytest.raises(InputError, match="`odd` is not a tool: dict"):
        registry.get("odd")
    registry.close()
    mine = registry.get("mine")
    assert isinstance(mine, Scripted)
    assert mine.closed == 1


def test_unknown_kinds() -> None:
    registry = ToolRegistry([Scripted()])
    with pytest.raises(InputError, match=r"unknown tool kind `postgre` \(did you mean `postgres`\?\)"):
        registry.get("postgre")
    with pytest.raises(InputError, match=r"known kinds: .*http, noop, postgres, python, scripted"):
        registry.get("qqqq")
    assert registry.check("snowflake", {})[0][0] == "kind"


def test_noop() -> None:
    tool = NoopTool()
    assert run_tool(tool, call(result={"a": 1})).data == {"a": 1}
    assert run_tool(tool, call()).data is None
    assert tool.check({"result": 1, "desc": "x"}) == []
    assert tool.check({"reslt": 1}) == [("reslt", "unknown key `reslt`: did you mean `result`?")]


def test_outcomes_of_success() -> None:
    ticks = itertools.count(10.0, 1.5)
    outcome = run_tool(Scripted((1, {2})), call(), clock=lambda: next(ticks))
    assert (outcome.ok, outcome.data, outcome.meta) == (True, [1, [2]], {"duration": 1.5})
    reply = run_tool(Scripted(Reply({"a": b"x"}, http={"status": 200})), call())
    assert (reply.data, reply.http, reply.pg) == ({"a": "eA=="}, {"status": 200}, {})


@pytest.mark.parametrize(
    ("raised", "kind", "message"),
    [
        (ToolError(ErrorInfo("auth", "no")), "auth", "no"),
        (TemplateError("`x` is undefined"), "template", "`x` is undefined"),
        (ValueError("oops"), "internal", "ValueError: oops"),
    ],
)
def test_outcomes_of_failure(raised: Exception, kind: str, message: str) -> None:
    outcome = run_tool(Scripted(raised), call())
    assert outcome.error is not None
    assert (outcome.error.kind, outcome.error.message) == (kind, message)
    assert "duration" in outcome.meta


def test_an_error_brings_its_data() -> None:
    error = ToolError(ErrorInfo("x", "y"), extra={"http": {"status": 500}, "data": {"body": (1,)}, "pg": None})
    outcome = run_tool(Scripted(error), call())
    assert (outcome.http, outcome.data, outcome.pg) == ({"status": 500}, {"body": [1]}, {})
    odd = run_tool(Scripted(ToolError(ErrorInfo("x", "y"), extra={"data": object()})), call())
    assert odd.data is None


def test_a_result_that_is_no_json() -> None:
    outcome = run_tool(Scripted({"a": [object()]}), call())
    assert outcome.error is not None
    assert outcome.error.kind == "result_type"
    assert "type object" in outcome.error.message
    assert "a.0" in outcome.error.message

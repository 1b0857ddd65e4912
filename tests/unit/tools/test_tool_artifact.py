"""The tool `artifact`: what is wrong with its keys, and what it asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from noetl_celery.template.lazy import at, parse_path, path_text
from noetl_celery.tools.artifact import ArtifactTool
from noetl_celery.tools.base import Tool, ToolCall
from noetl_celery.tools.outcome import run_tool

PLACE = {"result_id": "7", "bytes": 100}
VALUE = {"rows": [{"name": "a"}, {"name": "b"}], "a key": {"": 1}}


def call(config: Mapping[str, Any], given: Mapping[str, Any], asked: list[Any]) -> ToolCall:
    def kept(place: Mapping[str, Any]) -> Any:
        asked.append(place)
        return {"7": VALUE}[place["result_id"]]

    return ToolCall(config, given, credential=lambda name: {}, print=print, names={}, kept=kept)


@pytest.mark.parametrize(
    ("config", "given", "data"),
    [
        ({"action": "get"}, {"result_ref": PLACE}, VALUE),
        ({"result_ref": PLACE}, {}, VALUE),
        ({"path": "rows[1].name"}, {"result_ref": PLACE}, "b"),
        ({}, {"result_ref": PLACE, "path": "['a key']['']"}, 1),
    ],
)
def test_what_it_fetches(config: Mapping[str, Any], given: Mapping[str, Any], data: Any) -> None:
    asked: list[Any] = []
    outcome = run_tool(ArtifactTool(), call(config, given, asked))
    assert (outcome.error, outcome.data) == (None, {"data": data})
    assert asked == [PLACE]


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({}, "config", "`result_ref` must be what `_ref` of a result says"),
        ({"result_ref": VALUE}, "config", "a result that is small has none"),
        ({"result_ref": {"result_id": "8"}}, "not_found", "was it deleted?"),
        ({"result_ref": PLACE, "path": "rows.x"}, "not_found", "there is no `rows.x`: rows has no 'x'"),
        ({"result_ref": PLACE, "path": "x"}, "not_found", "there is no `x`: the result has no 'x'"),
        ({"result_ref": PLACE, "path": "x["}, "config", "is no path"),
        ({"result_ref": PLACE, "action": "put"}, "config", "`action` can only be `get`, not 'put'"),
    ],
)
def test_what_it_cannot_fetch(given: Mapping[str, Any], kind: str, message: str) -> None:
    error = run_tool(ArtifactTool(), call({}, given, [])).error
    assert error is not None
    assert error.kind == kind
    assert message in error.message


def test_a_call_that_nobody_gave_results_finds_none() -> None:
    bare = ToolCall({"result_ref": PLACE}, {}, credential=lambda name: {}, print=print, names={})
    error = run_tool(ArtifactTool(), bare).error
    assert error is not None
    assert error.kind == "not_found"


def test_its_keys_are_checked() -> None:
    tool = ArtifactTool()
    assert isinstance(tool, Tool)
    assert tool.check({"kind": "artifact", "action": "get", "path": "a[0]", "result_ref": "{{ x }}"}) == []
    assert tool.check({"action": "{{ x }}", "path": "{{ x }}"}) == []
    found = dict(tool.check({"action": "put", "path": "a..b", "resultref": 1}))
    assert found["action"] == "`action` can only be `get`, not 'put'"
    assert "is no path" in found["path"]
    assert "did you mean `result_ref`?" in found["resultref"]


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("", ()),
        ("a", ("a",)),
        ("a.b[3].c", ("a", "b", 3, "c")),
        ("[0][-1]", (0, -1)),
        ("['a key'].b", ("a key", "b")),
        ("a['x.y'][0]", ("a", "x.y", 0)),
    ],
)
def test_paths(text: str, path: tuple[Any, ...]) -> None:
    assert parse_path(text) == path
    assert path_text(path) == text


@pytest.mark.parametrize("text", [".a", "a.", "a..b", "a[", "a[]", "a[x]", "]", "a['b]"])
def test_what_is_no_path(text: str) -> None:
    with pytest.raises(ValueError, match="is no path"):
        parse_path(text)


def test_a_path_leads_through_keys_and_indexes() -> None:
    assert at(VALUE, ("rows", -1, "name")) == "b"
    assert at({"0": "text"}, (0,)) == "text"
    with pytest.raises(KeyError, match=r"there is no `rows\[5\]\.name`: rows has no 5"):
        at(VALUE, ("rows", 5, "name"))

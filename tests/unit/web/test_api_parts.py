"""The parts of the HTTP API that need no request: cursors, views, what content may be, the OpenAPI document."""

from __future__ import annotations

import base64
import datetime as dt
from typing import Any

import pytest
import schemathesis

from noetl_celery.errors import InputError
from noetl_celery.ids import id_of, new_id
from noetl_celery.report import StepProgress
from noetl_celery.settings import load
from noetl_celery.web.api import views
from noetl_celery.web.api.catalog import text_of
from noetl_celery.web.api.paging import cursor_of, cut, parts_of
from noetl_celery.web.app import create

NOW = dt.datetime(2026, 3, 2, 9, 30, 0, 125_000, tzinfo=dt.UTC)
METHODS = {"get", "post", "put", "delete"}
PLAYBOOK = "kind: Playbook\n"


def test_a_cursor_carries_a_place() -> None:
    assert parts_of(cursor_of(NOW, 2**63 - 1), dt.datetime, int) == (NOW, 2**63 - 1)
    assert parts_of(cursor_of("a/b–ü"), str) == ("a/b–ü",)
    assert parts_of(None, str) is None


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "x",
        "?",
        "ü",
        cursor_of(),
        cursor_of(1, 2),
        cursor_of("1"),
        cursor_of(-1),
        cursor_of(2**63),
        base64.b64encode(b"[true]").decode(),
        base64.b64encode(b"[1.5]").decode(),
        base64.b64encode(b"{}").decode(),
        base64.b64encode(b"\xff").decode(),
        base64.b64encode(b"[" * 30_000).decode(),
        base64.b64encode(b"[" + b"9" * 5000 + b"]").decode(),
    ],
)
def test_what_is_no_cursor_of_a_list(cursor: str) -> None:
    with pytest.raises(InputError, match="none of this list"):
        parts_of(cursor, int)


@pytest.mark.parametrize(
    ("cursor", "kind"),
    [(cursor_of("2026-01-01T00:00:00"), dt.datetime), (cursor_of("\0"), str), ("WyJcdWQ4MDAiXQ", str)],
    ids=["no zone", "NUL", "half a surrogate pair"],
)
def test_places_that_postgresql_does_not_know(cursor: str, kind: type[Any]) -> None:
    with pytest.raises(InputError):
        parts_of(cursor, kind)


def test_one_row_more_says_that_there_is_another_page() -> None:
    rows = [{"n": 1}, {"n": 2}, {"n": 3}]
    assert cut(rows, 2) == (rows[:2], {"n": 2})
    assert cut(rows, 3) == (rows, None)
    assert cut([], 3) == ([], None)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (PLAYBOOK, PLAYBOOK),
        (base64.b64encode(PLAYBOOK.encode()).decode(), PLAYBOOK),
        (base64.encodebytes(PLAYBOOK.encode() * 9).decode(), PLAYBOOK * 9),
        ("abc", "abc"),  # of no length that base64 has
        ("////", "////"),  # bytes that are no text
        ("", ""),
    ],
)
def test_a_playbook_may_come_in_base64(content: str, text: str) -> None:
    assert text_of(content) == text


def event(**parts: Any) -> dict[str, Any]:
    empty = dict.fromkeys(("parent_event_id", "node_name", "result", "context", "stage_id"))
    return {**empty, "event_id": 2**62, "execution_id": 17, "created_at": NOW, **parts}


def test_an_event_has_ids_as_text_and_the_second_names() -> None:
    shown = views.event(event(parent_event_id=2**62 - 1, node_name="start", stage_id=3))
    assert (shown["event_id"], shown["parent_event_id"]) == (str(2**62), str(2**62 - 1))
    assert (shown["execution_id"], shown["stage_id"]) == ("17", "3")
    assert (shown["node_id"], shown["timestamp"], shown["error"]) == ("start", NOW, None)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"result": {"error": {"message": "503"}}}, "503"),
        ({"result": {"error": "gone"}}, "gone"),
        ({"context": {"error": {"message": "late"}}}, "late"),
        ({"result": {"error": None}, "context": [1]}, None),
        ({"result": "text"}, None),
    ],
)
def test_the_error_that_an_event_tells_of(parts: dict[str, Any], message: str | None) -> None:
    assert views.event(event(**parts))["error"] == message


def open_step(done: int, total: int | None) -> StepProgress:
    return StepProgress(1, "s", 1, "cursor", done, 0, 1, 1, 1, 1.0, total)


@pytest.mark.parametrize(
    ("status", "steps", "percent"),
    [
        ("PENDING", [], 0),
        ("RUNNING", [open_step(5, None)], 0),
        ("RUNNING", [open_step(5, 20), open_step(9, None)], 25),
        ("RUNNING", [open_step(5, 20), open_step(20, 20)], 62),
        ("RUNNING", [open_step(30, 20)], 99),
        ("RUNNING", [open_step(0, 0)], 0),
        ("FAILED", [], 100),
    ],
)
def test_progress_in_percent(status: str, steps: list[StepProgress], percent: int) -> None:
    assert views.progress(status, steps) == percent


@pytest.mark.parametrize(
    ("page", "total", "pages", "following", "before"),
    [(1, 0, 1, False, False), (1, 10, 1, False, False), (1, 11, 2, True, False), (2, 11, 2, False, True)],
)
def test_pages_as_noetl_counts_them(page: int, total: int, pages: int, following: bool, before: bool) -> None:
    shown = views.pagination(page, 10, total)
    assert (shown["total_pages"], shown["has_next"], shown["has_prev"]) == (pages, following, before)


def test_an_id_of_words_is_always_the_same_and_never_drawn() -> None:
    assert id_of("submit", "a", "bc") == id_of("submit", "a", "bc") != id_of("submit", "ab", "c")
    assert new_id() < 2**62 <= id_of("submit", "a", "b") < 9 * 10**18


# -- the document ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    found: dict[str, Any] = create(load(), token="x" * 16).openapi()
    return found


def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (path, method, operation)
        for path, item in document["paths"].items()
        for method, operation in item.items()
        if path.startswith("/api/") and path != "/api/health"
    ]


def test_the_document_is_openapi(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1.")
    schemathesis.openapi.from_dict(document).validate()


def test_every_operation_says_what_it_is_and_how_it_fails(document: dict[str, Any]) -> None:
    found = operations(document)
    assert len(found) > 20
    ids = [operation["operationId"] for _, _, operation in found]
    assert len(ids) == len(set(ids))
    for path, method, operation in found:
        assert operation["summary"], path
        assert operation["description"], path
        assert len(operation["tags"]) == 1, path
        assert operation["security"] == [{"HTTPBearer": []}], path
        answers = operation["responses"]
        expected = {"401", "403", "422", "503"}
        expected |= {"413", "415"} if "requestBody" in operation else set()
        expected |= {"404"} if "{" in path and method != "put" else set()
        assert expected <= answers.keys(), path
        for status in answers.keys() - {"200", "201", "204"}:
            [content] = answers[status]["content"].values()
            assert content["schema"] == {"$ref": "#/components/schemas/ErrorAnswer"}, f"{path} {status}"


def test_every_parameter_and_model_is_described(document: dict[str, Any]) -> None:
    for path, _, operation in operations(document):
        assert all(parameter["description"] for parameter in operation.get("parameters", ())), path
    ours = {name: schema for name, schema in document["components"]["schemas"].items() if name not in ("JsonValue",)}
    assert [name for name, schema in ours.items() if not schema.get("description")] == []


def test_ids_are_text(document: dict[str, Any]) -> None:
    for name, schema in document["components"]["schemas"].items():
        if name.endswith("Request"):
            continue
        for key, described in schema.get("properties", {}).items():
            if key == "id" or key.endswith("_id"):
                kinds = {kind.get("type") for kind in described.get("anyOf", [described])}
                assert kinds <= {"string", "null"}, f"{name}.{key}"

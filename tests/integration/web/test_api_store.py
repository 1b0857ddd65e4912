"""The HTTP API on PostgreSQL, without workers: the catalog, submitting once, pages, credentials, PostgreSQL away."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psycopg
import pytest
from proxy import Proxy
from serving import serving

from noetl_celery import Noetl
from noetl_celery.settings import Settings

pytestmark = pytest.mark.integration

PLAYBOOK = (
    "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {{name: small, path: {path}}}\n"
    "workload: {{n: {n}}}\nworkflow: [{{step: start, tool: {{kind: noop}}}}]\n"
)
SECRET = "geheim-und-lang-genug"


@pytest.fixture
def api(settings: Settings) -> Iterator[httpx.Client]:
    with serving(settings) as client:
        yield client


def register(api: httpx.Client, path: str = "t/small", n: int = 1) -> dict[str, Any]:
    answer = api.post("/api/catalog/register", json={"content": PLAYBOOK.format(path=path, n=n)})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def submit(api: httpx.Client, path: str = "t/small", key: str | None = None, **body: Any) -> httpx.Response:
    headers = {"Idempotency-Key": key} if key else {}
    return api.post("/api/executions", json={"path": path, **body}, headers=headers)


def pages(api: httpx.Client, url: str, name: str, /, **query: Any) -> list[list[dict[str, Any]]]:
    """All pages of a list."""
    found, cursor = [], {}
    while True:
        page = api.get(url, params=query | cursor).raise_for_status().json()
        found.append(page[name])
        if page["next"] is None:
            return found
        cursor = {"cursor": page["next"]}


def test_a_version_per_content(api: httpx.Client) -> None:
    first, again, second = register(api), register(api), register(api, n=2)
    assert (first["status"], first["path"], first["kind"], first["new"]) == ("success", "t/small", "Playbook", True)
    assert (again["catalog_id"], again["version"], again["new"]) == (first["catalog_id"], 1, False)
    assert (second["version"], second["new"]) == (2, True)
    entry = api.get(f"/api/catalog/entries/{first['catalog_id']}").json()
    assert (entry["version"], entry["content"]) == (1, PLAYBOOK.format(path="t/small", n=1))


def test_a_playbook_that_is_refused(api: httpx.Client) -> None:
    text = PLAYBOOK.format(path="t/wrong", n=1).replace("noop", "nope")
    answer = api.post("/api/catalog/register", json={"content": text})
    assert answer.status_code == 422
    [problem] = answer.json()["error"]["problems"]
    assert (problem["line"], problem["step"]) == (5, "start")
    other = api.post("/api/catalog/register", json={"content": text, "resource_type": "Credential"})
    assert (other.status_code, "Credential" in other.text) == (422, True)


def test_noetls_paths_of_the_catalog(api: httpx.Client) -> None:
    encoded = base64.b64encode(PLAYBOOK.format(path="t/b64", n=1).encode()).decode()
    done = api.post("/api/catalog/register", json={"content": encoded, "resource_type": "playbook"}).json()
    register(api, "t/b64", n=2)
    for body, version in (
        ({"path": "t/b64"}, 2),
        ({"path": "t/b64", "version": "latest"}, 2),
        ({"path": "t/b64", "version": 1}, 1),
        ({"path": "t/b64", "version": "1"}, 1),
        ({"catalog_id": done["catalog_id"]}, 1),
        ({"catalog_id": int(done["catalog_id"])}, 1),
    ):
        entry = api.post("/api/catalog/resource", json=body).json()
        assert (entry["path"], entry["version"]) == ("t/b64", version), body
    for body in ({"path": "t/other"}, {"path": "t/b64", "version": 3}, {"path": "t/b64", "version": "x"}):
        assert api.post("/api/catalog/resource", json=body).status_code == 404
    assert api.post("/api/catalog/resource", json={}).status_code == 422
    listed = api.post("/api/catalog/list", json={"resource_type": "Playbook"}).json()["entries"]
    assert [(entry["path"], entry["version"]) for entry in listed] == [("t/b64", 2)]
    both = api.post("/api/catalog/list", json={"path": "t/b64"}).json()["entries"]
    assert [entry["version"] for entry in both] == [2, 1]
    assert api.post("/api/catalog/list", json={"resource_type": "Credential"}).json()["entries"] == []


def test_the_catalog_in_pages(api: httpx.Client) -> None:
    for path in ("t/c", "t/a", "t/b"):
        for n in (1, 2, 3):
            register(api, path, n)
    newest = pages(api, "/api/catalog/entries", "entries", limit=2)
    assert [[(entry["path"], entry["version"]) for entry in page] for page in newest] == [
        [("t/a", 3), ("t/b", 3)],
        [("t/c", 3)],
    ]
    of_one = pages(api, "/api/catalog/entries", "entries", limit=2, path="t/b")
    assert [[entry["version"] for entry in page] for page in of_one] == [[3, 2], [1]]


def test_executions_in_pages_newest_first(api: httpx.Client, settings: Settings) -> None:
    register(api)
    register(api, "t/other")
    ids = [submit(api, "t/other" if n == 3 else "t/small").json()["execution_id"] for n in range(6)]
    # two of them in the same moment: the page ends between them
    with psycopg.connect(settings.database_url) as connection:
        connection.execute(
            "UPDATE noetl.execution SET created_at = (SELECT created_at FROM noetl.execution WHERE execution_id = %s) "
            "WHERE execution_id = %s",
            (int(ids[2]), int(ids[1])),
        )
    found = pages(api, "/api/executions", "executions", limit=2)
    assert [row["execution_id"] for page in found for row in page] == ids[::-1]
    assert [len(page) for page in found] == [2, 2, 2]
    [small] = pages(api, "/api/executions", "executions", path="t/small", status="PENDING")
    assert [row["execution_id"] for row in small] == [id_ for id_ in ids[::-1] if id_ != ids[3]]
    assert pages(api, "/api/executions", "executions", status="COMPLETED") == [[]]
    # one that comes while somebody reads shifts nothing
    first = api.get("/api/executions", params={"limit": 2}).json()
    submit(api)
    second = api.get("/api/executions", params={"limit": 2, "cursor": first["next"]}).json()
    assert [row["execution_id"] for row in second["executions"]] == ids[2:4][::-1]


def test_an_execution_as_both_say_it(api: httpx.Client) -> None:
    done = register(api)
    register(api, n=2)
    answer = submit(api, version=1, workload={"n": 7})
    assert (answer.status_code, answer.json()["status"]) == (201, "PENDING")
    shown = api.get(answer.headers["Location"]).json()
    assert (shown["catalog_id"], shown["version"], shown["path"]) == (done["catalog_id"], 1, "t/small")
    assert (shown["progress"], shown["steps"], shown["events_included"]) == (0, [], False)
    status = api.get(f"{answer.headers['Location']}/status").json()
    assert (status["completed"], status["failed"], status["completed_steps"]) == (False, False, [])
    for body in (
        {"path": "t/small", "payload": {"n": 7}, "merge": True},
        {"catalog_id": done["catalog_id"], "workload": {"n": 7}, "resource_kind": "playbook"},
    ):
        started = api.post("/api/execute", json=body)
        assert (started.status_code, started.json()["status"]) == (200, "started")
        own = api.get(f"/api/executions/{started.json()['execution_id']}").json()
        assert own["version"] == (1 if "catalog_id" in body else 2)


def test_what_is_not_there(api: httpx.Client) -> None:
    assert submit(api, "t/smal").json()["error"]["code"] == "not_found"
    register(api)
    assert "t/small" in submit(api, "t/smal").json()["error"]["hint"]
    wrong = submit(api, version=2)
    assert (wrong.status_code, "newest is 1" in wrong.json()["error"]["hint"]) == (404, True)
    for path in ("", "/status", "/result", "/rows?step=x", "/events", "/events/stream", "/books", "/explain", "/logs"):
        answer = api.get(f"/api/executions/17{path}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found"), path
    for verb in ("cancel", "pause", "resume", "retry"):
        assert api.post(f"/api/executions/17/{verb}").status_code == 404


def test_a_workload_that_cannot_be_kept(api: httpx.Client) -> None:
    register(api)
    for workload in ({"a": "\0"}, {"a": {"b\0": 1}}):
        answer = submit(api, workload=workload)
        assert (answer.status_code, "U+0000" in answer.text) == (422, True)
    assert submit(api, workload=[1]).status_code == 422


def test_the_same_key_starts_one_execution(api: httpx.Client, settings: Settings) -> None:
    register(api)
    register(api, "t/other")
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda n: submit(api, key="order-17", workload={"n": n}), range(8)))
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["execution_id"] for answer in answers}) == 1
    assert len(api.get("/api/executions").json()["executions"]) == 1
    assert submit(api, key="order-18").json()["execution_id"] != answers[0].json()["execution_id"]
    assert submit(api, "t/other", key="order-17").json()["execution_id"] != answers[0].json()["execution_id"]
    with Noetl(settings) as client:
        assert str(client.submit("t/small", key="order-17").id) == answers[0].json()["execution_id"]


def test_what_is_not_possible_now(api: httpx.Client) -> None:
    register(api)
    place = submit(api).headers["Location"]
    for ask in (lambda: api.get(f"{place}/result"), lambda: api.post(f"{place}/retry")):
        answer = ask()
        assert answer.status_code == 409
        assert answer.json()["error"]["message"]
    step = api.post(f"{place}/retry", json={"step": "start"})
    assert (step.status_code, step.json()["error"]["code"]) == (409, "wrong_state"), "it was not entered"


def test_fields_of_a_credential_never_come_out(api: httpx.Client, settings: Settings) -> None:
    fields = {"db_host": "h", "db_user": "u", "db_password": SECRET, "db_name": "d"}
    answers = [
        api.put("/api/credentials/warehouse", json={"type": "postgres", "data": fields}),
        api.post("/api/credentials", json={"name": "site", "credential_type": "http", "data": {"token": SECRET}}),
        api.put("/api/credentials/site", json={"type": "http", "data": {"token": SECRET, "other": 1}}),
        api.get("/api/credentials"),
        api.get("/api/credentials/warehouse"),
        api.get("/api/credentials/warehouse", params={"include_data": "true"}),
    ]
    assert [answer.status_code for answer in answers] == [200] * 6
    for answer in answers:
        assert SECRET not in answer.text
        assert "db_host" not in answer.text
    items = answers[3].json()["items"]
    assert [(item["name"], item["type"]) for item in items] == [("site", "http"), ("warehouse", "postgres")]
    assert answers[5].json().keys() == {"id", "name", "type", "created_at", "updated_at"}
    with psycopg.connect(settings.database_url) as connection:
        stored = connection.execute("SELECT data FROM noetl.credential").fetchall()
    assert all(SECRET.encode() not in bytes(row[0]) for row in stored)
    assert api.delete("/api/credentials/site").status_code == 204
    assert api.delete("/api/credentials/site").status_code == 404
    assert api.get("/api/credentials/site").status_code == 404


def test_a_credential_needs_a_key(settings: Settings) -> None:
    with serving(settings.model_copy(update={"secret_key": None})) as api:
        answer = api.put("/api/credentials/site", json={"type": "http", "data": {"token": SECRET}})
    assert (answer.status_code, "NOETL_SECRET_KEY" in answer.text, SECRET in answer.text) == (422, True, False)


def test_postgresql_away_and_back(settings: Settings) -> None:
    proxy = Proxy(settings.database_url)
    try:
        quick = settings.model_copy(update={"database_url": proxy.url, "statement_seconds": 1.0})
        with serving(quick) as api:
            register(api)
            place = submit(api).headers["Location"]
            for harm, heal in (
                (proxy.refuse, proxy.listen),
                (lambda: setattr(proxy, "silent", True), lambda: setattr(proxy, "silent", False)),
            ):
                harm()
                begun = time.monotonic()
                answer = api.get(place)
                assert answer.status_code == 503, answer.text
                assert int(answer.headers["Retry-After"]) > 0
                assert time.monotonic() - begun < 29, "it is said before a client gives up"
                assert api.get("/api/health").status_code == 200
                heal()
                answer = api.get(place)
                while answer.status_code == 503:
                    answer = api.get(place)
                assert answer.json()["status"] == "PENDING"
    finally:
        proxy.close()

"""What the HTTP API answers before it asks PostgreSQL anything, and when that is away."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from services import make_settings
from serving import TOKEN, serving

from noetl_celery.web import app
from noetl_celery.web.api.route import MAX_BODY

NOWHERE = "postgresql://nobody:secret@127.0.0.1:1/x"
SUBMIT, LINT = "/api/executions", "/api/catalog/lint"
PLAYBOOK = (
    "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: small, path: t/small}\n"
    "workflow: [{step: start, tool: {kind: noop}}]\n"
)


@pytest.fixture(scope="module")
def api() -> Iterator[httpx.Client]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(app, "PATIENCE_SECONDS", 0.0)
        with serving(make_settings(NOWHERE)) as client:
            yield client


def error(answer: httpx.Response) -> dict[str, Any]:
    """The body of an error; it has the one shape."""
    body = answer.json()
    assert body.keys() == {"error"}
    assert {"code", "message", "hint"} <= body["error"].keys()
    assert "secret" not in answer.text
    found: dict[str, Any] = body["error"]
    return found


@pytest.mark.parametrize("header", [None, "Bearer wrong", f"Basic {TOKEN}", "Bearer", f"Bearer {TOKEN}x"])
def test_nobody_comes_in_without_the_token(api: httpx.Client, header: str | None) -> None:
    headers = {"Authorization": header} if header else {}
    for ask in (
        lambda: httpx.get(f"{api.base_url}/api/executions", headers=headers),
        # not even what is wrong with a body is said
        lambda: httpx.post(f"{api.base_url}/api/executions", content=b"{", headers=headers),
        lambda: httpx.delete(f"{api.base_url}/api/credentials/x", headers=headers),
    ):
        answer = ask()
        assert answer.status_code == 401
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert error(answer)["code"] == "refused"


def test_a_page_of_somebody_else_changes_nothing() -> None:
    with serving(make_settings(NOWHERE), token=None) as api:
        answer = api.post(LINT, json={"content": PLAYBOOK}, headers={"Origin": "https://elsewhere.example"})
        assert answer.status_code == 403
        assert error(answer)["code"] == "refused"
        assert api.post(LINT, json={"content": PLAYBOOK}).json()["valid"] is True


def test_health_is_there_on_noetls_path_without_a_token(api: httpx.Client) -> None:
    answer = httpx.get(f"{api.base_url}/api/health")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


def test_away_is_said_soon_and_when_to_come_again(api: httpx.Client) -> None:
    answer = api.get(SUBMIT)
    assert answer.status_code == 503
    assert int(answer.headers["Retry-After"]) > 0
    assert error(answer)["code"] == "unreachable"


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "application/jsonp", None])
def test_a_body_is_json(api: httpx.Client, kind: str | None) -> None:
    answer = api.post(LINT, content=b'{"content": "x"}', headers={"Content-Type": kind} if kind else {})
    assert answer.status_code == 415
    assert "application/json" in error(answer)["message"]
    good = api.post(LINT, content=b'{"content": "x"}', headers={"Content-Type": "Application/JSON; charset=utf-8"})
    assert good.status_code == 200


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"\xff", b'{"content": 1}', b"[]", b"null", b"[" * 100_000, b"9" * 5000, b'{"content": "\\ud800"}'],
)
def test_a_body_that_cannot_be_read(api: httpx.Client, body: bytes) -> None:
    answer = api.post(LINT, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422, answer.text
    assert error(answer)["code"] == "invalid_input"


def test_a_misspelt_key_is_named(api: httpx.Client) -> None:
    answer = api.post(SUBMIT, json={"path": "t/small", "worklod": {}})
    assert answer.status_code == 422
    assert "worklod" in error(answer)["message"]


def test_a_body_has_an_end(api: httpx.Client) -> None:
    def pieces() -> Iterator[bytes]:
        yield b'{"content": "'
        for _ in range(MAX_BODY // 2**20 + 1):
            yield b"x" * 2**20
        yield b'"}'

    whole = b"".join(pieces())
    headers = {"Content-Type": "application/json"}
    for content in (whole, pieces()):
        answer = api.post(LINT, content=content, headers=headers)
        assert answer.status_code == 413
        assert "16 MB" in error(answer)["message"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PATCH", "/api/executions", "GET, POST"),
        ("POST", "/api/credentials/x", "DELETE, GET, PUT"),
        ("GET", "/api/catalog/register", "POST"),
    ],
)
def test_what_a_path_does_not_do(api: httpx.Client, method: str, path: str, allowed: str) -> None:
    answer = api.request(method, path)
    assert answer.status_code == 405
    assert answer.headers["Allow"] == allowed
    error(answer)


@pytest.mark.parametrize(
    "path",
    [
        "/api/executions/abc",
        "/api/executions/-1",
        f"/api/executions/{2**63}",
        "/api/executions/1%00",
        "/api/executions?status=RUNING",
        "/api/executions?limit=0",
        "/api/executions?limit=100000",
        "/api/executions?path=%00",
        "/api/executions?cursor=x",
        "/api/catalog/entries/abc",
        "/api/executions/17/rows",
        "/api/credentials/%00",
    ],
)
def test_what_cannot_be_meant(api: httpx.Client, path: str) -> None:
    assert error(api.get(path))["code"] == "invalid_input"


def test_nothing_is_there(api: httpx.Client) -> None:
    answer = api.get("/api/nothing")
    assert answer.status_code == 404
    error(answer)


def test_lint_asks_no_service(api: httpx.Client) -> None:
    good = api.post(LINT, json={"content": PLAYBOOK}).json()
    assert (good["valid"], good["errors"], good["problems"]) == (True, 0, [])
    wrong = api.post(LINT, json={"content": PLAYBOOK.replace("noop", "nope")}).json()
    assert (wrong["valid"], wrong["errors"]) == (False, 1)
    [problem] = wrong["problems"]
    assert (problem["line"], problem["step"], problem["warning"]) == (4, "start", False)


def test_a_credential_shows_nothing_when_it_is_refused(api: httpx.Client) -> None:
    hidden = "geheim-und-lang-genug"
    for body in (
        {"type": "postgres", "data": {"db_password": hidden}},
        {"type": "postgres", "data": [hidden]},
        {"type": [hidden], "data": {"db_password": hidden}},
        {"type": "postgres", "data": {"dsn": f"postgresql://u:{hidden}@h/d", "port": [hidden]}},
        {"type": "http", "data": {"token": hidden}},  # PostgreSQL is away
    ):
        answer = api.put("/api/credentials/warehouse", json=body)
        assert answer.status_code in (422, 503), answer.text
        assert hidden not in answer.text
        error(answer)

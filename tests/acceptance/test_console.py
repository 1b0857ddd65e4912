"""The console over HTTP: who gets in, what an error looks like, and that no page looks at everything."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest
from running import TOKEN, System, until

from noetl_celery.cli.embedded import EmbeddedServices

PAGE = {"Accept": "text/html"}
WORKFLOW = """
  - step: start
    spec: {policy: {failure: {mode: best_effort}}}
    loop:
      in: [1, 2, 3, 4]
      iterator: n
    tool:
      kind: python
      args: {n: "{{ iter.n }}"}
      code: |
        def main(n):
            print(f"<b>{n}</b>")
            if n == 3:
                raise ValueError("three & more")
            return n
    next: {arcs: [{step: end, when: "{{ event.name == 'loop.done' }}"}]}
  - step: end
    tool: {kind: noop}
"""


@pytest.fixture(scope="module")
def closed(system: System) -> Iterator[str]:
    """A console with a token."""
    with system.console() as url:
        yield url


@pytest.fixture(scope="module")
def opened(system: System) -> Iterator[str]:
    """A console for this machine."""
    with system.console(token=None) as url:
        yield url


@pytest.fixture
def alone(database: str, tmp_path: Path) -> System:
    """A database, and nobody who works."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("NOETL_")}
    own = {"NOETL_DATABASE_URL": database, "NOETL_BROKER_URL": "redis://127.0.0.1:1/0"}
    return System(clean | own, tmp_path)


def test_nobody_gets_in_without_the_token(closed: str) -> None:
    with httpx.Client(base_url=closed, headers=PAGE) as browser:
        answer = browser.get("/playbooks")
        assert (answer.status_code, answer.headers["location"]) == (303, "/login?to=%2Fplaybooks")
        assert browser.get("/live").status_code == 303
        assert browser.get("/playbooks", headers={"Accept": "*/*"}).status_code == 401
        wrong = browser.post("/login", data={"token": "something else", "to": "/playbooks"})
        assert wrong.status_code == 401
        assert "not the token" in wrong.text
        assert "noetl_session" not in browser.cookies

        answer = browser.post("/login", data={"token": TOKEN, "to": "/playbooks"})
        assert (answer.status_code, answer.headers["location"]) == (303, "/playbooks")
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert browser.get("/playbooks").status_code == 200
        until, _, signature = browser.cookies["noetl_session"].partition(".")
        for forged in (f"{int(until) + 1000}.{signature}", f"{until}.", "1.", "x.y", "."):
            assert httpx.get(f"{closed}/playbooks", headers=PAGE, cookies={"noetl_session": forged}).status_code == 303

        browser.post("/logout")
        assert browser.get("/playbooks").status_code == 303
        bearer = PAGE | {"Authorization": f"Bearer {TOKEN}"}
        assert browser.get("/playbooks", headers=bearer).status_code == 200


@pytest.mark.parametrize("to", ["https://elsewhere.example", "//elsewhere.example", "/\\elsewhere.example", ""])
def test_signing_in_leads_nowhere_else(closed: str, to: str) -> None:
    assert httpx.post(f"{closed}/login", data={"token": TOKEN, "to": to}).headers["location"] == "/"


def test_pages_of_others_change_nothing(opened: str) -> None:
    with httpx.Client(base_url=opened, headers=PAGE) as browser:
        assert browser.get("/").status_code == 200
        for name in ("elsewhere.example", "127.0.0.1.elsewhere.example"):
            assert browser.get("/", headers={"Host": name}).status_code == 403
        posted = browser.post("/register", data={"text": "x"}, headers={"Origin": "http://elsewhere.example"})
        assert posted.status_code == 403
        assert browser.post("/register", data={"text": "x"}, headers={"Origin": opened}).status_code == 422


@pytest.mark.parametrize(
    ("arguments", "env", "code", "said"),
    [
        ((), {}, 2, "NOETL_CONSOLE_TOKEN is not set"),
        (("--no-token", "--host", "0.0.0.0"), {}, 2, "this machine only"),
        ((), {"NOETL_CONSOLE_TOKEN": "short"}, 2, "at least 16 characters"),
        (("extra",), {"NOETL_CONSOLE_TOKEN": TOKEN}, 2, "takes no argument 'extra'"),
        (("--host", "256.0.0.1"), {"NOETL_CONSOLE_TOKEN": TOKEN}, 1, "cannot listen on 256.0.0.1"),
    ],
)
def test_what_cannot_be_served_is_said(
    system: System, arguments: tuple[str, ...], env: dict[str, str], code: int, said: str
) -> None:
    done = system.cli("console", *arguments, **env)
    assert (done.returncode, said in done.stderr, "short" in done.stderr) == (code, True, False)


def test_a_port_that_is_taken_is_said(system: System, closed: str) -> None:
    port = closed.rpartition(":")[2]
    done = system.cli("console", "--port", port, NOETL_CONSOLE_TOKEN=TOKEN)
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr


def test_pages_say_what_happened(system: System, opened: str) -> None:
    file = system.playbook("console_pages", WORKFLOW, '{secret_word: "swordfish", size: 3}')
    report = system.json("run", file)
    with httpx.Client(base_url=opened, headers=PAGE) as browser:
        here = f"/executions/{report['execution_id']}"
        overview = browser.get(here).text
        assert 'class="box completed"' in overview
        assert "3 ok · 1 failed" in overview
        assert "swordfish" not in overview
        rows = browser.get(f"{here}/rows", params={"step": "start", "failed": "yes"}).text
        assert re.findall(r'<tr id="r\d+-(\d)', rows) == ["2"]
        assert "three &amp; more" in rows
        logs = browser.get(f"{here}/logs").text
        assert "&lt;b&gt;4&lt;/b&gt;" in logs
        assert "<b>4</b>" not in logs
        assert "playbook.completed" in browser.get(f"{here}/events").text
        playbook = browser.get(f"{here}/playbook").text
        assert re.findall(r'id="L\d+" class="mark (\w+)"', playbook) == ["completed", "completed"]
        frames = browser.get(f"{here}/timeline").text
        assert "1 of 4 rows failed" in frames
        form = browser.get("/start", params={"path": "acceptance/console_pages"}).text
        assert re.search(r'name="w.secret_word" value="swordfish" type="password"', form)


def test_wrong_addresses_get_a_page(system: System, opened: str) -> None:
    with httpx.Client(base_url=opened, headers=PAGE) as browser:
        asked = {
            "/executions/12345": 404,
            "/executions/abc": 422,
            "/executions/99999999999999999999999999": 422,
            "/?go=77": 404,
            "/?before=x": 422,
            "/?before=2026-01-01~y": 422,
            "/start?path=no/such": 404,
            "/start": 422,
            "/nowhere": 404,
            "/static/1/..%2Fapp.py": 404,
            "/static/1/app.py": 404,
        }
        assert {path: browser.get(path).status_code for path in asked} == asked
        assert "there is no execution 12345" in browser.get("/executions/12345").text
        missing = browser.post("/executions/12345/cancel")
        assert missing.status_code == 404
        file = system.playbook("console_addresses", "  - step: start\n    tool: {kind: noop}\n")
        here = f"/executions/{system.json('run', file)['execution_id']}"
        asked = {
            f"{here}/nothing": 404,
            f"{here}/events?before=x": 422,
            f"{here}/rows?step=start&after=1": 422,
            f"{here}/rows?step=none": 200,
            f"{here}/timeline?stage=x": 200,
        }
        assert {path: browser.get(path).status_code for path in asked} == asked
        assert browser.post(f"{here}/explode").status_code == 404
        assert browser.post(f"{here}/retry").status_code == 409


def test_a_database_that_is_away_is_a_page_too(alone: System) -> None:
    nowhere = {"NOETL_DATABASE_URL": "postgresql://noetl:hidden-word@127.0.0.1:1/noetl"}
    with alone.console(token=None, **nowhere) as url, httpx.Client(base_url=url, headers=PAGE, timeout=60) as browser:
        answer = browser.get("/")
        assert answer.status_code == 503
        assert "PostgreSQL" in answer.text
        assert "hidden-word" not in answer.text
        assert browser.get("/healthz").json() == {"status": "ok"}
        assert browser.get("/readyz").status_code == 503


def test_an_execution_that_nobody_works_on_says_so(alone: System) -> None:
    with EmbeddedServices(fresh=True, postgres=False) as services:
        env = {"NOETL_BROKER_URL": services.broker_url or ""}
        file = alone.playbook("console_nobody", "  - step: start\n    tool: {kind: noop}\n")
        id_ = alone.cli("run", "--detach", file, **env).stdout.strip()
        with alone.console(token=None, **env) as url, httpx.Client(base_url=url, headers=PAGE) as browser:
            until(lambda: "start one: noetl-celery worker" in browser.get(f"/executions/{id_}").text, "it says so")


FILL = """
INSERT INTO noetl.execution (execution_id, catalog_id, path, status, workload, ctx, state, created_at, finished_at)
SELECT i, c.catalog_id, c.path, 'COMPLETED', '{}', '{}', '{}', now() - i * interval '1 s', now()
FROM generate_series(1, 300) i, noetl.catalog c;
INSERT INTO noetl.stage (stage_id, execution_id, step_name, visit, kind, status, settings, frames, opened_at, closed_at)
SELECT i, i, 'start', 1, 'cursor', 'COMPLETED', '{}', 100, now() - interval '1 h', now() FROM generate_series(1, 9) i;
INSERT INTO noetl.frame (frame_id, stage_id, execution_id, status, frame_index, rows, ok_rows, failed_rows)
SELECT s * 1000 + i, s, s, 'COMPLETED', i, 2, 1, 1 FROM generate_series(1, 9) s, generate_series(0, 199) i;
INSERT INTO noetl.row (frame_id, row_index, status, payload)
SELECT s * 1000 + i, r, CASE r WHEN 0 THEN 'OK' ELSE 'FAILED' END, '{}'
FROM generate_series(1, 9) s, generate_series(0, 199) i, generate_series(0, 1) r;
INSERT INTO noetl.event (execution_id, event_type, node_name)
SELECT s, 'step.enter', 'start' FROM generate_series(1, 9) s, generate_series(1, 400);
ANALYZE;
"""
GROWING = ("execution", "stage", "frame", "row", "claim", "event", "log", "result", "catalog")


def scans(database: str) -> dict[str, int]:
    """How often each table that grows was read from end to end."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("SELECT pg_stat_clear_snapshot()")
        found = connection.execute(
            "SELECT substring(relname FROM '^[a-z]+'), sum(seq_scan), sum(idx_scan) FROM pg_stat_user_tables "
            "WHERE schemaname = 'noetl' GROUP BY 1"
        ).fetchall()
    return {
        f"{kind} {name}": int(n or 0) for name, *both in found for kind, n in zip(("seq", "idx"), both, strict=True)
    }


def test_no_page_reads_a_table_from_end_to_end(alone: System, database: str) -> None:
    file = alone.playbook("console_many", "  - step: start\n    tool: {kind: noop}\n")
    assert alone.cli("register", file).returncode == 0
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(FILL)
    path = "acceptance/console_many"
    pages = ["/", "/?status=FAILED", f"/?path={path}", f"/?path={path}&status=COMPLETED", "/playbooks"]
    pages += [f"/start?path={path}", "/?before=2026-01-01T00:00:00%2B00:00~5", "/executions/5"]
    pages += [f"/executions/5/{tab}" for tab in ("timeline", "rows", "rows?step=start&failed=yes", "logs", "events")]
    pages += ["/executions/5/timeline?stage=5&before=100", "/executions/5/rows?step=start&after=50.5050.0"]
    pages += ["/executions/5/events?before=5000", "/executions/5/logs?after=0", "/executions/5/playbook"]
    before = scans(database)
    with alone.console(token=None) as url, httpx.Client(base_url=url, headers=PAGE, timeout=30) as browser:
        assert {path: browser.get(path).status_code for path in pages} == dict.fromkeys(pages, 200)
    # The sessions have ended with the console, and tell what they did when they do.
    until(lambda: scans(database)["idx row"] > before["idx row"], "the numbers of the console's sessions")
    after = scans(database)
    read = {name: after[f"seq {name}"] - before[f"seq {name}"] for name in GROWING}
    assert {name: n for name, n in read.items() if n} == {}

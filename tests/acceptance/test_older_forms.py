"""Older forms and what `lint --fix` makes of them, on a running system: the same results, the same rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

import pytest
from running import System

from noetl_celery.playbook.rewrite import rewrite

pytestmark = pytest.mark.acceptance

Form = Literal["older", "rewritten"]
PAGES = """\
  - step: fetch
    tool: http
    url: "{{ workload.api }}/{{ endpoint.name }}"
    params:
      page: 1
      size: "{{ endpoint.size }}"
    loop:
      collection: "{{ workload.endpoints }}"
      element: endpoint
      mode: async
      concurrency: 2
    retry:
      # the stub is not always there
      - when: "{{ error.status == 503 }}"
        then: {max_attempts: 3, backoff: fixed, initial_delay: 0.05}
      - when: "{{ response.paging.hasMore == true }}"
        then:
          max_attempts: 10
          next_call:
            params:
              page: "{{ response.paging.page + 1 }}"
          collect:
            strategy: append
            path: data
          sink:
            tool: postgres
            table: older_pages
            auth:
              type: postgres
              credential: older_db
            mode: append
    next:
      - step: sum
  - step: sum
    tool: python
    args: {results: "{{ fetch.results }}"}
    code: |
      result = [len(rows) for rows in results]
"""
SINKS = """\
  - step: save
    tool: python
    args: {n: "{{ item }}"}
    code: |
      result = {"id": n, "square": n * n}
    loop:
      collection: [1, 2, 3]
      element: item
      mode: sequential
    sink:
      tool: postgres
      table: older_sinks
      auth: older_db
      mode: upsert
      key: id
      args: {id: "{{ result.id }}", square: "{{ result.square }}", run: "{{ workload.run }}"}
"""
FLAKY = """\
  - step: ask
    tool: http
    url: "{{ workload.api }}/flaky"
    retry: {max_attempts: 3, initial_delay: 0.05, retry_when: "{{ status_code >= 500 }}"}
    sink:
      tool: postgres
      auth: older_db
      statement: |
        INSERT INTO older_answers (run, answer)
        VALUES ('{{ workload.run }}', '{{ result.data | tojson | replace("'", "''") }}'::jsonb)
"""

MOVE = """\
  - step: move
    tool: postgres
    auth: older_db
    command: |
      UPDATE older_source SET taken = true WHERE id <= {{ workload.most }}
      RETURNING id, id * 4 AS square, '{{ workload.run }}' AS run
    sink: {tool: postgres, auth: older_db, table: older_sinks}
"""


class Stub(ThreadingHTTPServer):
    """Three pages of two rows under every path; the first call of page 2, and of `flaky`, finds it busy."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.calls: Counter[str] = Counter()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Stub

    def do_GET(self) -> None:
        self.server.calls[self.path] += 1
        parts = urlsplit(self.path)
        page = int(parse_qs(parts.query).get("page", ["0"])[0])
        busy = (page == 2 or parts.path.endswith("flaky")) and self.server.calls[self.path] == 1
        if busy:
            self.answer(503, {"busy": True})
        elif page:
            rows = [{"path": parts.path, "n": 2 * page - 1}, {"path": parts.path, "n": 2 * page}]
            self.answer(200, {"data": rows, "paging": {"hasMore": page < 3, "page": page}})
        else:
            self.answer(200, {"fine": "it's"})

    def answer(self, status: int, body: Any) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


@pytest.fixture(scope="module")
def stub() -> Iterator[Stub]:
    with Stub() as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join(10)


@pytest.fixture(scope="module")
def tables(system: System) -> None:
    data = json.dumps({"dsn": system.env["NOETL_DATABASE_URL"]})
    done = system.cli("credential", "set", "older_db", "--type", "postgres", "--data", "-", stdin=data)
    assert done.returncode == 0, done.stderr
    system.sql("CREATE TABLE public.older_pages (path text, n int)")
    system.sql("CREATE TABLE public.older_sinks (id int PRIMARY KEY, square int CHECK (square < 9), run text)")
    system.sql("CREATE TABLE public.older_source (id int, taken bool)")
    system.sql("CREATE TABLE public.older_answers (run text, answer jsonb)")


@pytest.fixture(params=["older", "rewritten"])
def form(request: pytest.FixtureRequest, tables: None) -> Form:
    found: Form = request.param
    return found


def ran(system: System, form: Form, name: str, workflow: str, workload: dict[str, Any]) -> dict[str, Any]:
    """The report of a run of the playbook as it is, or as `lint --fix` writes it."""
    file = Path(system.playbook(f"{name}_{form}", workflow, json.dumps(workload)))
    if form == "rewritten":
        file.write_text(rewrite(file.read_text(), file=str(file)))
    linted = system.cli("lint", str(file))
    assert ("older form" in linted.stdout + linted.stderr) is (form == "older"), linted.stdout
    report: dict[str, Any] = system.json("run", str(file))
    return report


def test_pages_of_a_loop_are_saved_one_by_one(system: System, stub: Stub, form: Form) -> None:
    api = f"{stub.url}/{form}"
    endpoints = [{"name": "a", "size": 2}, {"name": "b", "size": 5}]
    report = ran(system, form, "pages", PAGES, {"api": api, "endpoints": endpoints})
    assert report["status"] == "COMPLETED", report
    assert report["steps"]["sum"]["output"] == [6, 6]
    rows = system.sql("SELECT path, n FROM public.older_pages WHERE path LIKE %s ORDER BY path, n", f"/{form}/%")
    assert rows == [(f"/{form}/{name}", n) for name in "ab" for n in range(1, 7)]
    calls = {path: count for path, count in stub.calls.items() if path.startswith(f"/{form}/")}
    assert calls == {
        f"/{form}/{name}?page={page}&size={size}": 2 if page == 2 else 1
        for name, size in (("a", 2), ("b", 5))
        for page in (1, 2, 3)
    }


def test_a_row_fails_with_its_sink(system: System, form: Form) -> None:
    system.sql("TRUNCATE public.older_sinks")
    report = ran(system, form, "sinks", SINKS, {"run": form})
    assert report["status"] == "FAILED"
    assert (report["error"]["step"], report["error"]["task"]) == ("save", "save_sink")
    assert system.sql("SELECT id, square, run FROM public.older_sinks ORDER BY id") == [(1, 1, form), (2, 4, form)]


def test_what_a_statement_changed_is_undone_with_its_sink(system: System, form: Form) -> None:
    system.sql("TRUNCATE public.older_sinks, public.older_source")
    system.sql("INSERT INTO public.older_source VALUES (1, false), (2, false), (3, false)")
    report = ran(system, form, "move", MOVE, {"run": form, "most": 3})
    assert report["status"] == "FAILED"
    assert system.sql("SELECT DISTINCT taken FROM public.older_source") == [(False,)]
    report = ran(system, form, "move", MOVE, {"run": form, "most": 2})
    assert report["steps"]["move"]["output"]["row_count"] == 2, report
    assert system.sql("SELECT id, square FROM public.older_sinks ORDER BY id") == [(1, 4), (2, 8)]
    assert system.sql("SELECT id FROM public.older_source WHERE taken ORDER BY id") == [(1,), (2,)]


def test_a_flaky_call_is_repeated_and_its_answer_saved(system: System, stub: Stub, form: Form) -> None:
    report = ran(system, form, "flaky", FLAKY, {"api": f"{stub.url}/{form}", "run": form})
    assert report["status"] == "COMPLETED", report
    assert report["steps"]["ask"]["output"]["body"] == {"fine": "it's"}
    assert stub.calls[f"/{form}/flaky"] == 2
    assert system.sql("SELECT answer FROM public.older_answers WHERE run = %s", form) == [({"fine": "it's"},)]

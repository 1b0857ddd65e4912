"""Every example of the language, of cursor loops and of the how-tos, run as it stands there: what it says holds."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from examples import OTHERS, at, examples
from psycopg import sql
from running import System

from noetl_celery import Execution, NoetlError
from noetl_celery.tools.duckdb_files import folder

pytestmark = pytest.mark.acceptance

EXAMPLES = {example.name: example for example in examples()} | {
    f"{page.stem}-{example.name}": example for page in OTHERS for example in examples(page.read_text())
}
TOKEN = "s3cret"
PAGES = 3


class Api(ThreadingHTTPServer):
    """What the page's second section describes."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.calls: Counter[str] = Counter()
        self.lock = Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def count(self, path: str) -> int:
        """How often this path was asked for, with this call."""
        with self.lock:
            self.calls[path] += 1
            return self.calls[path]


class Handler(BaseHTTPRequestHandler):
    server: Api

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        calls = self.server.count(parts.path)
        match parts.path.strip("/").split("/"):
            case ["patients"]:
                self.answer(200, _page(int(parse_qs(parts.query).get("page", ["1"])[0])))
            case ["patients", number] if int(number) < 100:
                self.answer(200, {"id": int(number), "name": f"Patient {number}", "address": {"city": "Delft"}})
            case ["busy", _]:
                self.answer(503, {"busy": True}) if calls == 1 else self.answer(200, {"calls": calls})
            case ["limited", _]:
                self.answer(429, {}, {"Retry-After": "1"}) if calls == 1 else self.answer(200, {"calls": calls})
            case ["private"] if self.headers["Authorization"] == f"Bearer {TOKEN}":
                self.answer(200, {"user": "ann"})
            case ["scripts", "double.py"]:
                self.answer(200, "def main(n):\n    return 2 * n\n")
            case ["private"]:
                self.answer(401, {"message": "who are you?"})
            case _:
                self.answer(404, {"message": "not found"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(201, {"id": 1, "order": json.loads(body)})

    def answer(self, status: int, body: Any, headers: Mapping[str, str] | None = None) -> None:
        raw = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": len(raw), **(headers or {})}.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


def _page(number: int) -> dict[str, Any]:
    patients = [{"id": n, "name": f"Patient {n}"} for n in (2 * number - 1, 2 * number)]
    return {"data": patients, "paging": {"page": number, "hasMore": number < PAGES}}


@pytest.fixture(scope="module")
def api() -> Iterator[str]:
    with Api() as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield server.url
        server.shutdown()
        thread.join(10)


@pytest.fixture(scope="module")
def started(system: System, api: str, request: pytest.FixtureRequest) -> Iterator[dict[str, Execution | NoetlError]]:
    """All examples that were selected, under way at once; of one that cannot be registered, why."""
    stored: dict[str, tuple[str, dict[str, str]]] = {
        "pg": ("postgres", {"dsn": system.env["NOETL_DATABASE_URL"]}),
        "queue": ("redis", {"url": system.env["NOETL_BROKER_URL"]}),
        "api_token": ("bearer", {"token": TOKEN}),
    }
    for credential, (kind, fields) in stored.items():
        done = system.cli("credential", "set", credential, "--type", kind, "--data", "-", stdin=json.dumps(fields))
        assert done.returncode == 0, done.stderr
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    selected = {item.callspec.params.get("name") for item in items if hasattr(item, "callspec")}
    found: dict[str, Execution | NoetlError] = {}
    with system.client() as client:
        for name in EXAMPLES.keys() & selected:
            try:
                paths = [client.register(name, text=text).path for text in EXAMPLES[name].documents]
                found[name] = client.submit(paths[-1], {"api": api})
            except NoetlError as error:
                found[name] = error
        yield found
    for execution in found.values():
        if isinstance(execution, Execution):
            (folder() / f"{execution.id}.duckdb").unlink(missing_ok=True)


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(system: System, started: dict[str, Execution | NoetlError], name: str) -> None:
    example, execution = EXAMPLES[name], started[name]
    if isinstance(execution, NoetlError):
        raise execution
    status = execution.wait(60)
    report = execution.report()
    assert status == example.status, report
    assert example.part in ((report["error"] or {}).get("message") or ""), report["error"]
    assert {where: value(system, execution, report, where) for where, _ in example.values} == dict(example.values)


def value(system: System, execution: Execution, report: dict[str, Any], where: str) -> Any:
    """What the system has at a place that an expectation names."""
    name, _, path = where.partition(".")
    try:
        if name in report["steps"]:
            return at(report["steps"][name]["output"], path)
        if name == "ctx":
            [(ctx,)] = system.sql("SELECT ctx FROM noetl.execution WHERE execution_id = %s", execution.id)
            return at(ctx, path)
    except (LookupError, TypeError, ValueError):
        return f"nothing at {where}: {report}"
    if where == "steps":
        query = "SELECT step_name FROM noetl.stage WHERE execution_id = %s ORDER BY stage_id"
        return [step for (step,) in system.sql(query, execution.id)]
    rows = sql.SQL("SELECT row_to_json(t) FROM {} t ORDER BY t").format(sql.Identifier("public", name))
    return at([list(row.values()) for (row,) in system.sql(rows.as_string())], path)


def test_every_example_says_what_comes_of_it() -> None:
    assert [name for name, example in EXAMPLES.items() if not example.says_something] == []

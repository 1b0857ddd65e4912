"""Tasks with large, odd and endless things on real workers: an error or a reference, and everybody else goes on."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import psycopg
import pytest
from running import System, until

from noetl_celery import Execution, Noetl

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]

MOST = "NOETL_RESULT_MAX_BYTES"


class Api(BaseHTTPRequestHandler):
    """``/large``: 50 MB of JSON; ``/deep``: 10,000 levels; ``/drip``: never ends, in its header."""

    def do_GET(self) -> None:
        if self.path == "/drip":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
            while not self.server.ending.wait(0.05):  # type: ignore[attr-defined]
                self.wfile.write(b".")
            return
        body = b"[" * 10_000 + b"]" * 10_000 if self.path == "/deep" else b"[" + b'{"id": 1},' * 5_000_000 + b"1]"
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        pass  # clients hang up


@pytest.fixture(scope="module")
def api() -> Iterator[str]:
    server = Server(("127.0.0.1", 0), Api)
    server.ending = threading.Event()  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.ending.set()  # type: ignore[attr-defined]
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def client(system: System) -> Iterator[Noetl]:
    with system.client() as made:
        yield made


@pytest.fixture(scope="module")
def database(system: System) -> System:
    """The system with its own database as the credential ``stress``."""
    data = json.dumps({"dsn": system.env["NOETL_DATABASE_URL"]})
    done = system.cli("credential", "set", "stress", "--type", "postgres", "--data", "-", stdin=data)
    assert done.returncode == 0, done.stderr
    return system


def ran(system: System, client: Noetl, name: str, workflow: str, **workload: Any) -> Execution:
    """An execution that has come to its end."""
    execution = client.submit(client.register(system.playbook(name, workflow)).path, workload)
    execution.wait(200)
    return execution


def outcomes(system: System, execution: Execution) -> dict[str, tuple[str, str]]:
    """By the name of each row: its status, and the kind and message of its error."""
    rows = system.sql(
        "SELECT r.payload ->> 'name', r.status, r.error ->> 'kind', r.error ->> 'message' "
        "FROM noetl.row r JOIN noetl.frame f USING (frame_id) WHERE f.execution_id = %s AND r.payload IS NOT NULL",
        execution.id,
    )
    return {name: (status, "" if kind is None else f"{kind}: {message}") for name, status, kind, message in rows}


# -- values ------------------------------------------------------------------------------------------------------------

#: what code returns → what becomes of it
VALUES = {
    "1 MB of text": ("'x' * 1_000_000", "OK"),
    "100,000 keys": ("{str(n): n for n in range(100_000)}", "OK"),
    "200 MB of text": ("'x' * 200_000_000", f"result_too_large: {MOST}"),
    "10,000 levels": ("reduce(lambda inner, _: [inner], range(10_000), 1)", "result_type: nested deeper"),
    "not a number": ("[float('nan'), float('inf')]", "OK"),
    "bytes": ("b'\\xff\\x00'", "OK"),
    "a NUL": ("'a\\0b'", "result_type: NUL"),
    "half a pair": ("'\\ud800'", "result_type: surrogate"),
    "5,000 digits": ("10**5000", "result_type: 4300 digits"),
    "a generator": ("(n for n in [1])", "result_type: generator"),
    "an object": ("{'a': [object()]}", "result_type: object"),
    "itself": ("itself", "result_type: contains itself"),
    "100 MB of lines": ("[print('x' * 999) for _ in range(100_000)] and 1", "OK"),
    "an exit": ("exit(3)", "python: SystemExit"),
    "no memory": ("bytearray(10**15)", "python: MemoryError"),
}
LOOP = """
- step: start
  loop: {in: "{{ workload.cases }}", iterator: case, spec: {mode: parallel, max_in_flight: 32}}
  spec: {policy: {failure: {mode: best_effort}}}
  tool:
    kind: python
    timeout: "{{ workload.timeout }}"
    input: {value: "{{ iter.case.value }}"}
    code: |
      from functools import reduce
      itself = []
      itself.append(itself)
      return eval(value)
"""


@pytest.mark.parametrize("timeout", [None, 120], ids=["in a thread", "in a process"])
def test_values_of_all_kinds(system: System, client: Noetl, timeout: float | None) -> None:
    cases = [{"name": name, "value": value} for name, (value, _) in VALUES.items()]
    execution = ran(system, client, f"values_{timeout}", LOOP, cases=cases, timeout=timeout)
    found = outcomes(system, execution)
    assert found.keys() == VALUES.keys()
    for name, (_, expected) in VALUES.items():
        status, error = found[name]
        kind, _, part = expected.partition(": ")
        assert status == ("OK" if expected == "OK" else "FAILED"), (name, error)
        assert (error.partition(": ")[0] or "OK") == kind, name
        assert part in error, name
    names = list(VALUES)
    kept = {name: execution.step_result("start", f"results[{index}]") for index, name in enumerate(names[:6])}
    assert (len(kept["1 MB of text"]), len(kept["100,000 keys"])) == (1_000_000, 100_000)
    assert (kept["not a number"], kept["bytes"]) == ([None, None], "/wA=")
    assert system.sql("SELECT sum(reruns) FROM noetl.frame WHERE execution_id = %s", execution.id) == [(0,)]


# -- what others send --------------------------------------------------------------------------------------------------

SENT = {
    "large response": ("{kind: http, url: '%s/large'}", "too_large"),
    "deep response": ("{kind: http, url: '%s/deep'}", "OK"),
    "endless response": ("{kind: http, url: '%s/drip', timeout: 1}", "timeout"),
    "a million rows": (
        "{kind: postgres, auth: stress, query: 'SELECT repeat(n::text, 10) AS t FROM generate_series(1, 1000000) n'}",
        "result_too_large",
    ),
    "a large value": ("{kind: postgres, auth: stress, query: \"SELECT repeat('x', 100000000)\"}", "result_too_large"),
    "rows of duckdb": (
        "{kind: duckdb, database: ':memory:', query: 'SELECT n, repeat(n::text, 10) AS t FROM range(10000000) r(n)'}",
        "result_too_large",
    ),
    "100 MB of output": ("{kind: shell, command: 'yes | head -c 100000000'}", "output_too_large"),
}


def test_what_others_send(database: System, client: Noetl, api: str) -> None:
    """Each in a step of its own, all at once."""
    executions = {}
    for number, (name, (tool, _)) in enumerate(SENT.items()):
        workflow = f"- step: start\n  tool: {tool.replace('%s', api)}\n"
        executions[name] = client.submit(client.register(database.playbook(f"sent_{number}", workflow)).path)
    for execution in executions.values():
        execution.wait(200)
    found = {name: execution.report() for name, execution in executions.items()}
    kinds = {name: (report["error"] or {"kind": "OK"})["kind"] for name, report in found.items()}
    assert kinds == {name: kind for name, (_, kind) in SENT.items()}


# -- time --------------------------------------------------------------------------------------------------------------

LOCKED = "{kind: postgres, auth: stress, query: SELECT * FROM public.stress_locked}"
LONG = "SELECT sum(a.n * b.n) FROM range(100000000) a(n) CROSS JOIN range(100000000) b(n)"
ENDLESS = {
    "python": "{kind: python, code: 'import signal; signal.signal(15, signal.SIG_IGN); sum(range(10**15))'}",
    "sleeping in C": "{kind: python, code: 'import ctypes; ctypes.CDLL(None).sleep(600)'}",
    "shell": "{kind: shell, command: \"trap '' TERM; sleep 600 & wait\"}",
    "http": "{kind: http, url: '%s/drip'}",
    "postgres": LOCKED,
    "several statements": "{kind: postgres, auth: stress, commands: [SELECT 1, SELECT pg_sleep(600)]}",
    "duckdb": f"{{kind: duckdb, database: ':memory:', query: '{LONG}'}}",
    "transfer": f"{{kind: transfer, source: {LOCKED}, target: {{kind: duckdb, table: t}}}}",
}
TIMED = """
- step: start
  spec: {timeout: 8}
  tool: %s
  next: {arcs: [{step: late, when: "{{ error.kind == 'timeout' }}"}]}
- step: late
  tool: {kind: noop, result: late}
"""


def test_the_time_of_a_step_ends_its_tasks(database: System, client: Noetl, api: str) -> None:
    """Whatever they do, and without a limit of their own. Their places are free again."""
    database.sql("CREATE TABLE public.stress_locked (n int)")
    with psycopg.connect(database.env["NOETL_DATABASE_URL"]) as holder:
        holder.execute("LOCK TABLE public.stress_locked IN ACCESS EXCLUSIVE MODE")
        executions = {}
        for number, (name, tool) in enumerate(ENDLESS.items()):
            path = database.playbook(f"endless_{number}", TIMED % tool.replace("%s", api))
            executions[name] = client.submit(client.register(path).path)
        ended = {name: execution.wait(120) for name, execution in executions.items()}
        assert ended == dict.fromkeys(ENDLESS, "COMPLETED")
        kinds = (
            "SELECT DISTINCT r.error ->> 'kind' FROM noetl.row r JOIN noetl.frame f USING (frame_id) "
            "WHERE f.execution_id = ANY(%s) AND r.status = 'FAILED'"
        )
        assert database.sql(kinds, [execution.id for execution in executions.values()]) == [("timeout",)]
        held = "SELECT count(*) FROM noetl.run WHERE execution_id = ANY(%s)"
        ids = [execution.id for execution in executions.values()]
        until(lambda: database.sql(held, ids) == [(0,)], "no slot is held")


# -- neighbours --------------------------------------------------------------------------------------------------------

NEIGHBOURS = """
- step: start
  loop: {in: "{{ workload.cases }}", iterator: case, spec: {mode: parallel, max_in_flight: 16}}
  spec: {policy: {failure: {mode: best_effort}}}
  tool:
    - name: pid
      kind: python
      code: |
        import os
        return os.getpid()
    - name: begin
      kind: postgres
      auth: stress
      command: "INSERT INTO public.stress_marks VALUES ({{ pid }}, '{{ iter.case.name }}', 'begin')"
    - name: sql
      kind: postgres
      auth: stress
      query: "SELECT n, 'row ' || n AS t FROM generate_series(1, {{ iter.case.rows }}) n"
      spec: {policy: {rules: [{else: {then: {do: continue}}}]}}
    - name: code
      kind: python
      input: {lines: "{{ iter.case.lines }}"}
      code: |
        import time
        for _ in range(lines): print("x" * 9000)
        time.sleep(0.05)
    - name: ended
      kind: postgres
      auth: stress
      command: "INSERT INTO public.stress_marks VALUES ({{ pid }}, '{{ iter.case.name }}', 'end')"
"""


def test_neighbours_get_on_meanwhile(database: System, client: Noetl) -> None:
    """Rows of the same process come to their ends while one of them reads a million rows, or prints 100 MB."""
    database.sql(
        "CREATE TABLE public.stress_marks (pid int, name text, what text, at timestamptz DEFAULT clock_timestamp())"
    )
    large = [{"name": "rows", "rows": 1_000_000, "lines": 0}, {"name": "lines", "rows": 1, "lines": 12_000}]
    small = [{"name": f"small {n}", "rows": 1, "lines": 1} for n in range(600)]
    execution = ran(database, client, "neighbours", NEIGHBOURS, cases=large + small)
    assert {status for status, _ in outcomes(database, execution).values()} == {"OK"}
    between = """
      SELECT count(*) FROM public.stress_marks s
      WHERE s.name LIKE 'small%%' AND s.what = 'end'
        AND s.pid = (SELECT pid FROM public.stress_marks WHERE name = %s AND what = 'begin')
        AND s.at BETWEEN (SELECT at FROM public.stress_marks WHERE name = %s AND what = 'begin')
                     AND (SELECT at FROM public.stress_marks WHERE name = %s AND what = 'end')
    """
    assert database.sql(between, *["rows"] * 3)[0][0] > 0
    assert database.sql(between, *["lines"] * 3)[0][0] > 0
    assert database.sql("SELECT sum(reruns) FROM noetl.frame WHERE execution_id = %s", execution.id) == [(0,)]

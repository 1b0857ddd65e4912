"""Planted secrets: playbooks use them in every way there is, and they are looked for in everything that leaves."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import psutil
import psycopg
import pytest
import redis
from running import CLI, HOLDER, System, until
from services import credential_of

from noetl_celery.store.credentials import Vault
from noetl_celery.store.db import Connection

#: all that is to be seen is seen in the one fixture
pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]

#: a name for each secret that is planted, to say which one was found
PLANTED = {
    "postgres password": "pl4nted/pass wörd",
    "password in a DSN": "pl4nted:d+sn",
    "bearer token": "pl4nted-b34rer-t0ken",
    "basic password": "pl4nted b4sic",
    "keychain secret": "pl4nted'k3y\"chain",
    "workload key": "pl4nted-w0rkload-k3y",
    "token of a header": "pl4nted-h34der",
}
#: the one that PostgreSQL has to keep: workers have it from there
WORKLOAD = "workload key"
BASIC_USER = "planted-user"


def spellings(secret: str) -> set[str]:
    ways = {secret, quote(secret, safe=""), quote(secret), quote_plus(secret), secret.replace("'", "''")}
    ways |= {json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1], repr(secret)[1:-1]}
    ways |= {json.dumps(way)[1:-1] for way in ways}  # text of JSON within JSON
    return ways | {base64.b64encode(f"{BASIC_USER}:{secret}".encode()).decode()}


def found_in(text: str, secrets: dict[str, str]) -> list[str]:
    return [
        f"{name}: …{text[max(0, at - 150) : at + 80]}…"
        for name, secret in secrets.items()
        for way in spellings(secret)
        if (at := text.find(way)) >= 0
    ]


@dataclass
class Watched:
    """A running system, and what was seen of it while it ran."""

    system: System
    secrets: dict[str, str]
    echo: str
    executions: dict[str, dict[str, Any]] = field(default_factory=dict)
    redis: list[str] = field(default_factory=list)
    activity: set[str] = field(default_factory=set)
    commands: set[str] = field(default_factory=set)
    files: dict[str, str] = field(default_factory=dict)
    shown: list[str] = field(default_factory=list)

    def cli(self, *arguments: str, stdin: str | None = None, **env: str) -> str:
        """What a command says, with the tracebacks of --debug."""
        done = subprocess.run(
            [*CLI, "--debug", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            env=self.system.env | env,
            cwd=self.system.folder,
            timeout=120,
            check=False,
        )
        self.shown.append(done.stdout + done.stderr)
        return done.stdout + done.stderr


# -- what playbooks do -------------------------------------------------------------------------------------------------

KEYCHAIN = "keychain: [{name: own, credential: vaulted}, {name: api, credential: bearer}]\n"
SECRET, TOKEN = "{{ keychain.own.secret }}", "{{ keychain.api.token }}"
RETRY = (
    "spec: {policy: {rules: [{when: \"{{ output.status == 'error' }}\", then: {do: retry, attempts: 2, delay: 0.1}}]}}"
)
#: name → the task, as YAML in one line; ``!`` before the name: it completes
TASKS: dict[str, str] = {
    "!http_everywhere": '{kind: http, url: "ECHO/quiet?a=QUOTED", auth: bearer, params: {b: "SECRET"}}',
    "http_refused": (
        '{kind: http, url: "ECHO/400", auth: bearer, headers: {X-Own: "TOKEN"}, params: {b: "SECRET"}, RETRY}'
    ),
    "http_basic": '{kind: http, method: POST, url: "ECHO/401", auth: basic, json: {given: "SECRET"}}',
    "http_header": '{kind: http, url: "ECHO/500", headers: {Authorization: "Bearer HEADER"}}',
    "http_no_server": '{kind: http, url: "http://127.0.0.1:1/QUOTED", params: {b: "SECRET"}}',
    "http_no_url": '{kind: http, url: "http://QUOTED:SECRET:no port/"}',
    "!pg_bound": (
        '{kind: postgres, auth: source, command: "SELECT pg_sleep(2), %(s)s::text IS NULL", params: {s: "SECRET"}}'
    ),
    "pg_syntax": "{kind: postgres, auth: source, command: \"SELECT nope('TOKEN')\"}",
    "pg_data": '{kind: postgres, auth: source, command: "SELECT %(s)s::text::int", params: {s: "SECRET"}}',
    "pg_no_database": "{kind: postgres, auth: nowhere, query: SELECT 1}",
    "pg_no_server": "{kind: postgres, auth: unreachable, query: SELECT 1}",
    "pg_bad_dsn": "{kind: postgres, auth: misspelt, query: SELECT 1}",
    "pg_inline": '{kind: postgres, auth: {dsn: "postgresql://u:QUOTED@127.0.0.1:1/d"}, query: SELECT 1}',
    "duckdb": (
        "{kind: duckdb, auth: {pg_db: {type: postgres, credential: nowhere}}, query: SELECT * FROM pg_db.public.t}"
    ),
    "duckdb_sql": "{kind: duckdb, query: \"SELECT * FROM read_csv('/nowhere/TOKEN.csv')\"}",
    "transfer": (
        "{kind: transfer, source: {kind: postgres, auth: source, query: \"SELECT nope('TOKEN')\"}, "
        "target: {kind: postgres, auth: source, table: public.t}}"
    ),
    "transfer_http": (
        '{kind: transfer, source: {kind: http, url: "ECHO/403", auth: bearer}, '
        "target: {kind: postgres, auth: source, table: public.t}}"
    ),
    "shell": '{kind: shell, env: {OWN: "TOKEN"}, cmd: ["sh", "-c", "echo $OWN; echo $OWN >&2; sleep 1; exit 3"]}',
    "!shell_env": '{kind: shell, cmd: "env | grep ^NOETL_ | cut -d= -f1; true"}',
    "python": '{kind: python, input: {own: "SECRET"}, code: "print(own); raise ValueError(f\'no {own}\')"}',
    "python_repr": '{kind: python, input: {own: "SECRET"}, code: "print([own]); raise KeyError(own)"}',
    "python_child": '{kind: python, timeout: 20, input: {own: "SECRET"}, code: "print(own); raise ValueError(own)"}',
    "python_auth": '{kind: python, auth: vaulted, code: "raise ValueError(str(auth))"}',
    "!python_env": (
        "{kind: python, timeout: 20, code: \"import os\\nlist_ = open('/proc/self/environ').read().split(chr(0))\\n"
        "result = [line.split('=')[0] for line in list_ + list(os.environ) if line.startswith('NOETL_')]\"}"
    ),
    "python_workload": "{kind: python, code: \"raise ValueError(context['workload']['api_password'])\"}",
    "pg_workload": "{kind: postgres, auth: source, command: \"SELECT nope('{{ workload.api_password }}')\"}",
    "template_key": '{kind: noop, result: "{{ keychain.own[keychain.own.secret] }}"}',
    "template_value": '{kind: noop, result: "{{ workload.api_password.nothing.of_it }}"}',
    "child": '{kind: playbook, path: acceptance/secret_child, input: {api_password: "{{ workload.api_password }}"}}',
}
CHILD = """
- step: fail
  tool: {kind: python, code: "raise ValueError(context['workload']['api_password'])"}
"""
LOOP = """
- step: start
  loop:
    cursor:
      kind: postgres
      auth: CREDENTIAL
      claim: "CLAIM"
      dead_letter: "INSERT INTO public.nowhere VALUES ('{{ keychain.api.token }}', '{{ iter.item.id }}')"
    iterator: item
    spec: {frame: {max_rows: 2, row_concurrency: 2}}
  tool: {kind: python, input: {own: "{{ keychain.own.secret }}"}, code: "raise ValueError(own)"}
"""
CLAIM = (
    "UPDATE public.work SET state = 'claimed' "
    "WHERE id IN (SELECT id FROM public.work WHERE state = 'open' LIMIT 2) RETURNING id"
)
LOOPS = {
    "!claim_elsewhere": LOOP.replace("CREDENTIAL", "source").replace("CLAIM", CLAIM),
    "claim_fails": LOOP.replace("CREDENTIAL", "source").replace("CLAIM", "SELECT nope('{{ keychain.api.token }}')"),
    "claim_no_database": LOOP.replace("CREDENTIAL", "nowhere").replace("CLAIM", CLAIM),
}
HANDLED = """
- step: call
  tool: {kind: http, url: "ECHO/400", auth: bearer}
  next: {arcs: [{step: end, when: "{{ event.name == 'step.failed' }}"}]}
- step: end
  tool: {kind: python, input: {said: "{{ call.error }}"}, code: "raise ValueError(str(said))"}
"""


def workflows(watched: Watched) -> dict[str, str]:
    def filled(text: str) -> str:
        for word, value in {"RETRY": RETRY, "ECHO": watched.echo, "HEADER": "{{ keychain.own.sent }}"}.items():
            text = text.replace(word, value)
        return (
            text.replace("SECRET", SECRET)
            .replace("TOKEN", TOKEN)
            .replace("QUOTED", "{{ keychain.own.secret | urlencode }}")
        )

    plain = {name: f"- step: do\n  tool: {filled(task)}\n" for name, task in TASKS.items()}
    return plain | LOOPS | {"handled": filled(HANDLED)}


# -- the system --------------------------------------------------------------------------------------------------------


class Echo(BaseHTTPRequestHandler):
    """Answers with the status in its path and all that it was asked with; ``/quiet`` says nothing."""

    def do_GET(self) -> None:
        sent = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        status = self.path.strip("/").partition("?")[0]
        quiet = not status.isdigit()
        body = b"{}" if quiet else json.dumps({"path": self.path, "headers": dict(self.headers), "sent": sent}).encode()
        self.send_response(200 if quiet else int(status), "Sorry")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *args: Any) -> None:
        return None


@contextlib.contextmanager
def in_background(work: Callable[[], Any], stop: Callable[[], Any]) -> Iterator[None]:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop()
        thread.join(20)


@contextlib.contextmanager
def running(folder: Path) -> Iterator[System]:
    """A system of its own, with logs that tell all they can."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("NOETL_")}
    (folder / "tmp").mkdir()
    loud = {"NOETL_LOG_LEVEL": "DEBUG", "NOETL_DEBUG": "1", "TMPDIR": str(folder / "tmp"), "PYTHONUNBUFFERED": "1"}
    command = [*CLI, "dev", "--workers", "1", "-c", "2", "--folder", str(folder), "--", sys.executable, "-c", HOLDER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=clean | loud, cwd=folder
    ) as process:
        assert process.stdin
        assert process.stdout
        line = process.stdout.readline()
        assert line, f"dev ended with {process.wait()} before its command ran"
        try:
            yield System(clean | loud | json.loads(line), folder)
        finally:
            process.stdin.close()
            process.wait(60)


@contextlib.contextmanager
def sampled(watched: Watched) -> Iterator[None]:
    """Looks at everything that is to be seen from outside, again and again."""
    url = watched.system.env["NOETL_DATABASE_URL"]
    ended = threading.Event()

    def look() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            while not ended.wait(0.3):
                asked = connection.execute("SELECT query, application_name FROM pg_stat_activity").fetchall()
                watched.activity |= {str(row) for row in asked}
                for process in psutil.process_iter(["cmdline"]):
                    watched.commands.add("\0".join(process.info["cmdline"] or []))
                watched.files |= small_files(watched.system.folder / "tmp")

    broker = redis.Redis.from_url(watched.system.env["NOETL_BROKER_URL"])
    monitor = broker.monitor()

    def listen() -> None:
        with contextlib.suppress(redis.RedisError, ValueError, OSError), monitor as commands:
            while not ended.is_set():
                watched.redis.append(str(commands.next_command()))

    def stop() -> None:
        ended.set()
        broker.ping()  # the last command that is heard

    with in_background(look, ended.set), in_background(listen, stop):
        yield
    broker.close()


def small_files(folder: Path) -> dict[str, str]:
    found = {}
    for file in folder.rglob("*"):
        with contextlib.suppress(OSError):
            if file.is_file() and file.stat().st_size < 50_000_000:
                found[str(file)] = file.read_text(errors="replace")
    return found


def store_credentials(watched: Watched) -> None:
    system, planted = watched.system, PLANTED
    source = credential_of(system.env["NOETL_DATABASE_URL"], db_name="source", db_password=planted["postgres password"])
    user = source["db_user"]
    dsn = f"postgresql://{user}:{quote(planted['password in a DSN'], safe='')}@127.0.0.1:1/nothing"
    stored = {
        "source": ("postgres", source),
        "nowhere": ("postgres", {**source, "db_name": "not_there"}),
        "unreachable": ("postgres", {"dsn": dsn}),
        "misspelt": ("other", {"dsn": dsn.replace(":1/", ":one/")}),
        "bearer": ("http", {"type": "bearer", "token": planted["bearer token"]}),
        "basic": ("http", {"type": "basic", "username": BASIC_USER, "password": planted["basic password"]}),
        "vaulted": ("other", {"secret": planted["keychain secret"], "sent": planted["token of a header"]}),
    }
    for name in ("bearer", "vaulted"):
        kind, fields = stored.pop(name)
        said = watched.cli("credential", "set", name, "--type", kind, "--data", "-", stdin=json.dumps(fields))
        assert "is stored" in said, said
    with system.client() as client:
        vault = Vault(client.settings)
        for name, (kind, fields) in stored.items():
            client.run(partial(store, vault, name, kind, fields))


def store(vault: Vault, name: str, kind: str, fields: dict[str, str], connection: Connection) -> None:
    vault.store(connection, name, kind, fields)


def run_all(watched: Watched) -> None:
    """Submits every playbook and waits for all of them; the report of each."""
    system = watched.system
    with system.client() as client:
        client.register(system.playbook("secret_child", CHILD, "{api_password: unknown}"))
        started = {}
        for name, text in workflows(watched).items():
            file = Path(system.playbook(name.lstrip("!"), text, "{api_password: unknown}"))
            file.write_text(file.read_text().replace("workload:", f"{KEYCHAIN}workload:"))
            path = client.register(file).path
            started[name] = client.submit(path, {"api_password": PLANTED[WORKLOAD]})
        for name, execution in started.items():
            execution.wait(90)
            watched.executions[name] = execution.report()
            watched.shown += [json.dumps(execution.report(), default=str), str(execution.progress())]


def look_with_the_command_line(watched: Watched) -> None:
    given = json.dumps({"api_password": PLANTED[WORKLOAD]})
    file = str(watched.system.folder / "python_workload.yaml")
    watched.cli("run", file, "--workload", "-", stdin=given)
    watched.cli("list", "--json")
    watched.cli("credential", "list", "--json")
    watched.cli("doctor")
    watched.cli("verify", watched.executions["handled"]["execution_id"])
    for name, command in (("http_refused", "events"), ("child", "wait"), ("shell", "status")):
        watched.cli(command, watched.executions[name]["execution_id"], "--json")
    broken = f"postgresql://u:{quote(PLANTED['postgres password'], safe='')}@127.0.0.1:1/d"
    said = watched.cli("list", NOETL_DATABASE_URL=broken)
    assert "Traceback" in said, said


@contextlib.contextmanager
def flower(watched: Watched) -> Iterator[str]:
    """Flower, looking on from the beginning; its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "celery", "-A", "noetl_celery", "flower", f"--port={port}", "--address=127.0.0.1"]
    log = watched.system.folder / "flower.log"
    env = watched.system.env | {"FLOWER_UNAUTHENTICATED_API": "true"}
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=env, cwd=watched.system.folder, stdout=out, stderr=subprocess.STDOUT)
    try:
        url = f"http://127.0.0.1:{port}"
        until(lambda: page(f"{url}/api/workers"), "Flower answers")
        yield url
    finally:
        process.terminate()
        process.wait(20)


def page(url: str) -> str | None:
    try:
        with urllib.request.urlopen(url, timeout=10) as reply:
            return str(reply.read().decode())
    except OSError:
        return None


def look_with_flower(watched: Watched, url: str) -> None:
    workers = json.loads(page(f"{url}/api/workers?refresh=1") or "{}")
    assert len(workers) == 2, workers
    assert all(worker["conf"]["broker_url"].startswith("redis://:***") for worker in workers.values()), workers
    assert all("result_backend" in worker["conf"] for worker in workers.values())
    tasks = page(f"{url}/api/tasks?limit=10000") or ""
    assert len(json.loads(tasks)) > len(TASKS)
    pages = [f"/worker/{name}" for name in workers] + ["/workers", "/tasks", "/broker", "/api/queues/length"]
    pages += [f"/task/{number}" for number in list(json.loads(tasks))[:20]]
    watched.shown += [json.dumps(workers), tasks, *(page(f"{url}{path}") or "" for path in pages)]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """Everything has run once, and everything that left was kept."""
    with contextlib.ExitStack() as stack:
        folder = tmp_path_factory.mktemp("secrets")
        system = stack.enter_context(running(folder))
        server = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), Echo))
        stack.enter_context(in_background(server.serve_forever, server.shutdown))
        own = {
            "the key": system.env["NOETL_SECRET_KEY"],
            "the password of Redis": system.env["NOETL_BROKER_URL"].split(":")[2].partition("@")[0],
        }
        made = Watched(system, PLANTED | own, f"http://127.0.0.1:{server.server_address[1]}")
        system.sql("CREATE DATABASE source")
        with psycopg.connect(system.env["NOETL_DATABASE_URL"], dbname="source", autocommit=True) as source:
            source.execute("CREATE TABLE public.work AS SELECT id, 'open' AS state FROM generate_series(1, 3) id")
        store_credentials(made)
        url = stack.enter_context(flower(made))
        with sampled(made):
            run_all(made)
            look_with_flower(made, url)
        look_with_the_command_line(made)
        yield made


# -- what is to be true ------------------------------------------------------------------------------------------------


def test_every_way_was_gone(watched: Watched) -> None:
    """Else nothing would be found because nothing happened."""
    expected = {name: "COMPLETED" if name.startswith("!") else "FAILED" for name in watched.executions}
    assert {name: report["status"] for name, report in watched.executions.items()} == expected
    assert len(expected) == len(TASKS) + len(LOOPS) + 1
    messages = {name: (report["error"] or {}).get("message", "") for name, report in watched.executions.items()}
    for name in ("http_refused", "pg_syntax", "pg_data", "shell", "python", "python_child", "claim_fails", "child"):
        assert "***" in messages[name], (name, messages[name])


def test_no_table_has_one(watched: Watched) -> None:
    tables = [name for (name,) in watched.system.sql("SELECT tablename FROM pg_tables WHERE schemaname = 'noetl'")]
    assert len(tables) > 10
    for table in tables:
        column = "to_jsonb(t) - 'workload'" if table == "execution" else "to_jsonb(t)"
        rows = watched.system.sql(f"SELECT ({column})::text FROM noetl.{table} t")
        assert found_in("\n".join(text for (text,) in rows), watched.secrets) == [], table


def test_the_workload_is_kept_once(watched: Watched) -> None:
    """Workers have it from there: its column is the one place that has to have it."""
    secret = watched.system.sql("SELECT workload ->> 'api_password' FROM noetl.execution")
    assert {value for (value,) in secret} == {PLANTED[WORKLOAD]}


def test_no_log_has_one(watched: Watched) -> None:
    logs = {path.name: path.read_text(errors="replace") for path in watched.system.folder.rglob("*.log")}
    ours = {name: text for name, text in logs.items() if "postgres" not in name}  # that one has the SQL it was sent
    assert sum("DEBUG" in text for text in ours.values()) >= 2, list(logs)
    assert any("[execution_id=" in text and "***" in text for text in ours.values())
    assert "flower.log" in ours
    for name, text in ours.items():
        assert found_in(text, watched.secrets) == [], name


def test_no_message_has_one(watched: Watched) -> None:
    assert len(watched.redis) > 100
    heard = "\n".join(watched.redis) + watched.system.everything_in_redis()
    own = "the password of Redis"  # whoever connects says it
    assert found_in(heard, {name: value for name, value in watched.secrets.items() if name != own}) == []


def test_nobody_sees_one(watched: Watched) -> None:
    """The command line with --debug, reports, Flower's pages."""
    assert any("Traceback" in text for text in watched.shown)
    for text in watched.shown:
        assert found_in(text, watched.secrets) == []


def test_the_server_does_not_see_what_is_bound(watched: Watched) -> None:
    """A secret in the text of a statement is its author's; those of ``auth`` and ``params`` are in none."""
    assert any("pg_sleep(2)" in query for query in watched.activity)
    bound = {
        name: PLANTED[name] for name in ("postgres password", "password in a DSN", "keychain secret", "basic password")
    }
    assert found_in("\n".join(watched.activity), bound) == []


def test_no_command_line_has_one(watched: Watched) -> None:
    assert any("sleep" in command for command in watched.commands)
    assert found_in("\n".join(watched.commands), watched.secrets) == []


def test_processes_of_tasks_inherit_no_setting(watched: Watched) -> None:
    for name in ("!shell_env", "!python_env"):
        assert watched.executions[name]["status"] == "COMPLETED"
        output = watched.executions[name]["steps"]["do"]["output"]
        assert (output if name == "!python_env" else output["stdout"]) in ("", []), name


def test_no_temporary_file_has_one(watched: Watched) -> None:
    for name, text in (watched.files | small_files(watched.system.folder / "tmp")).items():
        assert found_in(text, watched.secrets) == [], name

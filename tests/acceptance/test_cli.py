"""The command line on a running system: what is printed, and the exit codes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from running import ROOT, System, until

pytestmark = pytest.mark.acceptance

HELLO = str(ROOT / "playbooks" / "hello.yaml")
SLOW = """\
  - step: start
    loop:
      in: "{{ range(workload.n) | list }}"
      iterator: i
      spec: {mode: parallel, max_in_flight: 2}
    tool: {kind: python, input: {pause: "{{ workload.pause }}"}, code: "import time; time.sleep(pause)"}
"""
FAILS = """\
  - step: start
    tool:
      - {name: fine, kind: noop}
      - {name: boom, kind: python, code: 'raise ValueError("no such luck")'}
"""
ASKS = """\
  - step: ask
    tool: {kind: postgres, auth: "{{ workload.auth }}", command: SELECT 40 + 2 AS answer}
"""
CLAIMS = """\
  - step: drain
    loop:
      cursor:
        kind: postgres
        auth: claims_db
        claim: |
          UPDATE work SET status = 'taken'
          WHRE id = 1
          RETURNING id
      iterator: item
    tool: {kind: noop}
"""


@pytest.fixture
def slow(system: System) -> str:
    return system.playbook("slow", SLOW, "{n: 1000, pause: 0.2}")


def detached(system: System, *arguments: str) -> str:
    done = system.cli("run", *arguments, "--detach")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().isdigit()
    return done.stdout.strip()


def cancelled(system: System, execution: str) -> None:
    system.cli("cancel", execution)
    assert system.cli("wait", execution, "--timeout", "60").returncode == 1


def test_run_json_prints_one_object(system: System) -> None:
    done = system.cli(
        "run", HELLO, "--workload", '{"greeting": "Hi", "names": ["Ada"]}', "--set", "greeting=Hey", "--json"
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert set(report) == {"execution_id", "status", "error", "steps", "duration_seconds"}
    assert report["execution_id"].isdigit()
    assert (report["status"], report["error"]) == ("COMPLETED", None)
    assert 0 < report["duration_seconds"] < 60
    assert {name: step["status"] for name, step in report["steps"].items()} == {
        "start": "COMPLETED",
        "greet": "COMPLETED",
        "end": "COMPLETED",
    }
    assert report["steps"]["start"]["output"] == {"guests": ["Ada"]}
    assert report["steps"]["end"]["output"] == {"text": "Hey, Ada!", "count": 1}
    assert done.stderr == ""


def test_run_for_people(system: System) -> None:
    done = system.cli("run", HELLO)
    assert done.returncode == 0
    first, *steps, summary = done.stdout.splitlines()
    assert first.startswith("examples/hello  COMPLETED  ")
    assert summary.startswith("3 rows in ")
    assert "slowest step: " in summary
    assert [line.split()[:2] for line in steps] == [
        ["start", "COMPLETED"],
        ["greet", "COMPLETED"],
        ["end", "COMPLETED"],
    ]
    assert "3 ok, 0 failed" in steps[1]
    assert "\x1b" not in done.stdout + done.stderr


def test_register_makes_versions_of_changed_content_only(system: System) -> None:
    file = system.playbook("versions", FAILS)
    assert system.cli("register", file, HELLO).stdout.splitlines()[0] == "acceptance/versions version 1"
    assert system.cli("register", file).stdout == "acceptance/versions version 1 (unchanged)\n"
    system.playbook("versions", ASKS)
    assert system.cli("register", file).stdout == "acceptance/versions version 2\n"


def test_one_playbook_that_is_refused_keeps_all_out(system: System) -> None:
    good, bad = system.playbook("good", ASKS), system.playbook("bad", ASKS.replace("postgres", "postgrs"))
    done = system.cli("register", good, bad)
    assert done.returncode == 2
    assert f"{bad}:7:" in done.stderr
    assert "step 'ask'" in done.stderr
    assert "postgres" in done.stderr
    assert system.cli("run", "acceptance/good").returncode == 2


def test_a_refused_playbook_is_shown_with_its_lines(system: System) -> None:
    bad = system.playbook("marked", ASKS.replace("postgres", "postgrs"))
    linted = system.cli("lint", bad)
    assert linted.returncode == 2
    *shown, count = linted.stdout.splitlines()
    assert count == f"{bad}: 1 error"
    assert shown[1].endswith('tool: {kind: postgrs, auth: "{{ workload.auth }}", command: SELECT 40 + 2 AS answer}')
    assert shown[2].index("^") == shown[1].index("kind")
    for command in ("register", "run"):
        done = system.cli(command, bad)
        assert done.returncode == 2
        assert done.stderr.splitlines() == [*shown, f"error: 1 problem in {bad}"]


def test_what_needs_no_service_works_from_anywhere(system: System) -> None:
    done = system.cli("plan", HELLO)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("examples/hello\n├── workload: greeting, names\n")
    assert system.cli("plan", HELLO, "--format", "mermaid").stdout.startswith("flowchart TD\n")
    done = system.cli("schema", "--output", "playbook.schema.json")
    assert done.returncode == 0, done.stderr
    assert json.loads((system.folder / "playbook.schema.json").read_text())["properties"]["apiVersion"]


def test_failed(system: System) -> None:
    file = system.playbook("fails", FAILS)
    done = system.cli("run", file)
    assert done.returncode == 1
    assert "error in step 'start', task 'boom': python: ValueError: no such luck" in done.stdout
    done = system.cli("run", "acceptance/fails", "--json")
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert report["status"] == "FAILED"
    assert {**report["error"], "message": ""} == {"kind": "python", "message": "", "step": "start", "task": "boom"}
    assert report["steps"]["start"]["status"] == "FAILED"
    assert system.cli("status", report["execution_id"]).returncode == 0
    assert system.cli("wait", report["execution_id"]).returncode == 1


def test_timeout_leaves_it_running(system: System, slow: str) -> None:
    done = system.cli("run", slow, "--timeout", "0.5", "--json")
    assert done.returncode == 3
    report = json.loads(done.stdout)
    assert report["status"] in ("PENDING", "RUNNING")
    execution = report["execution_id"]
    assert f"noetl-celery wait {execution}" in done.stderr
    assert system.cli("wait", execution, "--timeout", "0").returncode == 3
    assert system.json("status", execution)["status"] in ("PENDING", "RUNNING")
    cancelled(system, execution)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((HELLO, "--workload", "not json"), "--workload is not JSON"),
        ((HELLO, "--workload", "[]"), "must be a JSON object"),
        (("examples/helo",), "no playbook is registered as 'examples/helo' (did you mean examples/hello"),
        (("of/quite/another/kind",), "no playbook is registered as 'of/quite/another/kind'"),
    ],
)
def test_invalid_input(arguments: tuple[str, ...], says: str, system: System) -> None:
    system.cli("register", HELLO)
    done = system.cli("run", *arguments, "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_unknown_execution(system: System) -> None:
    for command in ("status", "wait", "cancel", "events"):
        done = system.cli(command, "4711")
        assert done.returncode == 2
        assert "there is no execution 4711" in done.stderr


def test_cancel(system: System, slow: str) -> None:
    execution = detached(system, slow)
    assert system.cli("cancel", execution, "--reason", "enough").returncode == 0
    assert system.cli("cancel", execution).returncode == 0
    report = json.loads(system.cli("wait", execution, "--json").stdout)
    assert report["status"] == "CANCELLED"
    assert (report["error"]["kind"], report["error"]["message"]) == ("cancelled", "enough")
    assert "ended already: CANCELLED" in system.cli("cancel", execution).stderr
    assert "CANCELLED" in system.cli("status", execution).stdout


def test_ctrl_c_detaches(system: System, slow: str) -> None:
    with system.start("run", slow) as process:
        assert process.stderr
        progress = process.stderr.readline()
        assert progress.startswith("start: ")
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
        assert process.wait(60) == 130
    assert "Traceback" not in said
    execution = next(word for word in said.split() if word.isdigit())
    assert "goes on" in said
    assert system.json("status", execution)["status"] == "RUNNING"
    cancelled(system, execution)


def test_progress_in_plain_lines(system: System) -> None:
    file = system.playbook("watched", SLOW, "{n: 60, pause: 0.1}")
    done = system.cli("run", file, "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["steps"]["start"]["output"]["count"] == 60
    lines = done.stderr.splitlines()
    assert 1 <= len(lines) <= 4
    assert all(line.startswith("start: ") and " rows" in line for line in lines)


def test_events(system: System) -> None:
    execution = system.json("run", HELLO)["execution_id"]
    lines = [json.loads(line) for line in system.cli("events", execution, "--json").stdout.splitlines()]
    assert {line["execution_id"] for line in lines} == {execution}
    types = [line["event_type"] for line in lines]
    assert types[0] == "playbook.started"
    assert types[-1] == "playbook.completed"
    assert types.count("loop.done") == 1
    assert types.count("step.exit") == 3
    assert len({line["event_id"] for line in lines}) == len(lines)
    plain = system.cli("events", execution, "--follow").stdout.splitlines()
    assert len(plain) == len(lines)
    assert "playbook.completed" in plain[-1]


def test_events_are_followed_to_the_end(system: System) -> None:
    execution = detached(system, system.playbook("followed", SLOW, "{n: 10, pause: 0.1}"))
    lines = [json.loads(line) for line in system.cli("events", execution, "--follow", "--json").stdout.splitlines()]
    assert lines[-1]["event_type"] == "playbook.completed"
    assert lines == [json.loads(line) for line in system.cli("events", execution, "--json").stdout.splitlines()]


def test_list(system: System) -> None:
    failed = system.json("run", system.playbook("fails", FAILS))["execution_id"]
    completed = system.json("run", HELLO)["execution_id"]
    assert [row["execution_id"] for row in system.json("list", "--limit", "2")] == [completed, failed]
    rows = system.json("list", "--status", "failed")
    assert rows[0]["execution_id"] == failed
    assert {row["status"] for row in rows} == {"FAILED"}
    header, first, *_ = system.cli("list").stdout.splitlines()
    assert header.split() == ["ID", "STATUS", "PATH", "SUBMITTED", "TOOK", "ERROR"]
    assert first.split()[:3] == [completed, "COMPLETED", "examples/hello"]


def test_credentials_never_come_out(system: System) -> None:
    secret = "hush-4711-hush"
    data = json.dumps({"dsn": system.env["NOETL_DATABASE_URL"], "password": secret, "application_name": secret})
    assert system.cli("credential", "set", "quiet", "--type", "postgres", "--data", "-", stdin=data).returncode == 0
    listed = system.cli("credential", "list")
    assert "quiet" in listed.stdout
    done = system.cli("run", system.playbook("asks", ASKS, "{auth: quiet}"), "--json")
    assert done.returncode == 0, done.stdout
    assert json.loads(done.stdout)["steps"]["ask"]["output"]["rows"] == [{"answer": 42}]
    execution = json.loads(done.stdout)["execution_id"]
    shown = [done.stdout, done.stderr, listed.stdout, system.cli("events", execution, "--json").stdout]
    tables = system.sql("SELECT table_name FROM information_schema.tables WHERE table_schema = 'noetl'")
    shown += [repr(system.sql(f'SELECT t::text FROM noetl."{table}" t')) for (table,) in tables]
    shown += [bytes(row[0]).decode("latin-1") for row in system.sql("SELECT data FROM noetl.credential")]
    shown.append(system.everything_in_redis())
    assert not [text for text in shown if secret in text]
    assert system.cli("credential", "delete", "quiet").returncode == 0
    assert system.cli("credential", "delete", "quiet").returncode == 2
    assert "quiet" not in system.cli("credential", "list").stdout


def test_unknown_credential(system: System) -> None:
    done = system.cli("run", system.playbook("asks", ASKS, "{auth: nowhere}"))
    assert done.returncode == 1
    assert "there is no credential 'nowhere'" in done.stdout
    assert "noetl-celery credential set nowhere" in done.stdout


def test_wrong_credential(system: System) -> None:
    data = {"dsn": system.env["NOETL_DATABASE_URL"], "db_user": "stranger", "db_password": "hush-4712"}
    system.cli("credential", "set", "wrong", "--data", json.dumps(data))
    done = system.cli("run", system.playbook("asks", ASKS, "{auth: wrong}"), "--json")
    assert done.returncode == 1
    error = json.loads(done.stdout)["error"]
    assert (error["kind"], error["step"]) == ("auth", "ask")
    assert "stranger" in error["message"]
    execution = json.loads(done.stdout)["execution_id"]
    assert "hush-4712" not in done.stdout + done.stderr + system.cli("events", execution, "--json").stdout


def test_credential_under_another_key(system: System) -> None:
    other = "b3RoZXJvdGhlcm90aGVyb3RoZXJvdGhlcm90aGVyb3Q="
    data = json.dumps({"dsn": system.env["NOETL_DATABASE_URL"]})
    done = system.cli("credential", "set", "foreign", "--data", data, NOETL_SECRET_KEY=other)
    assert done.returncode == 0, done.stderr
    done = system.cli("run", system.playbook("asks", ASKS, "{auth: foreign}"))
    assert done.returncode == 1
    assert "encrypted with another key" in done.stdout


def test_a_claim_with_a_syntax_error_shows_its_line(system: System) -> None:
    system.cli("credential", "set", "claims_db", "--data", json.dumps({"dsn": system.env["NOETL_DATABASE_URL"]}))
    done = system.cli("run", system.playbook("claims", CLAIMS))
    assert done.returncode == 1
    assert "WHRE id = 1" in done.stdout
    assert "line 2" in done.stdout
    assert "step 'drain'" in done.stdout


def test_redis_that_is_away_costs_time_only(system: System) -> None:
    done = system.cli(
        "run", HELLO, "--timeout", "60", NOETL_BROKER_URL="redis://127.0.0.1:1/0", NOETL_REPUBLISH_SECONDS="0.2"
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("warning: Redis is not reachable")
    assert done.stderr.count("Redis") == 1


def test_run_goes_on_when_postgresql_is_back(system: System) -> None:
    file = system.playbook("outage", SLOW, "{n: 60, pause: 0.2}")
    data = Path(system.sql("SHOW data_directory")[0][0])
    with system.start("run", file) as process:
        assert process.stderr
        progress = process.stderr.readline()
        assert progress.startswith("start: ")
        # A fast shutdown ends every session; `dev` starts the server again.
        os.kill(int((data / "postmaster.pid").read_text().split()[0]), signal.SIGINT)
        said = process.stderr.read()
        assert process.stdout
        summary = process.stdout.read()
        assert process.wait(120) == 0, said
    assert "PostgreSQL is not reachable" in said
    assert "PostgreSQL is back" in said
    assert "Traceback" not in said
    assert "60 ok, 0 failed" in summary


def test_the_database_and_its_schema(system: System) -> None:
    revision = system.cli("db", "current").stdout.strip()
    assert system.cli("db", "check").stdout == f"ok: revision {revision}\n"
    assert system.cli("db", "upgrade").returncode == 0
    done = system.cli("db", "downgrade", "nowhere")
    assert done.returncode == 2
    assert "nowhere" in done.stderr


def test_a_database_without_schema(system: System) -> None:
    system.sql("CREATE DATABASE without_schema")
    head, mark, query = system.env["NOETL_DATABASE_URL"].partition("?")
    url = f"{head.rpartition('/')[0]}/without_schema{mark}{query}"
    for arguments in (("run", HELLO), ("list",), ("db", "check")):
        done = system.cli(*arguments, NOETL_DATABASE_URL=url)
        assert done.returncode == 1
        assert done.stderr == "error: the database has no schema `noetl` yet (run: noetl-celery db upgrade)\n"
    assert system.cli("db", "upgrade", NOETL_DATABASE_URL=url).returncode == 0
    assert system.cli("list", NOETL_DATABASE_URL=url).returncode == 0
    assert system.cli("db", "downgrade", "base", NOETL_DATABASE_URL=url).returncode == 0


def test_celery_finds_the_app_by_the_name_of_the_package(system: System) -> None:
    def answered() -> str | None:
        done = subprocess.run(
            [sys.executable, "-m", "celery", "-A", "noetl_celery", "inspect", "registered"],
            capture_output=True,
            text=True,
            env=system.env,
            cwd=system.folder,
            timeout=60,
            check=False,
        )
        return done.stdout if done.returncode == 0 else None

    tasks = until(answered, "nodes that answer")
    for task in ("noetl.orchestrate", "noetl.claim", "noetl.body", "noetl.sweep"):
        assert task in tasks

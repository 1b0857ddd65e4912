"""cancel, pause, resume, retry and verify, as people use them, on real workers."""

from __future__ import annotations

import json
import time

import pytest
from running import System, until

pytestmark = pytest.mark.acceptance

QUEUE = """\
  - step: prepare
    tool:
      kind: postgres
      auth: control_db
      command: |
        DROP TABLE IF EXISTS {table}; CREATE TABLE {table} (id int PRIMARY KEY, state text DEFAULT 'open', bad bool);
        INSERT INTO {table} (id, bad) SELECT n, n % 10 = 3 FROM generate_series(1, {{{{ workload.rows }}}}) n;
    next: {{arcs: [{{step: drain}}]}}
  - step: drain
    loop:
      cursor:
        kind: postgres
        auth: control_db
        claim: |
          UPDATE {table} SET state = 'claimed' WHERE id IN (
            SELECT id FROM {table} WHERE state = 'open' ORDER BY id LIMIT {{{{ __frame_max_rows }}}}
            FOR UPDATE SKIP LOCKED)
          RETURNING id
      iterator: row
      spec: {{max_in_flight: {flight}, frame: {{max_rows: 5, row_concurrency: 5}}}}
    spec: {{policy: {{failure: {{mode: {mode}}}}}}}
    tool:
      - name: work
        kind: python
        input: {{pause: "{{{{ workload.pause }}}}"}}
        code: import time; time.sleep(pause)
      - name: check
        kind: postgres
        auth: control_db
        command: SELECT 1 / (CASE WHEN bad THEN 0 ELSE 1 END) FROM {table} WHERE id = {{{{ iter.row.id }}}}
    next: {{arcs: [{{step: end}}]}}
  - step: end
    tool: {{kind: noop}}
"""
#: rows that wait for minutes, and children that run for minutes
WAITS = """\
  - step: fork
    next:
      spec: {mode: inclusive}
      arcs: [{step: waits}, {step: calls}, {step: soon}]
  - step: waits
    loop: {in: "{{ range(5) | list }}", iterator: i, spec: {mode: parallel}}
    tool:
      - name: never
        kind: python
        code: raise ConnectionError("not yet")
        spec: {policy: {rules: [{when: "{{ outcome.status == 'error' }}", then: {do: retry, attempts: 9, delay: 600}}]}}
  - step: soon
    loop: {in: "{{ range(5) | list }}", iterator: i, spec: {mode: parallel}}
    tool:
      - name: never
        kind: python
        code: raise ConnectionError("not yet")
        spec: {policy: {rules: [{when: "{{ outcome.status == 'error' }}", then: {do: retry, attempts: 99, delay: 4}}]}}
  - step: calls
    spec: {timeout: 900}
    loop: {in: "{{ range(3) | list }}", iterator: i, spec: {mode: parallel}}
    tool: {kind: playbook, path: acceptance/control_child}
"""
CHILD = """\
  - step: long
    loop: {in: "{{ range(1000) | list }}", iterator: i, spec: {mode: parallel, max_in_flight: 2}}
    tool: {kind: python, code: "import time; time.sleep(0.2)"}
"""


@pytest.fixture(scope="module", autouse=True)
def credential(system: System) -> None:
    dsn = json.dumps({"dsn": system.env["NOETL_DATABASE_URL"]})
    done = system.cli("credential", "set", "control_db", "--type", "postgres", "--data", "-", stdin=dsn)
    assert done.returncode == 0, done.stderr


def submit(system: System, name: str, *, flight: int = 2, mode: str = "best_effort", **workload: object) -> str:
    text = QUEUE.format(table=f"control_{name}", flight=flight, mode=mode)
    file = system.playbook(f"control_{name}", text, json.dumps({"rows": 40, "pause": 0, **workload}))
    done = system.cli("run", file, "--detach")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def rows(system: System, name: str, where: str) -> int:
    return int(system.sql(f"SELECT count(*) FROM control_{name} WHERE {where}")[0][0])


def left(system: System, execution: str) -> dict[str, int]:
    """What only an execution at work has, of it and of its children."""
    family = f"(SELECT execution_id FROM noetl.execution WHERE {execution} IN (execution_id, parent_execution_id))"
    open_ = {
        "run": "true",
        "outbox": "true",
        "signal": "true",
        "claim": "status IN ('OPEN', 'TAKEN')",
        "frame": "status <> 'COMPLETED'",
        "stage": "status = 'OPEN'",
    }
    found = {
        table: system.sql(f"SELECT count(*) FROM noetl.{table} WHERE execution_id IN {family} AND {which}")[0][0]
        for table, which in open_.items()
    }
    wakeups = f"SELECT count(*) FROM noetl.wakeup JOIN noetl.frame USING (frame_id) WHERE execution_id IN {family}"
    return found | {"wakeup": system.sql(wakeups)[0][0]}


def test_pause_holds_claims_and_resume_goes_on(system: System) -> None:
    execution = submit(system, "pause", rows=600, pause=0.1)
    until(
        lambda: system.sql(f"SELECT 1 FROM noetl.frame WHERE execution_id = {execution} AND frame_index = 1"),
        "two frames",
    )
    done = system.cli("pause", execution)
    assert (done.returncode, "is paused" in done.stderr) == (0, True)
    until(lambda: system.json("status", execution)["status"] == "PAUSED", "it is paused")
    until(lambda: not system.sql(f"SELECT 1 FROM noetl.run WHERE execution_id = {execution}"), "claimed rows end")
    claimed = rows(system, "pause", "state = 'claimed'")
    assert claimed < 600
    sweeps = system.sql("SELECT due_at FROM noetl.sweep")
    until(lambda: system.sql("SELECT due_at FROM noetl.sweep") != sweeps, "a sweep has come by")
    assert rows(system, "pause", "state = 'claimed'") == claimed
    assert system.cli("resume", execution).returncode == 0
    assert system.cli("wait", execution, "--timeout", "60").returncode == 0
    assert rows(system, "pause", "state = 'open'") == 0
    assert system.cli("verify", execution).returncode == 0


def test_cancel_leaves_nothing_behind(system: System) -> None:
    system.cli("register", system.playbook("control_child", CHILD))
    execution = system.cli("run", system.playbook("control_waits", WAITS), "--detach").stdout.strip()
    until(lambda: left(system, execution)["wakeup"] >= 5, "rows are parked")
    until(
        lambda: (
            system.sql(
                f"SELECT count(*) FROM noetl.execution WHERE parent_execution_id = {execution} AND status = 'RUNNING'"
            )[0][0]
            == 3
        ),
        "children run",
    )
    begun = time.monotonic()
    assert system.cli("cancel", execution, "--reason", "enough").returncode == 0
    done = system.cli("wait", execution)
    report = system.json("status", execution)
    assert (done.returncode, report["status"], report["error"]["message"]) == (1, "CANCELLED", "enough")
    assert time.monotonic() - begun < 60, "far below the minutes that its rows and children would have taken"
    statuses = system.sql(f"SELECT DISTINCT status FROM noetl.execution WHERE parent_execution_id = {execution}")
    assert statuses == [("CANCELLED",)]
    assert set(left(system, execution).values()) == {0}, left(system, execution)
    assert system.cli("verify", execution).returncode == 0


def test_a_failed_execution_is_run_again_from_where_it_failed(system: System) -> None:
    execution = submit(system, "retry", mode="fail_fast")
    assert system.cli("wait", execution).returncode == 1
    ended = rows(system, "retry", "state = 'claimed'")
    assert ended < 40
    system.sql("UPDATE control_retry SET bad = false")
    done = system.cli("retry", execution, "--wait")
    assert done.returncode == 0, done.stderr + done.stdout
    report = system.json("status", execution)
    assert (report["status"], report["steps"]["drain"]["output"]["ok"]) == ("COMPLETED", 40)
    assert report["steps"]["drain"]["rows"]["claimed"] == 40
    assert (report["steps"]["drain"]["rows"]["differences"], report["error"]) == ([], None)
    done = system.cli("verify", execution)
    assert (done.returncode, "0 differences" in done.stdout) == (0, True), done.stdout


def test_failed_rows_of_a_step_are_run_again(system: System) -> None:
    execution = submit(system, "rows")
    assert system.cli("wait", execution).returncode == 0
    assert system.json("status", execution)["steps"]["drain"]["output"]["failed"] == 4
    system.sql("UPDATE control_rows SET bad = false WHERE id <> 13")
    done = system.cli("retry", execution, "--rows", "failed", "drain", "--wait", "--json")
    assert done.returncode == 0, done.stderr
    output = json.loads(done.stdout)["steps"]["drain"]["output"]
    assert (output["ok"], output["failed"]) == (39, 1)
    assert system.cli("verify", execution, "--json").returncode == 0


def test_verify_tells_what_was_changed_behind_its_back(system: System) -> None:
    execution = submit(system, "changed")
    assert system.cli("wait", execution).returncode == 0
    system.sql(f"UPDATE noetl.frame SET ok_rows = ok_rows - 1, failed_rows = 1 WHERE execution_id = {execution}")
    done = system.cli("verify", execution)
    assert (done.returncode, "books of step drain" in done.stdout) == (1, True)
    assert system.json("verify", execution)["differences"]
    shown = system.cli("status", execution).stdout
    assert "ALARM: the books do not balance" in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("retry", "{id}"), "only a failed one is run again"),
        (("retry", "{id}", "--rows", "failed", "drain"), None),
        (("retry", "{id}", "--rows", "failed", "end"), "has no failed rows"),
        (("retry", "{id}", "--rows", "failed", "nowhere"), "has no step 'nowhere'"),
        (("retry", "{id}", "--rows", "all", "drain"), "--rows"),
        (("retry", "{id}", "drain"), "`--rows` and STEP go together"),
        (("retry", "{id}", "--rows", "failed"), "`--rows` and STEP go together"),
        (("retry", "17"), "there is no execution 17"),
        (("pause", "{id}"), "has ended: COMPLETED"),
        (("resume", "{id}"), "has ended: COMPLETED"),
        (("verify", "seventeen"), "is no execution id"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_is_said(system: System, ended: str, arguments: tuple[str, ...], said: str | None) -> None:
    done = system.cli(*(argument.format(id=ended) for argument in arguments))
    assert done.returncode == (0 if said is None else 2), done.stderr
    assert said is None or said in done.stderr


@pytest.fixture(scope="module")
def ended(system: System, credential: None) -> str:
    execution = submit(system, "ended")
    assert system.cli("wait", execution).returncode == 0
    return execution

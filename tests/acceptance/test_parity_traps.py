"""Four things that a system for these playbooks is known to get wrong, each by name, with real workers."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from running import System

pytestmark = pytest.mark.acceptance

#: CLAIM of the table TABLE; the comment is a trap in itself
CLAIM = """
        UPDATE TABLE SET status = 'claimed', claims = claims + 1, claimed_at = now()
        WHERE id IN (SELECT id FROM TABLE   -- don't wait; others may hold a row
                     WHERE status = 'open' OR (status = 'claimed' AND claimed_at < now() - interval '5 minutes')
                     ORDER BY id LIMIT {{ __frame_max_rows }} FOR UPDATE SKIP LOCKED)
        RETURNING id
"""
DRAIN = """
- step: drain
  loop:
    cursor:
      kind: postgres
      auth: parity_pg
      claim: |CLAIM
    iterator: item
    spec: {mode: cursor, max_in_flight: 2, frame: {max_rows: 5, row_concurrency: 3}}
  tool:
    kind: postgres
    auth: parity_pg
    command: UPDATE TABLE SET status = 'done' WHERE id = {{ iter.item.id }};
"""
OUTPUT = """
- step: ask
  tool:
  - name: call
    kind: python
    input: {attempt: "{{ _attempt }}"}
    code: |
      if attempt < 3:
          raise OSError("not yet")
      result = {"data": {"id": 7}, "status": "weird", "error": None}
    set: {bare: "{{ output.status }}"}
    spec:
      policy:
        rules:
        - when: "{{ output.status == 'error' }}"
          then: {do: retry, attempts: 3, set_iter: {seen: "{{ output.error.kind }}"}}
        - {when: "{{ output.data.status == 'weird' }}", then: {do: continue, set: {inner: "{{ output.data.data.id }}"}}}
        - {else: {then: {do: fail}}}
  - name: later
    kind: noop
    result: ["{{ output.status }}", "{{ output.data.error }}", "{{ bare }}", "{{ inner }}", "{{ iter.seen }}"]
  set: {ctx.last: "{{ output.data }}", ctx.result: "{{ output.result }}", ctx.response: "{{ outcome.response }}"}
  next: {arcs: [{step: end, when: "{{ output.status == 'ok' and output.data | length == 5 }}"}]}
- step: end
"""
COMMENT = """
- step: count
  tool:
    kind: postgres
    auth: parity_pg
    command: |
      CREATE TEMP TABLE words (t text);  -- it's a comment; with one apostrophe
      INSERT INTO words VALUES ('-- no comment; it''s text');
      /* nor is /* that's */ one ; */
      SELECT t, count(*) OVER () AS n FROM words -- the end isn't one either
"""


@pytest.fixture(scope="module", autouse=True)
def credential(system: System) -> None:
    data = json.dumps({"dsn": system.env["NOETL_DATABASE_URL"]})
    done = system.cli("credential", "set", "parity_pg", "--type", "postgres", "--data", "-", stdin=data)
    assert done.returncode == 0, done.stderr


def table(system: System, name: str, rows: int) -> str:
    """A queue of its own, and the step that drains it."""
    system.sql(
        f"CREATE TABLE public.{name} AS SELECT n AS id, 'open' AS status, 0 AS claims, NULL::timestamptz AS claimed_at"
        f" FROM generate_series(1, {rows}) n"
    )
    return DRAIN.replace("CLAIM", CLAIM).replace("TABLE", name)


def ran(system: System, name: str, workflow: str) -> dict[str, Any]:
    with system.client() as client:
        execution = client.submit(client.register(system.playbook(name, workflow)).path)
        execution.wait(60)
        report = execution.report() | {"events": Counter(event["event_type"] for event in execution.events())}
    assert report["status"] == "COMPLETED", report
    return report


def ctx_of(system: System, report: dict[str, Any]) -> Any:
    [(ctx,)] = system.sql("SELECT ctx FROM noetl.execution WHERE execution_id = %s", int(report["execution_id"]))
    return ctx


def frames(system: System, execution_id: str) -> list[tuple[int, int, int, str]]:
    """Visit of the step, id, rows and status of all frames of cursor loops."""
    query = """
        SELECT s.visit, f.frame_id, f.rows, f.status FROM noetl.stage s JOIN noetl.frame f USING (stage_id)
        WHERE s.execution_id = %s AND s.kind = 'cursor' ORDER BY f.frame_id
    """
    return [tuple(row) for row in system.sql(query, int(execution_id))]


def test_the_cursor_engine(system: System) -> None:
    """Frames of at most `max_rows` rows, each row claimed and worked on once, then an empty claim ends the loop."""
    report = ran(system, "parity_cursor", table(system, "parity_cursor", 23))
    assert system.sql("SELECT status, claims, count(*) FROM parity_cursor GROUP BY 1, 2") == [("done", 1, 23)]
    drained = report["steps"]["drain"]["output"]
    assert drained == {"processed": 23, "ok": 23, "failed": 0, "frames": 5, "failures": []}
    assert sorted(rows for _, _, rows, _ in frames(system, report["execution_id"])) == [3, 5, 5, 5, 5]
    types = report["events"]
    assert (types["frame.claimed"], types["frame.committed"], types["loop.done"], types["step.done"]) == (5, 5, 1, 0)


def test_the_output_namespace(system: System) -> None:
    """`output` is the outcome in rules, later tasks, step `set` and arcs, and the bare result in a task's `set`; a
    result with keys called `data`, `status` and `error` changes nothing about that."""
    report = ran(system, "parity_output", OUTPUT)
    expected = ["ok", None, "weird", 7, "python"]
    assert report["steps"]["ask"]["output"] == expected
    assert "end" in report["steps"]
    assert ctx_of(system, report) == dict.fromkeys(("last", "result", "response"), expected)


def test_going_back_to_a_loop_gives_it_fresh_frames(system: System) -> None:
    """The second visit claims what came after the first, in frames and with counts of its own."""
    again = """
  set: {ctx.counts: "{{ ctx.counts | default([]) + [output.data.processed] }}"}
  next: {arcs: [{step: refill, when: "{{ event.name == 'loop.done' and ctx.counts | length < 3 }}"}, {step: end}]}
- step: refill
  tool:
    kind: postgres
    auth: parity_pg
    command: |
      INSERT INTO parity_back
      SELECT 100 * {{ ctx.counts | length }} + n, 'open', 0 FROM generate_series(1, 7) n
  next: drain
- step: end
"""
    report = ran(system, "parity_back", table(system, "parity_back", 4) + again)
    assert ctx_of(system, report)["counts"] == [4, 7, 7]
    assert system.sql("SELECT status, claims, count(*) FROM parity_back GROUP BY 1, 2") == [("done", 1, 18)]
    found = frames(system, report["execution_id"])
    assert Counter(visit for visit, *_ in found) == {1: 1, 2: 2, 3: 2}
    assert {status for *_, status in found} == {"COMPLETED"}


def test_a_comment_with_an_apostrophe(system: System) -> None:
    """An apostrophe after `--` opens no text, so a semicolon behind it separates nothing."""
    report = ran(system, "parity_comment", COMMENT)
    assert report["steps"]["count"]["output"]["rows"] == [{"t": "-- no comment; it's text", "n": 1}]

"""duckdb and transfer on real workers: steps that run in different processes share a database."""

from __future__ import annotations

import json

import pytest
from running import System
from services import credential_of

from noetl_celery.tools.duckdb_files import folder

pytestmark = pytest.mark.acceptance

WORKFLOW = """
- step: start
  tool: {kind: duckdb, command: "CREATE TABLE users (id INTEGER PRIMARY KEY, name VARCHAR, born DATE)"}
  next: fill
- step: fill
  loop: {in: "{{ workload.users }}", iterator: user, spec: {mode: parallel, max_in_flight: 8}}
  tool:
    kind: transfer
    source: {kind: data, data: "{{ iter.user }}"}
    target: {kind: duckdb, table: users}
    spec:
      policy:
        rules:
          - {when: "{{ output.status == 'error' and output.error.retryable }}", then: {do: retry, attempts: 5}}
          - {when: "{{ output.status == 'error' }}", then: {do: fail}}
  next: move
- step: move
  tool:
    kind: transfer
    source: {kind: duckdb, query: "SELECT id, upper(name) AS shouted, born FROM users"}
    target: {kind: postgres, auth: data_tools, table: public.data_tools, mode: upsert}
    mapping: {id: id, name: shouted, born: born, run: {value: "{{ execution_id }}"}}
  next: end
- step: end
  tool: {kind: duckdb, query: "SELECT count(*) AS n FROM users"}
  set: {ctx.moved: "{{ move.rows }}"}
"""


def test_rows_on_their_way_through_duckdb(system: System) -> None:
    system.sql("CREATE TABLE public.data_tools (id int PRIMARY KEY, name text, born date, run bigint)")
    stored = json.dumps(credential_of(system.env["NOETL_DATABASE_URL"]))
    done = system.cli("credential", "set", "data_tools", "--type", "postgres", "--data", "-", stdin=stored)
    assert done.returncode == 0, done.stderr
    users = [{"id": number, "name": f"user {number}", "born": "2001-02-03"} for number in range(20)]
    file = system.playbook("data_tools", WORKFLOW, json.dumps({"users": users}))
    ran = system.json("run", file)
    own_file = folder() / f"{ran['execution_id']}.duckdb"
    assert own_file.exists()
    own_file.unlink()
    assert ran["status"] == "COMPLETED", ran
    assert ran["steps"]["end"]["output"] == [{"n": 20}]
    found = system.sql("SELECT count(*), min(name), max(born)::text, count(DISTINCT run) FROM public.data_tools")
    assert found == [(20, "USER 0", "2001-02-03", 1)]

"""Small playbooks for tests of the runtime, and the work tables that they drain."""

from __future__ import annotations

import json
from typing import Any

import psycopg

#: claims up to a frame of rows of public.work
CLAIM = """
UPDATE public.work SET state = 'claimed', claims = claims + 1 WHERE id IN (
  SELECT id FROM public.work WHERE state = 'open' ORDER BY id LIMIT {{ __frame_max_rows }} FOR UPDATE SKIP LOCKED)
RETURNING id, note
"""


def cursor(
    claim: str = CLAIM, *, auth: str = "src", spec: str = "", frame: str | None = "max_rows: 3", **tool: Any
) -> str:
    """A playbook with one cursor loop over ``public.work`` whose rows call the probe."""
    framed = "" if frame is None else f", frame: {{{frame}}}"
    return _playbook(
        f"cursor: {{kind: postgres, auth: {auth}, claim: {json.dumps(claim)}}}",
        f"mode: cursor{framed}{', ' if spec else ''}{spec}",
        tool,
    )


def collection(items: str, *, spec: str = "mode: parallel, max_in_flight: 4", **tool: Any) -> str:
    """A playbook with one loop over a list whose items call the probe."""
    return _playbook(f"in: {json.dumps(items)}", spec, tool)


def _playbook(source: str, spec: str, tool: dict[str, Any]) -> str:
    policy = tool.pop("step", None)
    return f"""
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: case, path: test/case}}
workflow:
  - step: start
    {f"spec: {json.dumps(policy)}" if policy else ""}
    loop:
      {source}
      iterator: item
      spec: {{{spec}}}
    tool: {json.dumps({"kind": "probe", "input": {"item": "{{ iter.item }}"}} | tool)}
"""


def single(**tool: Any) -> str:
    """A playbook of one plain step that calls the probe."""
    return f"""
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: case, path: test/case}}
workflow:
  - step: start
    tool: {json.dumps({"kind": "probe", "input": {"item": 1}} | tool)}
"""


def fill(url: str, rows: int, *, note: str = "''") -> None:
    """Makes ``public.work`` with so many open rows."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS public.work (id int PRIMARY KEY, state text NOT NULL DEFAULT 'open', "
            f"claims int NOT NULL DEFAULT 0, note json); "
            f"INSERT INTO public.work (id, note) SELECT n, to_json({note}::text) FROM generate_series(1, {rows}) AS n"
        )


def states(url: str) -> dict[str, int]:
    with psycopg.connect(url) as connection:
        return dict(connection.execute("SELECT state, count(*) FROM public.work GROUP BY state").fetchall())

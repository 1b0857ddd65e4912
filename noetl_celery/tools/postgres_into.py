"""``into`` of the postgres tool: the rows of its result into a table, in the transaction that made them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from noetl_celery.tools import pg, pg_script, transfer_config
from noetl_celery.tools.keys import Complaint
from noetl_celery.tools.transfer import upsert_key
from noetl_celery.tools.transfer_postgres import PostgresTarget
from noetl_celery.tools.transfer_rows import Shape


def problems(into: Any) -> Sequence[Complaint]:
    """What is wrong with ``into`` as written: it has the keys of a transfer's target but ``auth``."""
    if not isinstance(into, Mapping):
        return [("into", "`into` has to be a mapping: `{table: …, mode: …, key: …}`")]
    if "auth" in into or "credential" in into:
        return [("into", "`into` is in the same database: leave out `auth`")]
    return [("into", message.replace("`target`", "`into`")) for _, message in transfer_config.problems(_config(into))]


def save(connection: pg.Connection, script: pg_script.Script, rows: Sequence[Mapping[str, Any]], into: Any) -> None:
    """Writes the rows; the caller's transaction. Raises ``ToolError`` as a transfer does."""
    transfer = transfer_config.read(_config(into if isinstance(into, Mapping) else {}))
    target = PostgresTarget(connection, transfer.target["table"], script)
    shape = Shape(transfer.mapping, target.columns(), target.name)
    key = upsert_key(transfer, target, shape)
    if transfer.mode == "replace":
        target.clear()
    for group in shape.groups([dict(row) for row in rows], 1):
        target.write(group, key)


def _config(into: Mapping[str, Any]) -> dict[str, Any]:
    return {"source": {"kind": "data", "data": []}, "target": {**into, "kind": "postgres", "auth": "the same"}}

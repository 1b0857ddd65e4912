"""Stages, and what the engine and the lanes may ask about results: the engine's ``Facts`` over tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from psycopg.types.json import Json

from noetl_celery.engine.decision import Closing, Opening
from noetl_celery.engine.facts import Closed, Unfinished
from noetl_celery.engine.state import StageState
from noetl_celery.store.db import Connection, every, execute, json_value, one
from noetl_celery.store.loaders import Limits
from noetl_celery.store.results import Opener, brief, collection
from noetl_celery.template.lazy import document


def open_stages(connection: Connection, execution_id: int, openings: Iterable[Opening]) -> None:
    """Writes OPEN stages."""
    for opening in openings:
        execute(
            connection,
            """
            INSERT INTO noetl.stage (stage_id, execution_id, step_name, visit, kind, status, settings, args, previous,
                                     total)
            VALUES (%(stage)s, %(execution)s, %(step)s, %(visit)s, %(kind)s, 'OPEN', %(settings)s, %(args)s,
                    %(previous)s, %(total)s)
            """,
            stage=opening.stage_id,
            execution=execution_id,
            step=opening.step,
            visit=opening.visit,
            kind=opening.kind,
            settings=Json(opening.settings.document()),
            args=json_value(opening.args),
            previous=opening.previous,
            total=opening.total,
        )


def close_stages(connection: Connection, closings: Iterable[Closing]) -> None:
    """OPEN → COMPLETED, FAILED or CANCELLED with result and error."""
    for closing in closings:
        execute(
            connection,
            """
            UPDATE noetl.stage SET status = %(status)s, result = %(result)s, task_results = %(tasks)s,
                   error = %(error)s, state = %(state)s, ok_rows = %(ok)s, failed_rows = %(failed)s,
                   frames = %(frames)s, retries = %(retries)s, closed_at = clock_timestamp()
            WHERE stage_id = %(stage)s AND status = 'OPEN'
            """,
            stage=closing.stage_id,
            status=closing.status,
            # JSON null and "no result" are told apart: a step that returned nothing still has a result.
            result=Json(document(closing.result)),
            tasks=json_value(_documents(closing.task_results)),
            error=json_value(closing.error),
            state=json_value(closing.state),
            ok=closing.ok,
            failed=closing.failed,
            frames=closing.frames,
            retries=closing.retries,
        )


def _documents(task_results: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if task_results is None else {name: document(value) for name, value in task_results.items()}


def set_total(connection: Connection, stage_id: int, total: int) -> None:
    """Notes how many rows the source had when the loop began."""
    execute(
        connection, "UPDATE noetl.stage SET total = %(total)s WHERE stage_id = %(stage)s", total=total, stage=stage_id
    )


def load(connection: Connection, stage_id: int) -> Mapping[str, Any] | None:
    """What a lane or claim needs of its stage and execution, in one statement."""
    return one(
        connection,
        """
        SELECT s.stage_id, s.execution_id, s.step_name, s.kind, s.settings, s.args, s.previous, s.status,
               e.catalog_id, e.workload, e.ctx, e.status AS execution_status, e.depth, e.parent_iter
        FROM noetl.stage s JOIN noetl.execution e USING (execution_id) WHERE s.stage_id = %(stage)s
        """,
        stage=stage_id,
    )


def frame_ctx(connection: Connection, frame_id: int) -> list[Mapping[str, Any]]:
    """What the ended rows of a frame wrote to ``ctx``, in row order."""
    rows = every(
        connection,
        "SELECT ctx FROM noetl.row WHERE frame_id = %(frame)s AND ctx IS NOT NULL ORDER BY row_index",
        frame=frame_id,
    )
    return [row["ctx"] for row in rows]


class Results(Mapping[str, Any]):
    """Step name → result of its last closed visit, loaded when asked for and remembered.

    What is kept elsewhere is lazy: it is read with ``opener`` (None: in this transaction, with it it ends).
    """

    column = "result"

    def __init__(
        self, connection: Connection, execution_id: int, steps: Iterable[str], opener: Opener | None = None
    ) -> None:
        self._connection, self._execution_id, self._steps = connection, execution_id, frozenset(steps)
        self._opener = opener or Opener.within(connection, Limits())
        self._known: dict[str, tuple[bool, Any]] = {}

    def __getitem__(self, step: str) -> Any:
        if step not in self._steps:
            raise KeyError(step)
        if step not in self._known:
            row = one(
                self._connection,
                f"""
                SELECT {self.column} AS value FROM noetl.stage
                WHERE execution_id = %(execution)s AND step_name = %(step)s AND status IN ('COMPLETED', 'FAILED')
                  AND {self.column} IS NOT NULL
                ORDER BY visit DESC LIMIT 1
                """,
                execution=self._execution_id,
                step=step,
            )
            self._known[step] = (row is not None, self._value(row["value"]) if row else None)
        found, value = self._known[step]
        if not found:
            raise KeyError(step)
        return value

    def _value(self, stored: Any) -> Any:
        return self._opener.open(stored)

    def know(self, step: str, value: Any) -> None:
        """What this step's value is, as the transaction has written it."""
        if step in self._steps:
            self._known[step] = (True, self._value(self._document(value)))

    def _document(self, value: Any) -> Any:
        return document(value)

    def load(self, steps: Iterable[str]) -> dict[str, Any]:
        """The results of these steps as a dictionary, for use without the connection (if the opener needs none)."""
        return {step: self[step] for step in steps if step in self}

    def __iter__(self) -> Iterator[str]:
        return (step for step in self._steps if step in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, step: object) -> bool:
        try:
            self[step]  # type: ignore[index]
        except KeyError:
            return False
        return True


class TaskResults(Results):
    """Step name → task name → result, for steps whose tasks' results some template asks for."""

    column = "task_results"

    def _value(self, stored: Any) -> Any:
        return self._opener.open_each(stored)

    def _document(self, value: Any) -> Any:
        return _documents(value)


class TableFacts:
    """The engine's ``Facts``, answered in the transaction that holds the execution's lock."""

    def __init__(
        self, connection: Connection, execution_id: int, steps: Iterable[str], limits: Limits | None = None
    ) -> None:
        steps = frozenset(steps)
        self._connection, self._execution_id = connection, execution_id
        self._limits = limits or Limits()
        self._opener = Opener.within(connection, self._limits)
        self.results: Mapping[str, Any] = Results(connection, execution_id, steps, self._opener)
        self.task_results: Mapping[str, Mapping[str, Any]] = TaskResults(connection, execution_id, steps, self._opener)

    def single(self, stage: StageState) -> Mapping[str, Any]:
        row = one(
            self._connection,
            """
            SELECT r.status, r.result, r.error, r.meta, r.task_results
            FROM noetl.row r JOIN noetl.frame f USING (frame_id) WHERE f.stage_id = %(stage)s
            """,
            stage=stage.stage_id,
        )
        row = row or {"status": "FAILED", "result": None, "error": None, "meta": None, "task_results": None}
        failed = row["status"] != "OK"
        error = row["error"] or ({"kind": "cancelled", "message": "the step was stopped"} if failed else {})
        meta = row["meta"] or {}
        data = self._opener.open(row["result"])
        return {
            "status": "error" if failed else "ok",
            "data": data,
            "result": data,
            "response": data,
            "error": error,
            **{part: meta.get(part, {}) for part in ("http", "pg", "py", "meta")},
            "task_results": row["task_results"] and self._opener.open_each(row["task_results"]),
        }

    def collection(self, stage: StageState) -> Mapping[str, Any]:
        found = collection(self._connection, stage.stage_id, self._limits)
        stats = {"total": len(found), "ok": stage.ok, "failed": stage.failed}
        return {"results": found, "data": found, "count": len(found), "stats": stats}

    def failures(self, stage: StageState, limit: int) -> Sequence[Mapping[str, Any]]:
        rows = every(
            self._connection,
            """
            SELECT f.frame_index AS frame, r.row_index AS index, r.payload AS item, r.error
            FROM noetl.frame f JOIN noetl.row r USING (frame_id)
            WHERE f.stage_id = %(stage)s AND f.failed_rows > 0 AND r.status = 'FAILED'
            ORDER BY f.frame_index, r.row_index LIMIT %(limit)s
            """,
            stage=stage.stage_id,
            limit=limit,
        )
        return [{**row, "item": brief(row["item"])} for row in rows]

    def aggregates(self, stage: StageState, frame_id: int) -> Iterator[Mapping[str, Any]]:
        rows = every(
            self._connection,
            """
            SELECT aggregate FROM noetl.row
            WHERE frame_id = %(frame)s AND status = 'OK' AND aggregate IS NOT NULL ORDER BY row_index
            """,
            frame=frame_id,
        )
        return (row["aggregate"] for row in rows)

    def ctx_writes(self, stage: StageState, frame_id: int) -> Sequence[Mapping[str, Any]]:
        return frame_ctx(self._connection, frame_id)

    def closed(self, stage_id: int) -> Closed | None:
        return _closed(
            one(
                self._connection,
                "SELECT status, state, args FROM noetl.stage WHERE stage_id = %(stage)s",
                stage=stage_id,
            )
        )

    def last(self, step: str) -> Closed | None:
        row = one(
            self._connection,
            """
            SELECT status, state, args, frames FROM noetl.stage
            WHERE execution_id = %(execution)s AND step_name = %(step)s ORDER BY visit DESC LIMIT 1
            """,
            execution=self._execution_id,
            step=step,
        )
        return _closed(row) if row and row["frames"] else None

    def unfinished(self, stage: StageState, statuses: Sequence[str], after: int, limit: int) -> list[Unfinished]:
        rows = every(
            self._connection,
            """
            SELECT frame_id, slots, ok_rows * weight AS ok, failed_rows * weight AS failed, retries FROM noetl.frame f
            WHERE stage_id = %(stage)s AND frame_id > %(after)s AND status = 'COMPLETED' AND ok_rows < rows
              AND EXISTS (SELECT FROM noetl.row r WHERE r.frame_id = f.frame_id AND r.status = ANY(%(statuses)s))
            ORDER BY frame_id LIMIT %(limit)s
            """,
            stage=stage.stage_id,
            statuses=list(statuses),
            after=after,
            limit=limit,
        )
        return [Unfinished(**row) for row in rows]


def _closed(row: Mapping[str, Any] | None) -> Closed | None:
    if row is None or row["status"] not in ("COMPLETED", "FAILED") or row["state"] is None:
        return None
    return Closed(StageState.of(row["state"]), row["args"])

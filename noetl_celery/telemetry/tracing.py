"""What spans say of executions, stages, frames, rows and tasks.

A span is sent by whoever ends what it is about: rows and tasks by their lane, as they end; what has its times in the
tables is looked up by a thread of its own, after the transaction that ended it.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from noetl_celery.outcome import Outcome
from noetl_celery.playbook.plan import TaskPlan
from noetl_celery.settings import Settings
from noetl_celery.store import spans as ended_parts
from noetl_celery.store.db import Database
from noetl_celery.telemetry.spans import FLUSH_SECONDS, Attributes, Span, Spans, row_span_id

log = logging.getLogger(__name__)

#: what has ended and waits to be looked up, at most; more is dropped
MOST_WAITING = 1000


@dataclass(frozen=True, slots=True)
class _Ended:
    """What is to be looked up."""

    execution_id: int
    stages: tuple[int, ...]
    whole: bool


class Tracing:
    """Spans of this process. Safe to share between threads; waits for nothing."""

    def __init__(self, settings: Settings) -> None:
        self.spans = Spans()
        self._db = Database(settings, pool_size=2)
        self._waiting: queue.Queue[_Ended | None] = queue.Queue(MOST_WAITING)
        self._thread = threading.Thread(target=self._look_up, name="noetl-spans", daemon=True)
        self._thread.start()

    def ended(self, execution_id: int, stages: tuple[int, ...], *, whole: bool) -> None:
        """These stages have ended, and the execution itself if ``whole``: their spans follow."""
        if self.spans.sampled(execution_id) and (stages or whole):
            with suppress(queue.Full):
                self._waiting.put_nowait(_Ended(execution_id, stages, whole))

    def task(self, execution_id: int, step: str, frame_id: int, row: int, task: TaskPlan, outcome: Outcome) -> None:
        """A task of a row has been run, just now."""
        ended = time.time_ns()
        attributes: dict[str, str | int | float | bool] = {
            "noetl.execution_id": str(execution_id),
            "noetl.step": step,
            "noetl.row": row,
            "noetl.task": task.name,
            "noetl.tool": task.kind,
        }
        error = outcome.error
        status = outcome.http.get("status") or (error and error.status)
        if isinstance(status, int):
            attributes["http.response.status_code"] = status
        if error is not None:
            attributes["error.type"] = error.kind
        begun = ended - int(float(outcome.meta.get("duration", 0)) * 1e9)
        place = execution_id, None, row_span_id(frame_id, row)
        self.spans.send(Span(*place, task.name, begun, ended, attributes, None if error is None else error.message))

    def row(
        self,
        execution_id: int,
        step: str,
        frame_id: int,
        row: int,
        begun: float,
        ended: float,
        retries: int,
        error: str | None,
    ) -> None:
        """A row has come to its end; times are Unix time in seconds."""
        attributes: dict[str, str | int | float | bool] = {
            "noetl.execution_id": str(execution_id),
            "noetl.step": step,
            "noetl.frame_id": str(frame_id),
            "noetl.row": row,
            "noetl.retries": retries,
        }
        place = execution_id, row_span_id(frame_id, row), frame_id
        self.spans.send(Span(*place, "row", int(begun * 1e9), int(ended * 1e9), attributes, error))

    def frame(self, path: str, frame: Mapping[str, Any]) -> None:
        """A frame has ended, with these values of its own."""
        names = {"index": "frame_index", "rows_ok": "ok", "rows_failed": "failed", "reruns": "reruns"}
        attributes = {
            **_named(frame["execution_id"], path, frame["step_name"]),
            "noetl.frame_id": str(frame["frame_id"]),
            **{f"noetl.{name}": frame[column] for name, column in names.items()},
        }
        begun, ended = _nanoseconds(frame["created_at"]), _nanoseconds(frame["completed_at"])
        place = frame["execution_id"], frame["frame_id"], frame["stage_id"]
        self.spans.send(Span(*place, "frame", begun, ended, attributes))

    def close(self) -> None:
        """Sends what there is, if that does not take long."""
        with suppress(queue.Full):
            self._waiting.put_nowait(None)
            self._thread.join(FLUSH_SECONDS)
        self.spans.close()
        self._db.close()

    def _look_up(self) -> None:
        while (ended := self._waiting.get()) is not None:
            try:
                for stage in self._db.read(partial(ended_parts.stages, stage_ids=ended.stages)):
                    self._stage(stage)
                if ended.whole:
                    self._execution(ended.execution_id)
            except Exception as error:  # a span is not worth a failure of anything
                log.debug("spans of execution %s are lost: %s", ended.execution_id, error)

    def _stage(self, stage: Mapping[str, Any]) -> None:
        execution_id = stage["execution_id"]
        attributes = {
            **_named(execution_id, stage["path"], stage["step_name"]),
            "noetl.kind": stage["kind"],
            "noetl.status": stage["status"],
            "noetl.visit": stage["visit"],
            "noetl.frames": stage["frames"],
        }
        begun, ended = _nanoseconds(stage["opened_at"]), _nanoseconds(stage["closed_at"])
        place = execution_id, stage["stage_id"], execution_id
        error = _error(stage) if stage["status"] == "FAILED" else None
        self.spans.send(Span(*place, stage["step_name"], begun, ended, attributes, error))

    def _execution(self, execution_id: int) -> None:
        execution = self._db.read(partial(ended_parts.execution, execution_id=execution_id))
        if execution is None:
            return
        attributes: dict[str, Any] = {**_named(execution_id, execution["path"]), "noetl.status": execution["status"]}
        caller = None
        if execution["parent_execution_id"] is not None:
            attributes["noetl.parent_execution_id"] = str(execution["parent_execution_id"])
            row = row_span_id(execution["parent_frame_id"], execution["parent_row_index"])
            caller = execution["parent_execution_id"], row
        begun, ended = _nanoseconds(execution["created_at"]), _nanoseconds(execution["finished_at"])
        error = _error(execution) if execution["status"] != "COMPLETED" else None
        self.spans.send(
            Span(execution_id, execution_id, None, execution["path"], begun, ended, attributes, error, caller)
        )


def _named(execution_id: int, path: str, step: str | None = None) -> Attributes:
    named: dict[str, str | int | float | bool] = {"noetl.execution_id": str(execution_id), "noetl.path": path}
    if step is not None:
        named["noetl.step"] = step
    return named


def _nanoseconds(time: datetime) -> int:
    return round(time.timestamp() * 1e6) * 1000


def _error(row: Mapping[str, Any]) -> str:
    return str((row["error"] or {}).get("message") or row["status"])

"""Is an execution what its events say? It is decided again, turn by turn, and compared with the tables.

The same engine runs in :mod:`~noetl_celery.engine.replay`; what it asks is answered from outcomes of rows and results
of stages as they are in the tables. One transaction sees everything as of one moment, also of an execution at work.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from noetl_celery import hiding
from noetl_celery.engine.decision import ClaimSpec, Closing, Opening
from noetl_celery.engine.replay import replay, since_the_last_retry, whole
from noetl_celery.engine.state import FINAL, ExecutionState
from noetl_celery.playbook.plan import Plan
from noetl_celery.store import events, ledger
from noetl_celery.store.db import Connection, every, one, snapshot
from noetl_celery.store.loaders import Limits
from noetl_celery.store.stages import TableFacts
from noetl_celery.template.lazy import document

#: differences of one kind that are named one by one
NAMED = 20
#: what only an execution at work has, and by which of its rows to tell
_LEFT_OVER = {
    "run": "TRUE",
    "outbox": "TRUE",
    "claim": "status IN ('OPEN', 'TAKEN')",
    "frame": "status IN ('RUNNING', 'TENTATIVE')",
    "stage": "status = 'OPEN'",
    "signal": "due_at > clock_timestamp()",
}


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that is not as the events say: ``what``, and how it is and should be (None: it should not be there)."""

    what: str
    expected: Any
    found: Any


@dataclass(slots=True)
class Verification:
    """What came of it. ``turns`` were decided again; ``notes`` say what could not be compared and why."""

    turns: int = 0
    differences: list[Difference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def compare(self, what: str, expected: Any, found: Any) -> None:
        """Notes a difference, if there is one."""
        if expected != found:
            self.differences.append(Difference(what, expected, found))


def verify(connection: Connection, execution_id: int, plan: Plan, limits: Limits) -> Verification:
    """Replays an execution and compares, all as it was at one moment; ``connection`` must not be in a transaction.

    ``plan`` is that of its playbook. Changes nothing; an execution that does not exist raises ``LookupError``.
    """
    with snapshot(connection):
        return _verify(connection, execution_id, plan, limits)


def _verify(connection: Connection, execution_id: int, plan: Plan, limits: Limits) -> Verification:
    row = one(
        connection,
        "SELECT status, workload, ctx, state, error, parent_iter FROM noetl.execution WHERE execution_id = %(id)s",
        id=execution_id,
    )
    if row is None:
        raise LookupError(f"there is no execution {execution_id}")
    found = Verification()
    again = _Replay(connection, execution_id, plan, limits, row)
    if again.run(found):
        _compare_execution(found, row, again.state)
        _compare_stages(connection, found, execution_id, again)
        _compare_claims(connection, found, again)
        _compare_events(connection, found, execution_id, again)
    _compare_books(connection, found, execution_id)
    if row["status"] in FINAL:
        _nothing_left(connection, found, execution_id)
    return found


class _Replay:
    """The execution as its turns say it is, and what they asked for."""

    def __init__(
        self, connection: Connection, execution_id: int, plan: Plan, limits: Limits, row: Mapping[str, Any]
    ) -> None:
        self.plan = plan
        self.facts = _PastFacts(connection, execution_id, plan, limits)
        hiding.learn_workload(execution_id, row["workload"])  # errors were told without its secrets, and are again
        self.state = ExecutionState(execution_id, workload=row["workload"], parent_iter=row["parent_iter"])
        self.records = events.turns(connection, execution_id)
        self.connection = connection
        self.openings: dict[int, Opening] = {}
        self.closings: dict[int, Closing] = {}
        self.claims: dict[int, ClaimSpec] = {}
        self.events: Counter[tuple[str, int | None, str | None]] = Counter()
        #: not all turns could be replayed: it began in the middle
        self.partly = False
        #: event id of the first turn that was replayed
        self.first = 0

    def run(self, found: Verification) -> bool:
        """Replays the turns. False if there is nothing to begin with: then only the books are compared."""
        records = [_Record(turn["event_id"], turn["record"]) for turn in self.records]
        start = since_the_last_retry([record.content for record in records])
        if start:
            self._begin_after(records[start - 1])
            found.notes.append("failed work was run again: what was decided before that is not decided again")
        elif not records or records[0].content["turn"] != 1:
            found.notes.append(
                "its first events are not there (pruned, or of an earlier version): only the books count"
            )
            return False
        self.first = records[start].event_id if start < len(records) else 0
        for record in records[start:]:
            try:
                self._turn(record)
            except LookupError as error:
                found.differences.append(Difference(f"turn of event {record.event_id}", "is decided again", str(error)))
                return False
            found.turns += 1
        return True

    def _begin_after(self, record: _Record) -> None:
        state = record.content["state"]
        self.state.status, self.state.ctx, self.state.error = state["status"], state["ctx"], state["error"]
        self.state.restore(state["document"])
        self.partly = True
        self.facts.begin(record.event_id, set(self.state.stages))

    def _turn(self, record: _Record) -> None:
        decision = replay(self.plan, self.state, record.content, self.facts)
        self.openings |= {opening.stage_id: opening for opening in decision.openings}
        self.claims |= {claim.claim_id: claim for claim in decision.claims}
        for reopening in decision.reopenings:
            self.closings.pop(reopening.stage_id, None)
        for closing in decision.closings:
            self.closings[closing.stage_id] = closing
            if closing.status != "CANCELLED":
                self.facts.closed_now(closing.step, closing.stage_id)
        self.events.update((event.type, event.stage_id, event.status) for event in decision.events)


@dataclass(frozen=True, slots=True)
class _Record:
    event_id: int
    content: Mapping[str, Any]


class _PastFacts(TableFacts):
    """Facts as they were: a step's result is that of the visit which the replay closed last."""

    def __init__(self, connection: Connection, execution_id: int, plan: Plan, limits: Limits) -> None:
        super().__init__(connection, execution_id, plan.steps, limits)
        self._last: dict[str, int] = {}
        self.results = _Past(connection, "result", self._last, self._opener.open)
        self.task_results = _Past(connection, "task_results", self._last, self._opener.open_each)

    def begin(self, event_id: int, open_stages: set[int]) -> None:
        """Whatever was closed before that event, but for what it left open, is closed."""
        for row in every(
            self._connection,
            """
            SELECT s.step_name, s.stage_id FROM noetl.stage s
            JOIN noetl.event e ON e.execution_id = s.execution_id AND e.stage_id = s.stage_id
            WHERE s.execution_id = %(execution)s AND e.event_type = 'step.exit' AND e.status <> 'CANCELLED'
              AND e.event_id < %(event)s
            ORDER BY s.visit
            """,
            execution=self._execution_id,
            event=event_id,
        ):
            if row["stage_id"] not in open_stages:
                self.closed_now(row["step_name"], row["stage_id"])

    def closed_now(self, step: str, stage_id: int) -> None:
        self._last[step] = stage_id


class _Past(Mapping[str, Any]):
    def __init__(self, connection: Connection, column: str, last: Mapping[str, int], opened: Any) -> None:
        self._connection, self._column, self._last, self._opened = connection, column, last, opened

    def __getitem__(self, step: str) -> Any:
        stored = one(
            self._connection,
            f"SELECT {self._column} AS value FROM noetl.stage WHERE stage_id = %(stage)s",
            stage=self._last[step],
        )
        if stored is None or stored["value"] is None:
            raise KeyError(step)
        return self._opened(stored["value"])

    def __iter__(self) -> Iterator[str]:
        return iter(self._last)

    def __len__(self) -> int:
        return len(self._last)


def _compare_execution(found: Verification, row: Mapping[str, Any], state: ExecutionState) -> None:
    expected = _json(whole(state))
    stored = ExecutionState(state.execution_id)
    stored.restore(row["state"])  # what a version before wrote lacks keys that have defaults
    is_ = _json(stored.document())
    found.compare("status of the execution", expected["status"], row["status"])
    found.compare("ctx of the execution", expected["ctx"], row["ctx"])
    found.compare("error of the execution", expected["error"], row["error"])
    for part, value in expected["document"].items():
        found.compare(f"{part} of its state", value, is_[part])


def _compare_stages(connection: Connection, found: Verification, execution_id: int, again: _Replay) -> None:
    rows = every(
        connection,
        """
        SELECT stage_id, step_name, visit, kind, status, ok_rows, failed_rows, frames, result, error
        FROM noetl.stage WHERE execution_id = %(execution)s ORDER BY stage_id
        """,
        execution=execution_id,
    )
    there = {row["stage_id"]: row for row in rows}
    for stage_id, opening in again.openings.items():
        row = there.get(stage_id)
        what = f"step {opening.step}, visit {opening.visit}"
        if row is None:
            found.compare(what, "is there", None)
            continue
        found.compare(what, (opening.step, opening.visit, opening.kind), (row["step_name"], row["visit"], row["kind"]))
    for stage_id, row in there.items():
        closing = again.closings.get(stage_id)
        what = f"step {row['step_name']}, visit {row['visit']}"
        if closing is not None:
            _compare_closed(found, what, closing, row)
        elif stage_id in again.state.stages:
            found.compare(f"status of {what}", "OPEN", row["status"])
        elif not again.partly:
            found.compare(what, None, row["status"])


def _compare_closed(found: Verification, what: str, closing: Closing, row: Mapping[str, Any]) -> None:
    expected = {"status": closing.status, "ok": closing.ok, "failed": closing.failed, "frames": closing.frames}
    is_ = {"status": row["status"], "ok": row["ok_rows"], "failed": row["failed_rows"], "frames": row["frames"]}
    for part, value in expected.items():
        found.compare(f"{part} of {what}", value, is_[part])
    found.compare(f"result of {what}", _json(document(closing.result)), row["result"])
    found.compare(f"error of {what}", _json(closing.error), row["error"])


def _compare_claims(connection: Connection, found: Verification, again: _Replay) -> None:
    stages = sorted({claim.stage_id for claim in again.claims.values()})
    rows = every(
        connection,
        "SELECT claim_id, stage_id, frame_index, budget, sole, more FROM noetl.claim WHERE stage_id = ANY(%(stages)s)",
        stages=stages,
    )
    there = {row.pop("claim_id"): row for row in rows}
    expected = {
        claim.claim_id: {
            "stage_id": claim.stage_id,
            "frame_index": claim.index,
            "budget": claim.budget,
            "sole": claim.sole,
            "more": claim.more,
        }
        for claim in again.claims.values()
    }
    wrong = [claim_id for claim_id in expected if expected[claim_id] != there.get(claim_id)]
    for claim_id in wrong[:NAMED]:
        found.compare(f"claim {claim_id}", expected[claim_id], there.get(claim_id))
    if not again.partly:
        for claim_id in sorted(there.keys() - expected.keys())[:NAMED]:
            found.compare(f"claim {claim_id}", None, there[claim_id])


def _compare_events(connection: Connection, found: Verification, execution_id: int, again: _Replay) -> None:
    rows = every(
        connection,
        """
        SELECT event_type, stage_id, status, count(*) AS n FROM noetl.event
        WHERE execution_id = %(execution)s AND event_id >= %(first)s AND event_type = ANY(%(types)s) GROUP BY 1, 2, 3
        """,
        execution=execution_id,
        first=again.first,
        types=sorted({type_ for type_, _, _ in again.events}),
    )
    told = Counter({(row["event_type"], row["stage_id"], row["status"]): row["n"] for row in rows})
    for key in sorted(again.events.keys() | told.keys(), key=str)[: 10 * NAMED]:
        found.compare(f"number of events {key[0]} ({key[2]})", again.events[key], told[key])


def _compare_books(connection: Connection, found: Verification, execution_id: int) -> None:
    for stage in ledger.of_execution(connection, execution_id, recount=True):
        for difference in stage.differences:
            found.differences.append(Difference(f"books of step {stage.step}", "they balance", difference))


def _nothing_left(connection: Connection, found: Verification, execution_id: int) -> None:
    for table, condition in _LEFT_OVER.items():
        row = one(
            connection,
            f"SELECT count(*) AS n FROM noetl.{table} WHERE execution_id = %(execution)s AND {condition}",
            execution=execution_id,
        )
        found.compare(f"open {table}s after the end", 0, row["n"] if row else 0)
    row = one(
        connection,
        """
        SELECT count(*) AS n FROM noetl.wakeup w JOIN noetl.frame f USING (frame_id)
        WHERE f.execution_id = %(execution)s
        """,
        execution=execution_id,
    )
    found.compare("planned wake-ups after the end", 0, row["n"] if row else 0)


def _json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def shown(differences: Iterable[Difference]) -> Iterator[str]:
    """One line for each."""
    for difference in differences:
        if difference.expected is None:
            yield f"{difference.what}: should not be there, is {_brief(difference.found)}"
        else:
            yield f"{difference.what}: should be {_brief(difference.expected)}, is {_brief(difference.found)}"


def _brief(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 200 else f"{text[:200]}…"

"""The schema ``noetl``, declared once. Alembic's migrations lead to exactly this (a test compares them).

Hot tables (``row``, ``run``, ``claim``, ``outbox``, ``signal``) have no foreign key to ``execution``: an insert
would take KEY SHARE on the row that orchestration locks. They are bound by ids that are never reused instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

SCHEMA = "noetl"

metadata = sa.MetaData(
    schema=SCHEMA,
    naming_convention={
        "pk": "%(table_name)s_pkey",
        "ix": "%(table_name)s_%(column_0_N_name)s_idx",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "ck": "%(table_name)s_%(constraint_name)s_check",
        "fk": "%(table_name)s_%(column_0_N_name)s_fkey",
    },
)


def declared(name: str | None, kind: str, parents: Mapping[str, str | None]) -> bool:
    """Alembic's ``include_name``: is this ours to compare? Other schemas are not, nor the partitions of events."""
    if kind == "schema":
        return name == SCHEMA
    return kind != "table" or re.fullmatch(r"event_(before_)?\d+w\d\d", name or "") is None


def _id(name: str, *, generated: bool = False) -> sa.Column[Any]:
    if generated:
        return sa.Column(name, sa.BigInteger, sa.Identity(always=True), primary_key=True)
    return sa.Column(name, sa.BigInteger, primary_key=True, autoincrement=False)


def _now(name: str, *, key: bool = False) -> sa.Column[Any]:
    now = sa.func.clock_timestamp()
    return sa.Column(name, sa.TIMESTAMP(timezone=True), primary_key=key, nullable=False, server_default=now)


def _time(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.TIMESTAMP(timezone=True))


def _count(name: str, default: int = 0) -> sa.Column[Any]:
    return sa.Column(name, sa.Integer, nullable=False, server_default=str(default))


def _json(name: str, *, nullable: bool = True) -> sa.Column[Any]:
    """Values that belong to playbooks are ``json``, not ``jsonb``: it keeps the order of keys (columns of a row)."""
    return sa.Column(name, sa.JSON(none_as_null=True), nullable=nullable)


def _searched(name: str) -> sa.Column[Any]:
    """What people search with operators: ``jsonb``."""
    return sa.Column(name, JSONB(none_as_null=True))


def _big(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger, nullable=nullable)


def _text(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.Text, nullable=nullable)


def _status(*allowed: str) -> tuple[sa.Column[Any], sa.CheckConstraint]:
    listed = ", ".join(f"'{value}'" for value in allowed)
    return _text("status"), sa.CheckConstraint(f"status IN ({listed})", name="status")


catalog = sa.Table(
    "catalog",
    metadata,
    _id("catalog_id", generated=True),
    _text("path"),
    sa.Column("version", sa.Integer, nullable=False),
    _text("content"),
    _text("fingerprint"),
    _text("file", nullable=True),
    _now("created_at"),
    #: for those who read the catalog with SQL; there is one kind
    sa.Column("kind", sa.Text, nullable=False, server_default="Playbook"),
    sa.UniqueConstraint("path", "version"),
)

credential = sa.Table(
    "credential",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    _text("type"),
    #: Fernet token of the JSON fields
    sa.Column("data", sa.LargeBinary, nullable=False),
    _now("created_at"),
    _now("updated_at"),
)

execution = sa.Table(
    "execution",
    metadata,
    _id("execution_id"),
    _big("catalog_id"),
    _text("path"),
    #: of a child: the execution and the row that wait for it, what the caller asked for, its depth, its ``iter``
    _big("parent_execution_id", nullable=True),
    _big("parent_frame_id", nullable=True),
    sa.Column("parent_row_index", sa.Integer),
    _count("depth"),
    _json("parent_iter"),
    *_status("PENDING", "RUNNING", "PAUSED", "CANCELLING", "COMPLETED", "FAILED", "CANCELLED"),
    _json("workload", nullable=False),
    _json("ctx", nullable=False),
    #: open stages and waiting tokens: ``ExecutionState.document()``
    _json("state", nullable=False),
    _json("error"),
    _now("created_at"),
    _time("started_at"),
    _time("finished_at"),
    sa.Index("execution_created_at_idx", "created_at", "execution_id"),
    sa.Index("execution_status_idx", "status", "created_at", "execution_id"),
    sa.Index("execution_path_idx", "path", "created_at", "execution_id"),
    sa.Index(
        "execution_parent_idx", "parent_execution_id", postgresql_where=sa.text("parent_execution_id IS NOT NULL")
    ),
    sa.CheckConstraint("(finished_at IS NOT NULL) = (status IN ('COMPLETED', 'FAILED', 'CANCELLED'))", name="finished"),
)

stage = sa.Table(
    "stage",
    metadata,
    _id("stage_id"),
    _big("execution_id"),
    _text("step_name"),
    sa.Column("visit", sa.Integer, nullable=False),
    _text("kind"),
    *_status("OPEN", "COMPLETED", "FAILED", "CANCELLED"),
    #: what its lanes need beside the plan: rendered loop settings, ``args``, the previous step
    _json("settings", nullable=False),
    _json("args"),
    _text("previous", nullable=True),
    _count("ok_rows"),
    _count("failed_rows"),
    _count("frames"),
    #: attempts of its ended rows that failed and were made again
    _count("retries"),
    #: rows that a loop has to do: of a collection its length, of a cursor what ``loop.cursor.count`` said at the start
    _big("total", nullable=True),
    _json("result"),
    _json("task_results"),
    _json("error"),
    #: of a closed one: its ``StageState`` at the end, to go on with when its rows are run again
    _json("state"),
    _now("opened_at"),
    _time("closed_at"),
    sa.Index("stage_execution_idx", "execution_id", "step_name", "visit"),
)

claim = sa.Table(
    "claim",
    metadata,
    _id("claim_id"),
    _big("stage_id"),
    _big("execution_id"),
    *_status("OPEN", "TAKEN", "FILLED", "EMPTY", "FAILED", "CANCELLED"),
    sa.Column("frame_index", sa.Integer, nullable=False),
    _count("budget", 1),
    sa.Column("sole", sa.Boolean, nullable=False),
    sa.Column("more", sa.Boolean, nullable=False),
    #: the playbook's stale re-claim runs before it
    sa.Column("reclaim", sa.Boolean, nullable=False, server_default=sa.false()),
    _big("taken_by", nullable=True),
    _count("attempts"),
    _now("created_at"),
    sa.Index("claim_execution_idx", "execution_id"),
    sa.Index("claim_stage_idx", "stage_id", postgresql_where=sa.text("status IN ('OPEN', 'TAKEN')")),
    sa.CheckConstraint("(status = 'TAKEN') = (taken_by IS NOT NULL)", name="taken"),
)

frame = sa.Table(
    "frame",
    metadata,
    _id("frame_id"),
    _big("stage_id"),
    _big("execution_id"),
    _big("claim_id", nullable=True),
    *_status("TENTATIVE", "RUNNING", "COMPLETED", "ABANDONED"),
    sa.Column("frame_index", sa.Integer, nullable=False),
    _count("rows"),
    _count("open_rows"),
    _count("ok_rows"),
    _count("failed_rows"),
    #: source rows per row: the number claimed where the pipeline gets the whole frame, else 1
    _count("weight", 1),
    _count("slots", 1),
    _count("lanes", 1),
    _count("row_concurrency", 1),
    #: lanes that were asked for (and are still wanted), and those that started: equal when the frame ends
    _count("lane_requests"),
    _count("lane_starts"),
    #: what `__claim_token` is for its rows
    _big("token", nullable=True),
    #: rows that had begun and were run again because their worker died
    _count("reruns"),
    #: attempts of its ended rows that failed and were made again
    _count("retries"),
    sa.Column("stopping", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("fail_fast", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("has_ctx", sa.Boolean, nullable=False, server_default=sa.false()),
    #: a row that fails for good is handed to the playbook's dead letter statement first
    sa.Column("dead_letter", sa.Boolean, nullable=False, server_default=sa.false()),
    _count("attempt", 1),
    _time("lease_until"),
    #: hashes of the claimed rows, to notice a source that hands out the same ones again
    sa.Column("digests", ARRAY(sa.BigInteger)),
    #: where a tentative frame's rows were claimed: transaction, database, credential
    _json("source"),
    _now("created_at"),
    _time("completed_at"),
    sa.Index("frame_stage_idx", "stage_id", "frame_index"),
    sa.Index("frame_open_idx", "stage_id", postgresql_where=sa.text("status IN ('TENTATIVE', 'RUNNING')")),
    sa.Index("frame_execution_idx", "execution_id"),
    sa.CheckConstraint("open_rows >= 0", name="open_rows"),
    sa.CheckConstraint("status <> 'COMPLETED' OR open_rows = 0", name="completed"),
)

row = sa.Table(
    "row",
    metadata,
    sa.Column("frame_id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("row_index", sa.Integer, primary_key=True, autoincrement=False),
    *_status("READY", "TAKEN", "PARKED", "OK", "FAILED", "SKIPPED"),
    _json("payload"),
    #: where its pipeline is: ``Position.document()``
    _json("position"),
    _big("taken_by", nullable=True),
    sa.Column("lane", sa.SmallInteger),
    sa.Column("crashes", sa.SmallInteger, nullable=False, server_default="0"),
    _count("retries"),
    _json("result"),
    _json("task_results"),
    _json("error"),
    #: ``http``, ``pg``, ``py`` and ``meta`` of the last outcome, for the arcs of a plain step
    _json("meta"),
    _json("ctx"),
    #: its values for ``loop.aggregate``
    _json("aggregate"),
    #: the child execution that a PARKED row waits for
    _big("waits_for", nullable=True),
    _time("finished_at"),
    sa.CheckConstraint("(status = 'TAKEN') = (taken_by IS NOT NULL)", name="taken"),
    postgresql_with={"fillfactor": "70"},
)

result = sa.Table(
    "result",
    metadata,
    #: a result too large to stand in its row; what stands there is a reference (``store/results.py``)
    _id("result_id"),
    _big("execution_id"),
    _json("body", nullable=False),
    _big("bytes"),
    _now("created_at"),
    sa.Index("result_execution_idx", "execution_id"),
)

run = sa.Table(
    "run",
    metadata,
    #: a lane's (or a claim's) right to write: every write of it names this id
    _id("run_id"),
    sa.Column("worker_id", sa.BigInteger, nullable=False),
    _big("execution_id"),
    _big("frame_id", nullable=True),
    _big("claim_id", nullable=True),
    sa.Column("lane", sa.SmallInteger, nullable=False, server_default="0"),
    sa.Column("lease_seconds", sa.Double, nullable=False),
    sa.Column("lease_until", sa.TIMESTAMP(timezone=True), nullable=False),
    sa.Column("heartbeat_seconds", sa.Double, nullable=False),
    _now("heartbeat_at"),
    #: indexes of the rows that have begun and are not written, in the order in which they began
    sa.Column("begun", ARRAY(sa.Integer)),
    sa.Index("run_lane_key", "frame_id", "lane", unique=True, postgresql_where=sa.text("frame_id IS NOT NULL")),
    sa.Index("run_claim_key", "claim_id", unique=True, postgresql_where=sa.text("claim_id IS NOT NULL")),
    sa.CheckConstraint("(frame_id IS NULL) <> (claim_id IS NULL)", name="one_kind"),
    postgresql_with={"fillfactor": "50"},
)

worker = sa.Table(
    "worker",
    metadata,
    #: also the key of the advisory lock that the process's session holds while it lives
    _id("worker_id"),
    _text("name"),
    _text("host"),
    sa.Column("pid", sa.Integer, nullable=False),
    _now("started_at"),
    _now("seen_at"),
)

signal = sa.Table(
    "signal",
    metadata,
    _id("signal_id", generated=True),
    _big("execution_id"),
    _text("type"),
    _json("data", nullable=False),
    #: when it may be read; later than ``created_at`` for timers
    _now("due_at"),
    #: when an unread one is announced (again) by the sweep
    _now("publish_at"),
    _count("published"),
    sa.Index("signal_execution_idx", "execution_id", "signal_id"),
)

outbox = sa.Table(
    "outbox",
    metadata,
    #: a dispatch that nobody took yet; whoever takes the work deletes it in the same transaction
    _id("outbox_id", generated=True),
    _big("execution_id"),
    _big("stage_id"),
    _big("claim_id", nullable=True),
    _big("frame_id", nullable=True),
    sa.Column("lane", sa.SmallInteger, nullable=False, server_default="0"),
    _text("queue"),
    sa.Column("publish_at", sa.TIMESTAMP(timezone=True), nullable=False),
    _count("published"),
    sa.Index("outbox_frame_key", "frame_id", "lane", unique=True, postgresql_where=sa.text("frame_id IS NOT NULL")),
    sa.Index("outbox_claim_key", "claim_id", unique=True, postgresql_where=sa.text("claim_id IS NOT NULL")),
    sa.Index("outbox_publish_idx", "publish_at"),
)

wakeup = sa.Table(
    "wakeup",
    metadata,
    #: a parked row and when it goes on
    sa.Column("frame_id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("row_index", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("due_at", sa.TIMESTAMP(timezone=True), nullable=False),
    sa.Index("wakeup_due_idx", "due_at"),
)

event = sa.Table(
    "event",
    metadata,
    #: in partitions, one per week (``store/partitions.py``): so the time has to be part of the key
    _id("event_id", generated=True),
    _big("execution_id"),
    _big("parent_event_id", nullable=True),
    _big("parent_execution_id", nullable=True),
    _text("event_type"),
    _text("node_name", nullable=True),
    _text("node_type", nullable=True),
    _big("stage_id", nullable=True),
    _big("frame_id", nullable=True),
    _text("status", nullable=True),
    sa.Column("duration", sa.Double),
    _searched("context"),
    _searched("result"),
    _searched("meta"),
    _now("created_at", key=True),
    sa.Index("event_execution_idx", "execution_id", "event_id"),
    sa.Index("event_frame_idx", "frame_id", postgresql_where=sa.text("frame_id IS NOT NULL")),
    postgresql_partition_by="RANGE (created_at)",
)

log = sa.Table(
    "log",
    metadata,
    #: a line that a task printed
    _id("log_id", generated=True),
    _big("execution_id"),
    _big("stage_id"),
    _big("frame_id"),
    sa.Column("row_index", sa.Integer, nullable=False),
    _text("task"),
    _text("text"),
    #: what the lines of the execution come to with this one, in bytes; about that where several were written at once
    _big("total"),
    sa.Column("printed_at", sa.TIMESTAMP(timezone=True), nullable=False),
    sa.Index("log_execution_idx", "execution_id", "log_id"),
)

sweep = sa.Table(
    "sweep",
    metadata,
    #: one row per kind of sweep: whoever finds it due moves it on and sweeps
    sa.Column("name", sa.Text, primary_key=True),
    _now("due_at"),
)

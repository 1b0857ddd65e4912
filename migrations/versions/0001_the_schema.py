"""The schema `noetl`: one function per table.

Revision: 0001
Follows:
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    _catalog()
    _claim()
    _credential()
    _event()
    _execution()
    _frame()
    _outbox()
    _row()
    _run()
    _signal()
    _stage()
    _sweep()
    _wakeup()
    _worker()


def downgrade() -> None:
    op.drop_table("worker", schema="noetl")
    op.drop_table("wakeup", schema="noetl")
    op.drop_table("sweep", schema="noetl")
    op.drop_table("stage", schema="noetl")
    op.drop_table("signal", schema="noetl")
    op.drop_table("run", schema="noetl")
    op.drop_table("row", schema="noetl")
    op.drop_table("outbox", schema="noetl")
    op.drop_table("frame", schema="noetl")
    op.drop_table("execution", schema="noetl")
    op.drop_table("event", schema="noetl")
    op.drop_table("credential", schema="noetl")
    op.drop_table("claim", schema="noetl")
    op.drop_table("catalog", schema="noetl")


def _catalog() -> None:
    op.create_table(
        "catalog",
        sa.Column("catalog_id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("file", sa.Text(), nullable=True),
        sa.Column(
            "created_at", sa.TIMESTAMP(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.PrimaryKeyConstraint("catalog_id", name=op.f("catalog_pkey")),
        sa.UniqueConstraint("path", "version", name=op.f("catalog_path_version_key")),
        schema="noetl",
    )


def _claim() -> None:
    op.create_table(
        "claim",
        sa.Column("claim_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("stage_id", sa.BigInteger(), nullable=False),
        sa.Column("execution_id", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("frame_index", sa.Integer(), nullable=False),
        sa.Column("budget", sa.Integer(), server_default="1", nullable=False),
        sa.Column("sole", sa.Boolean(), nullable=False),
        sa.Column("more", sa.Boolean(), nullable=False),
        sa.Column("taken_by", sa.BigInteger(), nullable=True),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column(
            "created_at", sa.TIMESTAMP(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.CheckConstraint("(status = 'TAKEN') = (taken_by IS NOT NULL)", name=op.f("claim_taken_check")),
        sa.CheckConstraint(
            "status IN ('OPEN', 'TAKEN', 'FILLED', 'EMPTY', 'FAILED', 'CANCELLED')", name=op.f("claim_status_check")
        ),
        sa.PrimaryKeyConstraint("claim_id", name=op.f("claim_pkey")),
        schema="noetl",
    )
    op.create_index(
        "claim_stage_idx",
        "claim",
        ["stage_id"],
        unique=False,
        schema="noetl",
        postgresql_where=sa.text("status IN ('OPEN', 'TAKEN')"),
    )


def _credential() -> None:
    op.create_table(
        "credential",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.Column(
            "created_at", sa.TIMESTAMP(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.Column(
            "updated_at", sa.TIMESTAMP(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.PrimaryKeyConstraint("name", name=op.f("credential_pkey")),
        schema="noetl",
    )


def _event() -> None:
    op.create_table(
        "event",
        sa.Column("event_id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("execution_id", sa.BigInteger(), nullable=False),
        sa.Column("parent_event_id", sa.BigInteger(), nullable=True),
        sa.Column("parent_execution_id", sa.BigInteger(), nullable=True),
        sa.Column("event_type", sa.Text(), nullable=False),
        sa.Column("node_name", sa.Text(), nullable=True),
        sa.Column("node_type", sa.Text(), nullable=True),
        sa.Column("stage_id", sa.BigInteger(), nullable=True),
        sa.Column("frame_id", sa.BigInteger(), nullable=True),
        sa.Column("status", sa.Text(), nullable=True),
        sa.Column("duration", sa.Double(), nullable=True),
        sa.Column("context", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True),
        sa.Column("result", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True),
        sa.Column("meta", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True),
        sa.Column(
            "created_at", sa.TIMESTAMP(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.PrimaryKeyConstraint("event_id", name=op.f("event_pkey")),
        schema="noetl",
    )
    op.create_index("event_execution_idx", "event", ["execution_id", "event_id"], unique=False, schema="noetl")
    op.create_index(
        "event_frame_idx",
        "event",
        ["frame_id"],
        unique=False,
        schema="noetl",
        postgresql_where=sa.text("frame_id IS NOT NULL"),
    )


def _execution() -> None:
    op.create_table(
        "execution",
        sa.Column("execution_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("catalog_id", sa.BigInteger(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("parent_execution_id", sa.BigInteger(), nullable=True),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("workload", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("ctx", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("state", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("error", sa.JSON(none_as_null=True), nullable=True),
        sa.Column(
            "created_at", sa.TIMESTAMP(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.Column("started_at", sa.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("finished_at", sa.TIMESTAMP(timezone=True), nullable=True),
        sa.CheckConstraint(
            "(finished_at IS NOT NULL) = (status IN ('COMPLETED', 'FAILED', 'CANCELLED'))",
            name=op.f("execution_finished_check"),
        ),
        sa.CheckConstraint(
            "status IN ('PENDING', 'RUNNING', 'PAUSED', 'CANCELLING', 'COMPLETED', 'FAILED', 'CANCELLED')",
            name=op.f("execution_status_check"),
        ),
        sa.PrimaryKeyConstraint("execution_id", name=op.f("execution_pkey")),
        schema="noetl",
    )
    op.create_index("execution_created_at_idx", "execution", ["created_at"], unique=False, schema="noetl")
    op.create_index(
        "execution_parent_idx",
        "execution",
        ["parent_execution_id"],
        unique=False,
        schema="noetl",
        postgresql_where=sa.text("parent_execution_id IS NOT NULL"),
    )


def _frame() -> None:
    op.create_table(
        "frame",
        sa.Column("frame_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("stage_id", sa.BigInteger(), nullable=False),
        sa.Column("execution_id", sa.BigInteger(), nullable=False),
        sa.Column("claim_id", sa.BigInteger(), nullable=True),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("frame_index", sa.Integer(), nullable=False),
        sa.Column("rows", sa.Integer(), server_default="0", nullable=False),
        sa.Column("open_rows", sa.Integer(), server_default="0", nullable=False),
        sa.Column("ok_rows", sa.Integer(), server_default="0", nullable=False),
        sa.Column("failed_rows", sa.Integer(), server_default="0", nullable=False),
        sa.Column("weight", sa.Integer(), server_default="1", nullable=False),
        sa.Column("slots", sa.Integer(), server_default="1", nullable=False),
        sa.Column("lanes", sa.Integer(), server_default="1", nullable=False),
        sa.Column("row_concurrency", sa.Integer(), server_default="1", nullable=False),
        sa.Column("reruns", sa.Integer(), server_default="0", nullable=False),
        sa.Column("stopping", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("fail_fast", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("has_ctx", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("attempt", sa.Integer(), server_default="1", nullable=False),
        sa.Column("lease_until", sa.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("digests", postgresql.ARRAY(sa.BigInteger()), nullable=True),
        sa.Column("source", sa.JSON(none_as_null=True), nullable=True),
        sa.Column(
            "created_at", sa.TIMESTAMP(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.Column("completed_at", sa.TIMESTAMP(timezone=True), nullable=True),
        sa.CheckConstraint("status <> 'COMPLETED' OR open_rows = 0", name=op.f("frame_completed_check")),
        sa.CheckConstraint(
            "status IN ('TENTATIVE', 'RUNNING', 'COMPLETED', 'ABANDONED')", name=op.f("frame_status_check")
        ),
        sa.CheckConstraint("open_rows >= 0", name=op.f("frame_open_rows_check")),
        sa.PrimaryKeyConstraint("frame_id", name=op.f("frame_pkey")),
        schema="noetl",
    )
    op.create_index("frame_execution_idx", "frame", ["execution_id"], unique=False, schema="noetl")
    op.create_index("frame_stage_idx", "frame", ["stage_id", "frame_index"], unique=False, schema="noetl")


def _outbox() -> None:
    op.create_table(
        "outbox",
        sa.Column("outbox_id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("execution_id", sa.BigInteger(), nullable=False),
        sa.Column("stage_id", sa.BigInteger(), nullable=False),
        sa.Column("claim_id", sa.BigInteger(), nullable=True),
        sa.Column("frame_id", sa.BigInteger(), nullable=True),
        sa.Column("lane", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("publish_at", sa.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("published", sa.Integer(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("outbox_id", name=op.f("outbox_pkey")),
        schema="noetl",
    )
    op.create_index(
        "outbox_claim_key",
        "outbox",
        ["claim_id"],
        unique=True,
        schema="noetl",
        postgresql_where=sa.text("claim_id IS NOT NULL"),
    )
    op.create_index(
        "outbox_frame_key",
        "outbox",
        ["frame_id", "lane"],
        unique=True,
        schema="noetl",
        postgresql_where=sa.text("frame_id IS NOT NULL"),
    )
    op.create_index("outbox_publish_idx", "outbox", ["publish_at"], unique=False, schema="noetl")


def _row() -> None:
    op.create_table(
        "row",
        sa.Column("frame_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("row_index", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("payload", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("position", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("taken_by", sa.BigInteger(), nullable=True),
        sa.Column("lane", sa.SmallInteger(), nullable=True),
        sa.Column("crashes", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("retries", sa.Integer(), server_default="0", nullable=False),
        sa.Column("result", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("task_results", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("error", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("meta", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("ctx", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("finished_at", sa.TIMESTAMP(timezone=True), nullable=True),
        sa.CheckConstraint("(status = 'TAKEN') = (taken_by IS NOT NULL)", name=op.f("row_taken_check")),
        sa.CheckConstraint(
            "status IN ('READY', 'TAKEN', 'PARKED', 'OK', 'FAILED', 'SKIPPED')", name=op.f("row_status_check")
        ),
        sa.PrimaryKeyConstraint("frame_id", "row_index", name=op.f("row_pkey")),
        schema="noetl",
        postgresql_with={"fillfactor": "70"},
    )


def _run() -> None:
    op.create_table(
        "run",
        sa.Column("run_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("worker_id", sa.BigInteger(), nullable=False),
        sa.Column("execution_id", sa.BigInteger(), nullable=False),
        sa.Column("frame_id", sa.BigInteger(), nullable=True),
        sa.Column("claim_id", sa.BigInteger(), nullable=True),
        sa.Column("lane", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("lease_seconds", sa.Double(), nullable=False),
        sa.Column("lease_until", sa.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("heartbeat_seconds", sa.Double(), nullable=False),
        sa.Column(
            "heartbeat_at", sa.TIMESTAMP(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.CheckConstraint("(frame_id IS NULL) <> (claim_id IS NULL)", name=op.f("run_one_kind_check")),
        sa.PrimaryKeyConstraint("run_id", name=op.f("run_pkey")),
        schema="noetl",
        postgresql_with={"fillfactor": "50"},
    )
    op.create_index(
        "run_claim_key",
        "run",
        ["claim_id"],
        unique=True,
        schema="noetl",
        postgresql_where=sa.text("claim_id IS NOT NULL"),
    )
    op.create_index(
        "run_lane_key",
        "run",
        ["frame_id", "lane"],
        unique=True,
        schema="noetl",
        postgresql_where=sa.text("frame_id IS NOT NULL"),
    )


def _signal() -> None:
    op.create_table(
        "signal",
        sa.Column("signal_id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("execution_id", sa.BigInteger(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("data", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("due_at", sa.TIMESTAMP(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.Column(
            "publish_at", sa.TIMESTAMP(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.Column("published", sa.Integer(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("signal_id", name=op.f("signal_pkey")),
        schema="noetl",
    )
    op.create_index("signal_execution_idx", "signal", ["execution_id", "signal_id"], unique=False, schema="noetl")


def _stage() -> None:
    op.create_table(
        "stage",
        sa.Column("stage_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("execution_id", sa.BigInteger(), nullable=False),
        sa.Column("step_name", sa.Text(), nullable=False),
        sa.Column("visit", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("settings", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("args", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("previous", sa.Text(), nullable=True),
        sa.Column("ok_rows", sa.Integer(), server_default="0", nullable=False),
        sa.Column("failed_rows", sa.Integer(), server_default="0", nullable=False),
        sa.Column("frames", sa.Integer(), server_default="0", nullable=False),
        sa.Column("result", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("task_results", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("error", sa.JSON(none_as_null=True), nullable=True),
        sa.Column(
            "opened_at", sa.TIMESTAMP(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.Column("closed_at", sa.TIMESTAMP(timezone=True), nullable=True),
        sa.CheckConstraint("status IN ('OPEN', 'COMPLETED', 'FAILED', 'CANCELLED')", name=op.f("stage_status_check")),
        sa.PrimaryKeyConstraint("stage_id", name=op.f("stage_pkey")),
        schema="noetl",
    )
    op.create_index(
        "stage_execution_idx", "stage", ["execution_id", "step_name", "stage_id"], unique=False, schema="noetl"
    )


def _sweep() -> None:
    op.create_table(
        "sweep",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("due_at", sa.TIMESTAMP(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("sweep_pkey")),
        schema="noetl",
    )


def _wakeup() -> None:
    op.create_table(
        "wakeup",
        sa.Column("frame_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("row_index", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("due_at", sa.TIMESTAMP(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("frame_id", "row_index", name=op.f("wakeup_pkey")),
        schema="noetl",
    )
    op.create_index("wakeup_due_idx", "wakeup", ["due_at"], unique=False, schema="noetl")


def _worker() -> None:
    op.create_table(
        "worker",
        sa.Column("worker_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column(
            "started_at", sa.TIMESTAMP(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.Column("seen_at", sa.TIMESTAMP(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.PrimaryKeyConstraint("worker_id", name=op.f("worker_pkey")),
        schema="noetl",
    )

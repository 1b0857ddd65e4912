"""How often rows were tried again is counted where their outcomes are; what tasks print is kept.

Revision: 0008
Follows: 0007
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("stage", "frame"):
        op.add_column(table, sa.Column("retries", sa.Integer(), server_default="0", nullable=False), schema="noetl")
    op.create_table(
        "log",
        sa.Column("log_id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("execution_id", sa.BigInteger(), nullable=False),
        sa.Column("stage_id", sa.BigInteger(), nullable=False),
        sa.Column("frame_id", sa.BigInteger(), nullable=False),
        sa.Column("row_index", sa.Integer(), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("total", sa.BigInteger(), nullable=False),
        sa.Column("printed_at", sa.TIMESTAMP(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("log_id", name="log_pkey"),
        schema="noetl",
    )
    op.create_index("log_execution_idx", "log", ["execution_id", "log_id"], schema="noetl")


def downgrade() -> None:
    op.drop_table("log", schema="noetl")
    for table in ("frame", "stage"):
        op.drop_column(table, "retries", schema="noetl")

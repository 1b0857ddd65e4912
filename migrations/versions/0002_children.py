"""Child playbooks, stale re-claims, dead letters and aggregates.

Revision: 0002
Follows: 0001
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    def add(table: str, column: sa.Column) -> None:
        op.add_column(table, column, schema="noetl")

    add("execution", sa.Column("parent_frame_id", sa.BigInteger(), nullable=True))
    add("execution", sa.Column("parent_row_index", sa.Integer(), nullable=True))
    add("execution", sa.Column("depth", sa.Integer(), server_default="0", nullable=False))
    add("execution", sa.Column("parent_iter", sa.JSON(none_as_null=True), nullable=True))
    add("claim", sa.Column("reclaim", sa.Boolean(), server_default=sa.false(), nullable=False))
    add("frame", sa.Column("dead_letter", sa.Boolean(), server_default=sa.false(), nullable=False))
    add("stage", sa.Column("total", sa.BigInteger(), nullable=True))
    add("row", sa.Column("aggregate", sa.JSON(none_as_null=True), nullable=True))
    add("row", sa.Column("waits_for", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    for table, columns in {
        "execution": ("parent_frame_id", "parent_row_index", "depth", "parent_iter"),
        "claim": ("reclaim",),
        "frame": ("dead_letter",),
        "stage": ("total",),
        "row": ("aggregate", "waits_for"),
    }.items():
        for column in columns:
            op.drop_column(table, column, schema="noetl")

"""Results that are too large for their row.

Revision: 0003
Follows: 0002
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "result",
        sa.Column("result_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("execution_id", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column(
            "created_at", sa.TIMESTAMP(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.PrimaryKeyConstraint("result_id", name=op.f("result_pkey")),
        schema="noetl",
    )
    op.create_index("result_execution_idx", "result", ["execution_id"], unique=False, schema="noetl")


def downgrade() -> None:
    op.drop_table("result", schema="noetl")

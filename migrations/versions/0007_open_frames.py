"""A loop finds its open frames, and a step its last visit, without a look at all the others.

Revision: 0007
Follows: 0006
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

STAGE_INDEX = "stage_execution_idx"


def upgrade() -> None:
    op.create_index(
        "frame_open_idx",
        "frame",
        ["stage_id"],
        schema="noetl",
        postgresql_where=sa.text("status IN ('TENTATIVE', 'RUNNING')"),
    )
    op.drop_index(STAGE_INDEX, "stage", schema="noetl")
    op.create_index(STAGE_INDEX, "stage", ["execution_id", "step_name", "visit"], schema="noetl")


def downgrade() -> None:
    op.drop_index(STAGE_INDEX, "stage", schema="noetl")
    op.create_index(STAGE_INDEX, "stage", ["execution_id", "step_name", "stage_id"], schema="noetl")
    op.drop_index("frame_open_idx", "frame", schema="noetl")

"""What the books are kept with: rows that have begun, requests and starts of lanes, the state of a closed stage.

Revision: 0005
Follows: 0004
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("run", sa.Column("begun", ARRAY(sa.Integer()), nullable=True), schema="noetl")
    for name in ("lane_requests", "lane_starts"):
        op.add_column("frame", sa.Column(name, sa.Integer(), server_default="0", nullable=False), schema="noetl")
    op.add_column("frame", sa.Column("token", sa.BigInteger(), nullable=True), schema="noetl")
    op.add_column("stage", sa.Column("state", sa.JSON(none_as_null=True), nullable=True), schema="noetl")
    # Frames that are open now: what waits in the outbox is what was asked for and has not started.
    op.execute(
        """
        UPDATE noetl.frame f SET lane_requests = o.lanes
        FROM (SELECT frame_id, count(*) AS lanes FROM noetl.outbox WHERE frame_id IS NOT NULL GROUP BY frame_id) o
        WHERE f.frame_id = o.frame_id
        """
    )


def downgrade() -> None:
    op.drop_column("stage", "state", schema="noetl")
    for name in ("token", "lane_starts", "lane_requests"):
        op.drop_column("frame", name, schema="noetl")
    op.drop_column("run", "begun", schema="noetl")

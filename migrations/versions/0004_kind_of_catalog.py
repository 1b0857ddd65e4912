"""The catalog says what kind of document each entry is, for those who read it with SQL.

Revision: 0004
Follows: 0003
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("catalog", sa.Column("kind", sa.Text(), server_default="Playbook", nullable=False), schema="noetl")


def downgrade() -> None:
    op.drop_column("catalog", "kind", schema="noetl")

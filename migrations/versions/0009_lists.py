"""Lists of executions by status and by playbook, the newest first, find theirs without a look at all the others.

Revision: 0009
Follows: 0008
"""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_COLUMNS = {
    "execution_created_at_idx": ["created_at", "execution_id"],
    "execution_status_idx": ["status", "created_at", "execution_id"],
    "execution_path_idx": ["path", "created_at", "execution_id"],
}


def upgrade() -> None:
    op.drop_index("execution_created_at_idx", "execution", schema="noetl")
    for name, columns in _COLUMNS.items():
        op.create_index(name, "execution", columns, schema="noetl")


def downgrade() -> None:
    for name in _COLUMNS:
        op.drop_index(name, "execution", schema="noetl")
    op.create_index("execution_created_at_idx", "execution", ["created_at"], schema="noetl")

"""Events in partitions, one per week (Monday 00:00 UTC), and claims that are found by their execution.

The table that is there becomes the first partition, up to the end of the current week: its rows are read once, and
not written again. Code of the revision before goes on beside it, as the names and columns are the same.

Revision: 0006
Follows: 0005
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

WEEKS_AHEAD = 8
INDEXES = {
    "execution": "CREATE INDEX {name} ON noetl.{table} (execution_id, event_id)",
    "frame": "CREATE INDEX {name} ON noetl.{table} (frame_id) WHERE frame_id IS NOT NULL",
}


def upgrade() -> None:
    op.create_index("claim_execution_idx", "claim", ["execution_id"], unique=False, schema="noetl")
    op.execute("LOCK TABLE noetl.event IN ACCESS EXCLUSIVE MODE")
    following = _following_id()
    until = _ask(
        "SELECT date_trunc('week', greatest(max(created_at), clock_timestamp()), 'UTC') + interval '168 hours' "
        "FROM noetl.event"
    )
    old = _ask("SELECT to_char(CAST(:until AS timestamptz) AT TIME ZONE 'UTC', '\"event_before_\"IYYY\"w\"IW')", until)
    op.execute(f"ALTER TABLE noetl.event RENAME TO {old}")
    op.execute(f"ALTER TABLE noetl.{old} DROP CONSTRAINT event_pkey, ALTER COLUMN event_id DROP IDENTITY")
    op.execute(f"ALTER TABLE noetl.{old} ADD CONSTRAINT {old}_pkey PRIMARY KEY (event_id, created_at)")
    for name in INDEXES:
        op.execute(f"ALTER INDEX noetl.event_{name}_idx RENAME TO {old}_{name}_idx")
    op.execute(
        f"CREATE TABLE noetl.event (LIKE noetl.{old} INCLUDING DEFAULTS, CONSTRAINT event_pkey "
        "PRIMARY KEY (event_id, created_at)) PARTITION BY RANGE (created_at)"
    )
    op.execute(
        f"ALTER TABLE noetl.event ALTER COLUMN event_id ADD GENERATED ALWAYS AS IDENTITY (START WITH {following})"
    )
    for name, statement in INDEXES.items():
        op.execute(statement.format(name=f"event_{name}_idx", table="event"))
    op.execute(f"ALTER TABLE noetl.event ATTACH PARTITION noetl.{old} FOR VALUES FROM (MINVALUE) TO ('{until}')")
    _weeks(until)


def _weeks(first: object) -> None:
    weeks = op.get_bind().execute(
        sa.text(
            "SELECT to_char(week AT TIME ZONE 'UTC', '\"event_\"IYYY\"w\"IW'), week, week + interval '168 hours' "
            "FROM generate_series(CAST(:first AS timestamptz), CAST(:first AS timestamptz) "
            "+ :weeks * interval '168 hours', interval '168 hours') AS week"
        ),
        {"first": first, "weeks": WEEKS_AHEAD - 1},
    )
    for name, lower, upper in weeks.all():
        op.execute(f"CREATE TABLE noetl.{name} PARTITION OF noetl.event FOR VALUES FROM ('{lower}') TO ('{upper}')")


def downgrade() -> None:
    op.execute("LOCK TABLE noetl.event IN ACCESS EXCLUSIVE MODE")
    following = _following_id()
    op.execute("CREATE TABLE noetl.event_whole (LIKE noetl.event INCLUDING DEFAULTS)")
    op.execute("INSERT INTO noetl.event_whole SELECT * FROM noetl.event ORDER BY event_id")
    op.execute("DROP TABLE noetl.event")
    op.execute("ALTER TABLE noetl.event_whole RENAME TO event")
    op.execute("ALTER TABLE noetl.event ADD CONSTRAINT event_pkey PRIMARY KEY (event_id)")
    op.execute(
        f"ALTER TABLE noetl.event ALTER COLUMN event_id ADD GENERATED ALWAYS AS IDENTITY (START WITH {following})"
    )
    for name, statement in INDEXES.items():
        op.execute(statement.format(name=f"event_{name}_idx", table="event"))
    op.drop_index("claim_execution_idx", table_name="claim", schema="noetl")


def _following_id() -> int:
    """The next id that the sequence of events would give: none is used twice."""
    sequence = _ask("SELECT pg_get_serial_sequence('noetl.event', 'event_id')")
    return int(str(_ask(f"SELECT last_value + is_called::int FROM {sequence}")))


def _ask(statement: str, until: object = None) -> object:
    return op.get_bind().execute(sa.text(statement), {"until": until} if until is not None else {}).scalar_one()

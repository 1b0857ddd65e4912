"""Claims in PostgreSQL: any statement that leases rows and returns them (``FOR UPDATE SKIP LOCKED … RETURNING``).

Promise: no claim is orphaned. In our own database the claim shares our transaction. Elsewhere its transaction id is
recorded before it commits, and ``pg_xact_status`` says afterwards what became of it. An attempt whose process stands
still is undone by the source itself when its lease is over, and the next one waits for that: it would pass over rows
that the first has locked. Nothing depends on the session, which may be a pooler's.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row

from noetl_celery.cursors.base import Claimed, ClaimRequest, Cursor, Record, Verdict
from noetl_celery.errors import ErrorInfo, ToolError
from noetl_celery.template import jsonable
from noetl_celery.tools import pg, sql

log = logging.getLogger(__name__)

_PLACE = ("host", "hostaddr", "port", "dbname", "user")
#: a source that does not answer soon is asked again by the next sweep; others wait for this one
SETTLE_SECONDS = 3.0
_NO_SUCH_DATABASE = "3D000"
#: our own sessions plan for our own statements; a claim is somebody else's
_PLANNED_AS_USUAL = "; SET LOCAL plan_cache_mode = auto; SET LOCAL enable_seqscan = on"
_PLANNED_AS_OURS = "; SET LOCAL plan_cache_mode TO DEFAULT; SET LOCAL enable_seqscan TO DEFAULT"


class PostgresCursor(Cursor):
    """The driver ``postgres``. It acknowledges nothing: a claim's own statement marks its rows."""

    kind = "postgres"

    def check(self, config: Mapping[str, Any]) -> Sequence[tuple[str | None, str]]:
        problems: list[tuple[str | None, str]] = []
        if not config.get("auth"):
            problems.append(("auth", "a postgres cursor needs `auth`: the name of a credential"))
        claim = config.get("claim")
        if isinstance(claim, str):
            for statement in sql.split_statements(claim):
                if word := sql.transaction_control(statement):
                    problems.append(("claim", f"a claim runs in a transaction of its own: leave `{word}` out"))
        return problems

    def same_place(self, credential: Mapping[str, Any], conninfo: str) -> bool:
        """Same server, database and role, by their names; a false no only costs a transaction more."""
        theirs, ours = conninfo_to_dict(pg.conninfo(credential)), conninfo_to_dict(conninfo)
        return all(_place(theirs, name) == _place(ours, name) for name in _PLACE)

    def claim(self, request: ClaimRequest, record: Record) -> Claimed:
        if request.session is not None:
            return _claim(request.session, request)
        with pg.connection(request.credential) as session:
            try:
                return _claim_and_record(session, request, record)
            except psycopg.Error as error:
                raise pg.tool_error(error, request.claim) from error

    def settle(self, source: Mapping[str, Any], credential: Mapping[str, Any]) -> Verdict:
        """Asks the source about the recorded transaction. Raises ``ToolError`` while it cannot be asked.

        A database that was dropped is not waited for, whether it was restored since or not: ``unknown``.
        """
        try:
            with pg.connection(credential, timeout=SETTLE_SECONDS) as session:
                return _fate(session, source)
        except psycopg.Error as error:
            raise pg.tool_error(error) from error
        except ToolError as error:
            if error.info.code == _NO_SUCH_DATABASE:
                return "unknown"
            raise

    def dead_letter(
        self,
        statement: str,
        options: Mapping[str, Any],
        credential: Mapping[str, Any],
        row: Mapping[str, Any],
        error: Mapping[str, Any],
    ) -> None:
        """Runs the statement in a transaction of its own."""
        with pg.connection(credential) as session:
            try:
                with session.transaction():
                    _run(session, _bound(statement, {}))
            except psycopg.Error as error:
                raise pg.tool_error(error, statement) from error


def _place(fields: Mapping[str, Any], name: str) -> str:
    value = str(fields.get(name) or "")
    if name == "port":
        return value or "5432"
    return "127.0.0.1" if name == "host" and value == "localhost" else value


def _claim_and_record(session: pg.Connection, request: ClaimRequest, record: Record) -> Claimed:
    with session.transaction():
        _alone(session, request)
        with session.patient(request.timeout_seconds):
            claimed = _claim(session, request)
        if claimed.batches:
            xid = session.execute("SELECT pg_current_xact_id()::text").fetchone()
            assert xid is not None
            record(claimed.rows, {"xid": xid[0], **_identity(session)})
    return claimed


def _alone(session: pg.Connection, request: ClaimRequest) -> None:
    """Waits until no other attempt at this ticket is left at the source. Ends with the transaction.

    One that stands still is ended by its own timeout, one that was killed by its connection.
    """
    idle = max(1, int(request.lease_seconds * 1000))
    session.execute(f"SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = {idle}")
    if request.ticket is not None:
        session.execute("SELECT pg_advisory_xact_lock(%s)", (request.ticket,))


def _identity(session: pg.Connection) -> dict[str, str]:
    """Which database this is. One that was restored under its name is another one."""
    row = session.execute(
        "SELECT datname::text, oid::text, (SELECT system_identifier::text FROM pg_control_system()) "
        "FROM pg_database WHERE datname = current_database()"
    ).fetchone()
    assert row is not None
    return {"database": row[0], "oid": row[1], "system": row[2]}


def _fate(session: pg.Connection, source: Mapping[str, Any]) -> Verdict:
    (standby,) = session.execute("SELECT pg_is_in_recovery()").fetchone() or (False,)
    if standby:
        text = "this server is a standby now, and may not have heard of the claim; the primary is asked when it is back"
        raise ToolError(ErrorInfo("connection", text, retryable=True))
    here = _identity(session)
    if any(source.get(name, value) != value for name, value in here.items()):
        return "unknown"
    try:
        row = session.execute("SELECT pg_xact_status(%s::text::xid8)", (str(source["xid"]),)).fetchone()
    except psycopg.errors.InvalidParameterValue:
        return "unknown"  # a transaction id from the future: another server, restored from a backup
    verdicts: dict[str, Verdict] = {"committed": "committed", "aborted": "aborted", "in progress": "running"}
    return verdicts.get(row[0] if row else "", "unknown")


def _claim(session: psycopg.Connection[Any], request: ClaimRequest) -> Claimed:
    ours = request.session is not None
    session.execute(
        f"SET LOCAL statement_timeout = {int(request.timeout_seconds * 1000)}{_PLANNED_AS_USUAL if ours else ''}"
    )
    if request.reclaim is not None:
        _run(session, _bound(request.reclaim, request.bindings))
    total = _count(session, request)
    batches: list[tuple[Mapping[str, Any], ...]] = []
    claim = _bound(request.claim, request.bindings)
    for _ in range(request.budget):
        rows = _run(session, claim)
        if not rows:
            break
        batches.append(tuple(rows))
    # Now, and not at the COMMIT: what a deferred constraint has to say is an error of this claim.
    try:
        session.execute(f"SET CONSTRAINTS ALL IMMEDIATE{_PLANNED_AS_OURS if ours else ''}")
    except psycopg.Error as error:
        raise pg.tool_error(error) from error
    return Claimed(tuple(batches), len(batches) < request.budget, total)


def _count(session: psycopg.Connection[Any], request: ClaimRequest) -> int | None:
    """The number that the count query gives; a query that fails costs the total, and nothing else."""
    if request.count is None:
        return None
    try:
        with session.transaction():
            rows = _run(session, _bound(request.count, request.bindings))
        return int(next(iter(rows[0].values())))
    except (ToolError, LookupError, TypeError, ValueError, StopIteration) as error:
        log.warning("loop.cursor.count gives no number, so there is no total: %s", error)
        return None


#: a statement as its author wrote it, as it is sent, and its values
_Bound = tuple[sql.Statement, str, Any]


def _bound(text: str, bindings: Mapping[str, Any]) -> list[_Bound]:
    return [(statement, *sql.bind(statement.text, bindings)) for statement in sql.split_statements(text)]


def _run(session: psycopg.Connection[Any], statements: Sequence[_Bound]) -> list[Mapping[str, Any]]:
    """Runs statements; the rows are those of the last statement that returns any kind of rows."""
    rows: list[Mapping[str, Any]] = []
    for statement, sent, values in statements:
        with session.cursor(row_factory=dict_row) as cursor:
            try:
                cursor.execute(sent, values, prepare=False)
            except psycopg.Error as error:
                raise pg.tool_error(error, statement.text, sent=sql.as_sent(sent), first_line=statement.line) from error
            if cursor.description is not None:
                rows = list(cursor.fetchall())
    try:
        return [jsonable(row) for row in rows]
    except TypeError as error:
        raise ToolError(ErrorInfo("result_type", f"a claimed row cannot be kept: {error}")) from error

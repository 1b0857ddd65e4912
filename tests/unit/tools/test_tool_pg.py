"""Connection strings, pools and error kinds, as far as they need no server."""

from __future__ import annotations

import os
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from noetl_celery.errors import ToolError
from noetl_celery.tools.pg import Pools, PoolSettings, conninfo
from noetl_celery.tools.pg_errors import is_retryable, kind_of
from noetl_celery.tools.postgres import PostgresTool

NOETL = {"db_host": "h", "db_port": 5433, "db_user": "u", "db_password": "p w'd", "db_name": "d"}


@pytest.mark.parametrize(
    "credential",
    [
        NOETL,
        {"host": "h", "port": "5433", "user": "u", "password": "p w'd", "dbname": "d"},
        {"hostname": "h", "port": 5433, "username": "u", "password": "p w'd", "database": "d", "type": "postgres"},
        {"dsn": "postgresql://u:p%20w%27d@h:5433/d"},
        {"url": "postgresql+psycopg://u:p%20w%27d@h:5433/d"},
        {"connection_string": "host=h port=5433 user=u password='p w\\'d' dbname=d"},
        {"dsn": "postgresql://u:old@h:5433/other", "db_password": "p w'd", "db_name": "d"},
    ],
)
def test_spellings_of_a_credential(credential: dict[str, Any]) -> None:
    fields = conninfo_to_dict(conninfo(credential))
    assert [fields[key] for key in ("host", "port", "user", "password", "dbname")] == ["h", "5433", "u", "p w'd", "d"]
    assert fields["application_name"] == "noetl-celery"
    assert "-c search_path=public " in str(fields["options"])


def test_what_a_credential_may_change() -> None:
    fields = conninfo_to_dict(
        conninfo({**NOETL, "db_host": "/run/pg", "sslmode": "require", "search_path": "a, b\\c", "connect_timeout": 99})
    )
    assert (fields["host"], fields["sslmode"], fields["connect_timeout"]) == ("/run/pg", "require", "10")
    assert "-c search_path=a,\\ b\\\\c " in str(fields["options"])
    assert not conninfo_to_dict(conninfo({**NOETL, "options": ""})).get("options")
    assert conninfo_to_dict(conninfo({"dsn": "postgresql://u@h/d?options=-cx%3D1"}))["options"] == "-cx=1"


@pytest.mark.parametrize(
    ("credential", "message"),
    [
        ({**NOETL, "db_host": ""}, "the credential has no `db_host`"),
        ({**NOETL, "db_user": None}, "the credential has no `db_user`"),
        ({"dsn": "postgresql://u:TOP-SECRET@h"}, "the credential has no `db_name`"),
        ({"dsn": "TOP-SECRET"}, "the credential's `dsn` is not a PostgreSQL connection string"),
        ({"dsn": "postgresql://u:TOP-SECRET@h:x:y/d?bad=1"}, "the credential's `dsn` is not"),
        ({**NOETL, "db_port": "TOP-SECRET"}, "the credential's `db_port` is not a number"),
        ({}, "the credential has no `db_host`"),
    ],
)
def test_a_credential_that_will_not_do(credential: dict[str, Any], message: str) -> None:
    with pytest.raises(ToolError) as raised:
        conninfo(credential)
    assert raised.value.info.kind == "credential"
    assert raised.value.message.startswith(message)
    assert "TOP-SECRET" not in raised.value.message


def test_pools_belong_to_a_process_a_credential_and_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    pools = Pools()
    parent = pools.get(NOETL)
    assert pools.get({"dsn": "postgresql://u:p%20w%27d@h:5433/d"}) is parent
    assert pools.get(NOETL, PoolSettings(name="other")) is not parent
    assert parent.max_size == PoolSettings().max_size
    pools.defaults = PoolSettings(max_size=3)
    assert pools.get({**NOETL, "db_name": "another"}).max_size == 3
    child_pid = os.getpid() + 1
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: child_pid)
        child = pools.get(NOETL)
        assert child is not parent
        pools.close_all()
        pools.close_all()
        assert child.closed
    assert not parent.closed
    pools.close_all()
    assert parent.closed


@pytest.mark.parametrize(
    ("state", "kind", "retryable"),
    [
        ("42601", "syntax", False),
        ("42P01", "postgres", False),
        ("42501", "permission", False),
        ("08006", "connection", True),
        ("57P01", "connection", True),
        ("57P03", "connection", True),
        ("57014", "timeout", True),
        ("25006", "postgres", True),
        ("40001", "serialization", True),
        ("40P01", "deadlock", True),
        ("23505", "constraint", False),
        ("28P01", "auth", False),
        ("3D000", "connection", False),
        ("53300", "postgres", True),
        ("55P03", "postgres", True),
        ("25P03", "postgres", True),
        ("22012", "data", False),
        ("P0001", "postgres", False),
    ],
)
def test_kinds_by_sqlstate(state: str, kind: str, retryable: bool) -> None:
    assert (kind_of(state), is_retryable(state)) == (kind, retryable)


@pytest.mark.parametrize(
    ("config", "complaints"),
    [
        ({"auth": "pg", "query": "SELECT 1", "params": {}, "pool": {}, "timeout": 5}, []),
        ({"credential": "{{ pg }}", "commands": ["SELECT {{ x }}"]}, []),
        ({"auth": {"db_host": "h"}, "sql": "BEGIN; SELECT 1; COMMIT"}, []),
        ({"auth": "pg"}, [(None, "needs one of `command`, `query`, `commands`, `sql`")]),
        (
            {"auth": "pg", "command": " \n"},
            [("command", "needs one of `command`, `query`, `commands`, `sql`; `command` is")],
        ),
        ({"auth": "pg", "command": "-- nothing"}, [("command", "the SQL holds no statement")]),
        ({"auth": "pg", "command": "SELECT 1", "sql": "SELECT 2"}, [("sql", "only one of")]),
        ({"auth": "pg", "command": "SELECT 1", "comand": 1}, [("comand", "unknown key `comand`: did you mean")]),
        ({"command": "SELECT 1"}, [("auth", "needs `auth`")]),
        ({"auth": "pg", "command": "SELECT 1;\nROLLBACK"}, [("command", "line 2: `ROLLBACK` cannot be used here")]),
        ({"auth": "pg", "command": "COMMIT"}, [("command", "line 1: `COMMIT` cannot be used here")]),
        ({"auth": "pg", "script": {"uri": "gs://x"}}, [("script", "`script` from")]),
        ({"auth": "pg", "command": 5}, [("command", "SQL has to be text, or a list of texts")]),
        (
            {"auth": "pg", "command": "SELECT 1", "timeout": -1},
            [("timeout", "`timeout` has to be a number of seconds")],
        ),
    ],
)
def test_check(config: dict[str, Any], complaints: list[tuple[str | None, str]]) -> None:
    found = PostgresTool().check(config)
    assert [key for key, _ in found] == [key for key, _ in complaints]
    for (_, message), (_, start) in zip(found, complaints, strict=True):
        assert message.startswith(start)

"""What tests need of services: a server to make databases on, settings, credentials."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import count
from typing import Any

import psycopg
from cryptography.fernet import Fernet
from psycopg import conninfo

from noetl_celery.settings import Settings, load

KEY = Fernet.generate_key().decode()


@dataclass
class Server:
    """A PostgreSQL server that tests may make databases on."""

    url: str

    def __post_init__(self) -> None:
        self._numbers = count(1)

    def database(self, name: str) -> str:
        """The URL of another database on it."""
        head, mark, query = self.url.partition("?")
        return f"{head.rpartition('/')[0]}/{name}{mark}{query}"

    def create(self, template: str = "template0") -> str:
        """A new database; its name."""
        name = f"noetl_test_{os.getpid()}_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return name

    def drop(self, name: str) -> None:
        self.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def execute(self, statement: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement)  # type: ignore[arg-type]


def make_settings(url: str, **changes: Any) -> Settings:
    """Settings of a test: nothing of the environment, times that suit a test."""
    quick = {"heartbeat_seconds": 0.2, "dead_after_seconds": 1.0, "lease_seconds": 10.0, "sweep_seconds": 0.05}
    return load(**{"database_url": url, "secret_key": KEY, "pool_size": 4, **quick, **changes})


def credential_of(url: str, **changes: str) -> dict[str, str]:
    """A credential for a database, with NoETL's own names of fields."""
    names = {"host": "db_host", "port": "db_port", "user": "db_user", "password": "db_password", "dbname": "db_name"}
    fields = conninfo.conninfo_to_dict(url)
    return {names[key]: str(value) for key, value in fields.items() if key in names} | changes

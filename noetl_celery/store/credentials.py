"""Credentials: encrypted at rest with Fernet, decrypted only where a task or claim uses them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cryptography.fernet import Fernet, InvalidToken

from noetl_celery.errors import InputError, NotFound, ServiceError
from noetl_celery.settings import Settings
from noetl_celery.store.db import Connection, changed, every, execute, one


class Vault:
    """Encrypts and decrypts with the key of the settings. Raises ``InputError`` when there is none."""

    def __init__(self, settings: Settings) -> None:
        if settings.secret_key is None:
            raise InputError(
                "credentials need NOETL_SECRET_KEY",
                hint="make one with: python -c 'from cryptography.fernet import Fernet; "
                "print(Fernet.generate_key().decode())'; `noetl-celery dev` makes and keeps its own",
            )
        self._fernet = Fernet(settings.secret_key.get_secret_value())

    def store(self, connection: Connection, name: str, type_: str, fields: Mapping[str, Any]) -> None:
        """Creates or replaces a credential. Idempotent."""
        execute(
            connection,
            """
            INSERT INTO noetl.credential (name, type, data) VALUES (%(name)s, %(type)s, %(data)s)
            ON CONFLICT (name) DO UPDATE
            SET type = excluded.type, data = excluded.data, updated_at = clock_timestamp()
            """,
            name=name,
            type=type_,
            data=self._fernet.encrypt(json.dumps(dict(fields)).encode()),
        )

    def fetch(self, connection: Connection, name: str) -> dict[str, Any]:
        """The fields of a credential, with its ``type`` under ``_type``. Raises ``NotFound``, ``ServiceError``."""
        row = one(connection, "SELECT type, data FROM noetl.credential WHERE name = %(name)s", name=name)
        if row is None:
            raise NotFound(
                f"there is no credential '{name}'",
                hint=f"store it with: noetl-celery credential set {name} --type postgres --data @file.json",
            )
        try:
            fields = json.loads(self._fernet.decrypt(bytes(row["data"])))
        except InvalidToken:
            raise ServiceError(
                f"credential '{name}' was encrypted with another key",
                hint="set the NOETL_SECRET_KEY it was stored with",
            ) from None
        return {**fields, "_type": row["type"]}

    def readable(self, connection: Connection, name: str) -> bool:
        """Can it be decrypted with this key? False also for one that is not there."""
        try:
            self.fetch(connection, name)
        except (NotFound, ServiceError):
            return False
        return True


def names(connection: Connection) -> list[dict[str, Any]]:
    """Names, types and times of all credentials; never their fields."""
    return every(connection, "SELECT name, type, created_at, updated_at FROM noetl.credential ORDER BY name")


def delete(connection: Connection, name: str) -> bool:
    """Removes a credential; False if there was none."""
    return bool(changed(connection, "DELETE FROM noetl.credential WHERE name = %(name)s", name=name))

"""Paths that are meant, for hints."""

from __future__ import annotations

import psycopg
import pytest

from noetl_celery.settings import Settings
from noetl_celery.store import catalog
from noetl_celery.store.db import Database

pytestmark = pytest.mark.integration

PATHS = [
    "examples/hello",
    "examples/nightly_report",
    "examples/dead_letters",
    "language/shell",
    "shop/orders",
    "shop/old/orders",
]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("examples/helo", ["examples/hello"]),
        ("hello", ["examples/hello"]),
        ("exmaples/nightlyreport", ["examples/nightly_report"]),
        ("shop/order", ["shop/orders", "shop/old/orders"]),
        ("examples/of_another_kind", []),
    ],
)
def test_a_hint_names_what_ends_alike(settings: Settings, asked: str, found: list[str]) -> None:
    with psycopg.connect(settings.libpq_url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO noetl.catalog (path, version, fingerprint, content)"
            " SELECT path, 1, path, '' FROM unnest(%s::text[]) AS path",
            (PATHS,),
        )
    database = Database(settings)
    assert database.read(lambda connection: catalog.like(connection, asked)) == found
    database.close()

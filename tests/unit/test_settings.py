import os
from pathlib import Path

import pytest
from cryptography.fernet import Fernet
from sqlalchemy import make_url

from noetl_celery.errors import InputError
from noetl_celery.settings import Settings, load, normalise_database_url


@pytest.fixture(autouse=True)
def _no_settings_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("NOETL_")]:
        monkeypatch.delenv(name)


def test_defaults_fit_together() -> None:
    settings = load()
    assert settings.result_url == settings.broker_url
    assert settings.body_processes >= 1


def test_every_setting_has_a_description() -> None:
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []


@pytest.mark.parametrize(
    ("given", "libpq"),
    [
        ("postgres://u:p%40w@h:5433/db", "postgresql://u:p%40w@h:5433/db"),
        ("postgresql+psycopg://u@h/db?sslmode=require", "postgresql://u@h/db?sslmode=require"),
        ("postgresql://postgres:@/postgres?host=/tmp/x", "postgresql://postgres:@/postgres?host=/tmp/x"),
        ("postgresql://u@%2Ftmp%2Fx/db", "postgresql://u@/db?host=/tmp/x"),
        ("postgresql://u@[::1]:5433/db", "postgresql://u@[::1]:5433/db"),
        (
            " postgresql://a:1,b:2/db?target_session_attrs=primary ",
            "postgresql://a:1,b:2/db?target_session_attrs=primary",
        ),
    ],
)
def test_database_urls_are_normalised(given: str, libpq: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOETL_DATABASE_URL", given)
    settings = load()
    assert settings.libpq_url == libpq
    assert settings.sqlalchemy_url == libpq.replace("postgresql://", "postgresql+psycopg://")
    assert normalise_database_url(libpq) == libpq


def test_sqlalchemy_finds_the_socket_folder() -> None:
    url = make_url(load(database_url="postgresql://u@/db?host=/tmp/a b").sqlalchemy_url)
    assert (url.query["host"], url.database, url.username) == ("/tmp/a b", "db", "u")


def test_all_problems_at_once_and_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {
        "NOETL_DATABASE_URL": "mysql://u:hush@h/d",
        "NOETL_BROKER_URL": "amqp://u:hush@h",
        "NOETL_SECRET_KEY": "hush",
        "NOETL_POOL_SIZE": "many",
        "NOETL_LANE_WIDTH": "0",
        "NOETL_LOG_LEVEL": "loud",
    }
    for name, value in wrong.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError) as caught:
        load()
    lines = str(caught.value).splitlines()
    assert [line.split()[0] for line in lines] == list(dict.fromkeys(line.split()[0] for line in lines))
    assert {line.split()[0] for line in lines} == set(wrong)
    assert "hush" not in str(caught.value)
    assert "the default is 8" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("NOETL_DATABASE_URL", "postgresql://u:hush@h", "does not name a database"),
        ("NOETL_DATABASE_URL", "postgresql://u:hush@h:x/d", "port"),
        ("NOETL_DATABASE_URL", "host=h dbname=d password=hush", "not a PostgreSQL URL"),
        ("NOETL_BROKER_URL", "redis://:hush@h:99999/0", "port"),
        ("NOETL_POOL_SIZE", "1", "greater than or equal to 2"),
        ("NOETL_LEASE_SECONDS", "9", "NOETL_LEASE_SECONDS (9) must be at least twice NOETL_HEARTBEAT_SECONDS (5)"),
        ("NOETL_DEAD_AFTER_SECONDS", "5", "must be more than NOETL_HEARTBEAT_SECONDS"),
    ],
)
def test_one_problem(name: str, value: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(InputError) as caught:
        load()
    assert name in str(caught.value)
    assert says in str(caught.value)
    assert "hush" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_secrets_are_not_in_the_repr() -> None:
    key = Fernet.generate_key().decode()
    settings = load(database_url="postgresql://u:hush@h/d", broker_url="redis://:hush@h/0", secret_key=key)
    assert "hush" not in repr(settings)
    assert key not in repr(settings)
    assert settings.secret_key is not None
    assert settings.secret_key.get_secret_value() == key


def test_folders_of_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("NOETL_SCRIPTS", os.pathsep.join(["/a b", "", " ~/scripts "]))
    assert load().script_folders == (Path("/a b"), Path("/home/me/scripts"))
    assert load(scripts=".").script_folders == (Path(),)


def test_empty_variables_are_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOETL_SECRET_KEY", "")
    monkeypatch.setenv("NOETL_LOG_LEVEL", "debug")
    settings = load()
    assert settings.secret_key is None
    assert settings.log_level == "DEBUG"

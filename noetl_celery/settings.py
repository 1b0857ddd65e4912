"""Every setting, once: read from ``NOETL_…`` variables of the environment where a process starts, then passed on.

Nothing else in the package reads the environment. Units are part of a name (``_seconds``, ``_bytes``, ``_rows``).
"""

import base64
import binascii
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from noetl_celery import hiding
from noetl_celery.errors import InputError

PREFIX = "NOETL_"
#: the Celery queues, known to whoever publishes and whoever starts nodes
CONTROL_QUEUE = "noetl.control"
#: lanes; those of a pool with workers of its own go to ``noetl.body.<pool>``
BODY_QUEUE = "noetl.body"
BROKER_SCHEMES = ("redis", "rediss", "redis+socket", "sentinel")

DATABASE_EXAMPLE = "write for example postgresql://user:password@host:5432/database"
BROKER_EXAMPLE = "write for example redis://127.0.0.1:6379/0"
SECRET_KEY_EXAMPLE = (
    "it must be 32 bytes in url-safe base64; make one with: "
    'python -c "from cryptography.fernet import Fernet; print(Fernet.generate_key().decode())"'
)

TOKEN_CHARACTERS = 16
TOKEN_EXAMPLE = 'make one with: python -c "import secrets; print(secrets.token_urlsafe(32))"'


class Settings(BaseSettings):
    """What can be set, with its default. Immutable; build it with :func:`load` where a process starts."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, env_ignore_empty=True, hide_input_in_errors=True)

    # Where things are
    database_url: str = Field(
        "postgresql://noetl:noetl@127.0.0.1:5432/noetl",
        repr=False,
        description="PostgreSQL 13 or newer that holds the schema `noetl`",
    )
    broker_url: str = Field(
        "redis://127.0.0.1:6379/0",
        repr=False,
        description="Redis for Celery's messages; `rediss://`, `redis+socket://` and `sentinel://` too",
    )
    result_backend_url: str | None = Field(
        None, repr=False, description="Redis for the counters of chords; the broker if not set"
    )
    secret_key: SecretStr | None = Field(
        None,
        description="Fernet key (32 bytes, url-safe base64) that credentials are encrypted with; the same for all "
        "processes",
    )
    data_dir: Path = Field(Path(".noetl"), description="folder where `noetl-celery dev` keeps data, logs and its key")

    scripts: str = Field(
        ".", description="folders on the worker that relative paths of a `script` are looked up in, separated by `:`"
    )
    scripts_anywhere: bool = Field(
        False, description="whether a `script` may also be read from outside of those folders"
    )
    duckdb_dir: Path | None = Field(
        None,
        description="folder of the duckdb files that executions have of their own; `noetl-duckdb-<uid>` in the "
        "system's folder for temporary files if not set. Workers on several machines or in several containers need one "
        "that they share. A file that was not used for 7 days is removed",
    )

    # Connections
    pool_size: int = Field(
        8, ge=2, description="connections of a process to the schema `noetl`; it may open as many again in a rush"
    )
    tool_pool_size: int = Field(16, ge=1, description="connections of a process per credential, for tasks and claims")
    statement_seconds: float = Field(
        60.0,
        gt=0,
        description="how long a statement of NoETL-Celery's own may take; a connection on which the server is silent "
        "for 5 s longer counts as lost. It replaces the role's `statement_timeout`",
    )

    # Lanes: how rows are worked
    lane_width: int = Field(
        16,
        ge=1,
        description="rows that one lane works on at once, on threads; a frame gets "
        "`row_concurrency / NOETL_LANE_WIDTH` lanes, rounded up",
    )
    lane_seconds: float = Field(
        30.0, gt=0, description="how long a lane keeps its worker slot before it hands over to a fresh one"
    )
    short_wait_seconds: float = Field(
        5.0, ge=0, description="delays of retries up to this long wait in the lane; longer ones park the row"
    )
    outcome_batch_rows: int = Field(100, ge=1, description="outcomes written at once, at most")
    outcome_batch_seconds: float = Field(
        0.1, gt=0, description="how long an outcome waits for others before it is written"
    )

    # Recovery
    max_crashes: int = Field(
        3, ge=1, description="ends of a worker process with the same row in hand before that row fails"
    )
    lease_seconds: float = Field(
        120.0, gt=0, description="lease of a claim in another database; a frame has its own `lease_seconds` (120)"
    )
    heartbeat_seconds: float = Field(
        5.0, gt=0, description="how often a process says that it is alive and extends its leases, at least"
    )
    dead_after_seconds: float = Field(
        10.0, gt=0, description="a process without database session, not seen for so long, is dead"
    )
    sweep_seconds: float = Field(1.0, gt=0, description="how often the sweep wakes parked rows and looks for lost work")
    republish_seconds: float = Field(
        10.0,
        gt=0,
        description="a dispatch or signal that nobody took is published after this, then at doubling distances up to "
        "64 times it",
    )
    claim_timeout_seconds: float = Field(300.0, gt=0, description="how long each statement of a claim may run")
    grace_seconds: float = Field(
        30.0, ge=0, description="how long running work may take to end when a worker is told to stop"
    )

    # Bounds
    orchestrate_passes: int = Field(
        20, ge=1, description="times that one orchestrate task looks again before it hands over to a fresh message"
    )
    signal_batch: int = Field(500, ge=1, description="signals of an execution that are decided on at once")
    jump_budget: int = Field(10_000, ge=1, description="jumps of a row's pipeline before it fails as endless")
    child_depth: int = Field(16, ge=1, description="how deep playbooks may call each other")
    iteration_events: int = Field(
        1_000, ge=0, description="items up to which a loop over a collection writes an event for each"
    )
    result_inline_bytes: int = Field(
        65_536,
        ge=0,
        description="results up to this many bytes of JSON stand in their row; larger ones are stored once and "
        "referred to",
    )
    result_page_bytes: int = Field(
        1_048_576, ge=1, description="bytes of JSON that are read at once where a large result is iterated over"
    )
    result_max_bytes: int = Field(
        16_777_216,
        ge=1,
        description="the largest result that a row may have, as JSON, and the most of a larger one (a loop's) that is "
        "loaded at once",
    )
    log_bytes: int = Field(
        100_000_000,
        ge=0,
        description="how much of what its tasks print is kept of an execution (`noetl-celery logs`); each line counts "
        "as 100 bytes more, `0` keeps nothing. It is somewhat more where several lanes write at once",
    )

    # The console and the HTTP API
    console_token: SecretStr | None = Field(
        None,
        description="what whoever uses the console or the HTTP API has to know; at least 16 characters. "
        "`noetl-celery dev` needs none",
    )

    # Worker processes
    control_concurrency: int = Field(8, ge=1, description="threads of a control node")
    body_concurrency: int | None = Field(
        None, ge=1, description="processes of a bodies node; the number of CPUs if not set"
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] = Field(
        "INFO", description="least level that is logged"
    )
    log_format: Literal["text", "json"] = Field("text", description="lines for people, or one JSON object a line")
    metrics_port: int | None = Field(
        None,
        ge=1,
        le=65535,
        description="port where a worker tells Prometheus what it has counted; nothing is counted if not set",
    )
    metrics_host: str = Field("0.0.0.0", description="address of that port")
    pools: str | None = Field(
        None,
        description="pools that have workers of their own (`noetl-celery worker --queues gpu`), separated by commas; "
        "lanes of a pool that is not named here go to all workers",
    )
    debug: bool = Field(False, description="tracebacks where otherwise one line says what is wrong")

    @field_validator("log_format", mode="before")
    @classmethod
    def _lower(cls, value: Any) -> Any:
        return value.lower() if isinstance(value, str) else value

    @field_validator("log_level", mode="before")
    @classmethod
    def _upper(cls, value: Any) -> Any:
        return value.upper() if isinstance(value, str) else value

    @field_validator("database_url")
    @classmethod
    def _database(cls, value: str) -> str:
        return normalise_database_url(value)

    @field_validator("broker_url", "result_backend_url")
    @classmethod
    def _redis(cls, value: str | None) -> str | None:
        if value is None:
            return None
        parts = urlsplit(value.strip())
        if parts.scheme not in BROKER_SCHEMES:
            raise ValueError(
                f"is not a Redis URL ({' or '.join(f'{name}://' for name in BROKER_SCHEMES)}); {BROKER_EXAMPLE}"
            )
        if not _port_is_valid(value) and parts.scheme != "sentinel":
            raise ValueError(f"has a port that is not a number from 0 to 65535; {BROKER_EXAMPLE}")
        return value.strip()

    @field_validator("secret_key")
    @classmethod
    def _fernet_key(cls, value: SecretStr | None) -> SecretStr | None:
        if value is None:
            return None
        try:
            raw = base64.urlsafe_b64decode(value.get_secret_value().encode())
        except (binascii.Error, ValueError):
            raw = b""
        if len(raw) != 32:
            raise ValueError(f"is not a usable key: {SECRET_KEY_EXAMPLE}")
        return value

    @field_validator("console_token")
    @classmethod
    def _long_token(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and len(value.get_secret_value()) < TOKEN_CHARACTERS:
            raise ValueError(f"must have at least {TOKEN_CHARACTERS} characters; {TOKEN_EXAMPLE}")
        return value

    @model_validator(mode="after")
    def _together(self) -> Self:
        conflicts = list(self._conflicts())
        if conflicts:
            raise ValueError("\n".join(conflicts))
        return self

    def _conflicts(self) -> Iterator[str]:
        if self.lease_seconds < 2 * self.heartbeat_seconds:
            yield (
                f"NOETL_LEASE_SECONDS ({self.lease_seconds:g}) must be at least twice NOETL_HEARTBEAT_SECONDS "
                f"({self.heartbeat_seconds:g}): a healthy worker would lose its work"
            )
        if self.dead_after_seconds <= self.heartbeat_seconds:
            yield (
                f"NOETL_DEAD_AFTER_SECONDS ({self.dead_after_seconds:g}) must be more than NOETL_HEARTBEAT_SECONDS "
                f"({self.heartbeat_seconds:g}): a healthy worker would be taken for dead"
            )
        if self.outcome_batch_seconds >= self.lease_seconds:
            yield (
                f"NOETL_OUTCOME_BATCH_SECONDS ({self.outcome_batch_seconds:g}) must be less than NOETL_LEASE_SECONDS "
                f"({self.lease_seconds:g}): outcomes would be written after their lease has ended"
            )

    @property
    def libpq_url(self) -> str:
        """The database for psycopg, psql and everything else that is libpq."""
        return self.database_url

    @property
    def sqlalchemy_url(self) -> str:
        """The database for SQLAlchemy's ``create_engine``, on psycopg 3."""
        return "postgresql+psycopg" + self.database_url.removeprefix("postgresql")

    @property
    def result_url(self) -> str:
        """The Redis that Celery's results and chord counters are kept in."""
        return self.result_backend_url or self.broker_url

    @property
    def script_folders(self) -> tuple[Path, ...]:
        """The folders of scripts, in the order in which they are searched."""
        return tuple(Path(part.strip()).expanduser() for part in self.scripts.split(os.pathsep) if part.strip())

    @property
    def own_pools(self) -> frozenset[str]:
        """The pools whose lanes wait for a worker of that pool."""
        return frozenset(filter(None, (name.strip() for name in (self.pools or "").split(","))))

    @property
    def body_processes(self) -> int:
        """Processes of a bodies node."""
        return self.body_concurrency or os.cpu_count() or 1


def load(**overrides: Any) -> Settings:
    """Reads the settings from the environment; fields given here win.

    Raises :class:`InputError` that names every invalid variable and what to write, never a value that may be secret.
    """
    try:
        settings = Settings(**overrides)
        secrets = {name: getattr(settings, name) for name in ("secret_key", "console_token")}
        urls = [settings.database_url, settings.broker_url, settings.result_backend_url]
        known = {name: secret.get_secret_value() for name, secret in secrets.items() if secret is not None}
        hiding.learn_named({**known, "urls": urls}, lasting=True)
        return settings
    except ValidationError as error:
        lines = [line for problem in error.errors() for line in _explain(problem)]
    raise InputError("\n".join(lines))


def _explain(problem: Any) -> Iterator[str]:
    text = str(problem["msg"]).removeprefix("Value error, ")
    if not problem["loc"]:
        yield from text.splitlines()
        return
    field = str(problem["loc"][0])
    if problem["type"] != "value_error":
        text = text[:1].lower() + text[1:]
        default = Settings.model_fields[field].default
        text = f"is not usable: {text}" + ("" if default is None else f"; the default is {default}")
    yield f"{PREFIX}{field.upper()} {text}"


def _port_is_valid(url: str) -> bool:
    try:
        urlsplit(url).port  # noqa: B018 - the property parses and checks
    except ValueError:
        return False
    return True


def normalise_database_url(url: str) -> str:
    """``postgres://``, ``postgresql+psycopg://`` and the like become ``postgresql://``, as libpq takes it.

    A socket folder written as a percent-encoded host moves to ``?host=``, which SQLAlchemy understands as well.
    Raises ``ValueError`` for anything that is not a PostgreSQL URL.
    """
    parts = urlsplit(url.strip())
    if parts.scheme.split("+")[0] not in ("postgresql", "postgres"):
        raise ValueError(f"is not a PostgreSQL URL; {DATABASE_EXAMPLE}")
    user, separator, host = parts.netloc.rpartition("@")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unquote(host).startswith("/"):
        query["host"], host = unquote(host), ""
    elif host and "," not in host and not _port_is_valid(f"postgresql://{host}"):
        raise ValueError(f"has a port that is not a number from 0 to 65535; {DATABASE_EXAMPLE}")
    if not parts.path.strip("/"):
        raise ValueError(f"does not name a database; {DATABASE_EXAMPLE}")
    suffix = f"?{urlencode(query, quote_via=quote, safe='/')}" if query else ""
    return f"postgresql://{user}{separator}{host}{parts.path}{suffix}"

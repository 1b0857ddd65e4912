"""Checks of this machine, of PostgreSQL and of Redis."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator

import psycopg

from noetl_celery.cli.console import seconds_text
from noetl_celery.cli.doctor.findings import Check, Finding, ok, problem, warning
from noetl_celery.cli.doctor.place import Place
from noetl_celery.store import credentials, health, migrate
from noetl_celery.store.credentials import Vault

POSTGRES_LEAST = 13
REDIS_LEAST = (6, 2)
#: clocks that differ by less are the same, in seconds
CLOCK_SECONDS = 2.0
#: part of all connections in use from which on it is a problem
FULL = 0.9
LONG_TRANSACTION_SECONDS = 300.0
#: transactions that a slot or a prepared transaction may lag behind
OLD_AGE = 10_000_000
#: dead rows of a table that are worth a word, if they are more than the living
DEAD_ROWS = 100_000


def _versions(place: Place) -> Iterator[Finding]:
    import celery

    from noetl_celery import __version__

    libpq = divmod(psycopg.pq.version(), 10000)[0]
    yield ok(
        f"noetl-celery {__version__}, Python {platform.python_version()}, Celery {celery.__version__}, "
        f"psycopg {psycopg.__version__} (libpq {libpq})"
    )


HERE = [Check("here", (), _versions)]


# -- PostgreSQL --------------------------------------------------------------------------------------------------------


def _server(place: Place) -> Iterator[Finding]:
    if place.postgres is None:
        yield problem(place.away["postgres"])
        return
    server = health.server(place.postgres)
    version = server["version"].split()[0]
    if server["number"] < POSTGRES_LEAST * 10_000:
        yield problem(f"PostgreSQL {version} is too old", f"PostgreSQL {POSTGRES_LEAST} or newer is needed")
    elif server["standby"]:
        yield problem(
            f"PostgreSQL {version} is a standby and takes no writes",
            "let NOETL_DATABASE_URL lead to the primary, for example with target_session_attrs=read-write",
        )
    elif server["read_only"]:
        yield problem(
            f"PostgreSQL {version} takes no writes: default_transaction_read_only is on for this database or role",
            "ALTER DATABASE … (or ROLE …) RESET default_transaction_read_only",
        )
    else:
        yield ok(f"PostgreSQL {version}")
    if not server["autovacuum"]:
        yield problem("autovacuum is off: tables whose rows come and go grow without end", "set autovacuum = on")


def _schema(place: Place) -> Iterator[Finding]:
    if place.postgres is None:
        yield warning("not checked: PostgreSQL is away")
    elif not place.schema:
        yield problem(place.away["schema"])
    else:
        yield ok(f"revision {migrate.head()}")


def _clock(place: Place) -> Iterator[Finding]:
    assert place.postgres is not None
    begun = time.time()
    theirs = health.clock(place.postgres)
    ended = time.time()
    ahead = theirs - (begun + ended) / 2
    if abs(ahead) <= CLOCK_SECONDS + (ended - begun) / 2:
        yield ok(f"PostgreSQL's clock and ours differ by {abs(ahead):.2f} s")
        return
    direction = "ahead of" if ahead > 0 else "behind"
    yield warning(
        f"PostgreSQL's clock is {seconds_text(abs(ahead))} {direction} ours",
        "leases and delays do not mind, as they go by PostgreSQL's clock; times in logs do: use NTP on both",
    )


def _connections(place: Place) -> Iterator[Finding]:
    assert place.postgres is not None
    server = health.server(place.postgres)
    usable = server["most"] - server["reserved"]
    alive = [process for process in _processes(place) if process["alive"]]
    stored = credentials.names(place.postgres)
    sources = sum(row["type"] in ("postgres", "postgresql") for row in stored)
    own, tools = _pool_sizes(place)
    most = len(alive) * (2 * own + 1 + tools * sources)
    used = f"{server['used']} of {usable} connections are in use, {server['ours']} of them ours"
    hint = "fewer processes, smaller NOETL_POOL_SIZE and NOETL_TOOL_POOL_SIZE, a larger max_connections, or a pooler"
    if server["used"] >= FULL * usable:
        yield problem(used, hint)
    elif most > usable:
        yield warning(
            f"{used}; {len(alive)} worker processes may open up to {most}: for each 2 * {own} (NOETL_POOL_SIZE) and 1, "
            f"and {tools} (NOETL_TOOL_POOL_SIZE) for each of {sources} postgres credentials that leads here",
            hint,
        )
    else:
        yield ok(f"{used}; {len(alive)} worker processes open at most {most}")


def _processes(place: Place) -> list[dict[str, object]]:
    assert place.postgres is not None
    return health.processes(place.postgres, dead_after_seconds=place.settings.dead_after_seconds)


def _pool_sizes(place: Place) -> tuple[int, int]:
    """The largest of the workers' settings; ours where none says."""
    told = [node.told for node in place.nodes.values() if node.told]
    own = max((node["pool_size"] for node in told), default=place.settings.pool_size)
    return own, max((node["tool_pool_size"] for node in told), default=place.settings.tool_pool_size)


def _transactions(place: Place) -> Iterator[Finding]:
    assert place.postgres is not None
    old = health.long_transactions(place.postgres, seconds=LONG_TRANSACTION_SECONDS)
    for row in old:
        yield warning(
            f"a transaction of '{row['name'] or 'somebody'}' (pid {row['pid']}, {row['state']}) has been open for "
            f"{seconds_text(row['seconds'])}: vacuum may remove nothing that is younger",
            f"end it, if need be with: SELECT pg_terminate_backend({row['pid']})",
        )
    held = [row for row in health.held_back(place.postgres) if row["age"] > OLD_AGE]
    for row in held:
        yield warning(
            f"{row['what']} '{row['name']}' holds back vacuum by {row['age']:,} transactions",
            "have it consumed, or drop it",
        )
    if not old and not held:
        yield ok("no transaction holds back vacuum")


def _bloat(place: Place) -> Iterator[Finding]:
    assert place.postgres is not None
    tables = health.bloat(place.postgres)
    swollen = [row for row in tables if row["dead"] > DEAD_ROWS and row["dead"] > row["live"]]
    for row in swollen:
        ago = "never" if row["seconds"] is None else f"{seconds_text(row['seconds'])} ago"
        yield warning(
            f"noetl.{row['name']} has {row['dead']:,} dead rows and {row['live']:,} living ones "
            f"({row['bytes'] // 1_048_576} MB); it was vacuumed {ago}",
            f"see whether something holds back vacuum; then: VACUUM noetl.{row['name']}",
        )
    if not swollen:
        size = sum(row["bytes"] for row in tables) // 1_048_576
        yield ok(f"{sum(row['dead'] for row in tables):,} dead rows in hot tables of {size} MB")


def _credentials(place: Place) -> Iterator[Finding]:
    assert place.postgres is not None
    stored = [row["name"] for row in credentials.names(place.postgres)]
    if place.settings.secret_key is None:
        yield problem(f"{len(stored)} are stored, and there is no NOETL_SECRET_KEY here") if stored else ok("none")
        return
    vault = Vault(place.settings)
    unreadable = [name for name in stored if not vault.readable(place.postgres, name)]
    if unreadable:
        yield problem(
            f"{len(unreadable)} of {len(stored)} cannot be decrypted with this NOETL_SECRET_KEY: {_few(unreadable)}",
            "set the key they were stored with, or store them again: noetl-celery credential set NAME …",
        )
    else:
        yield ok(f"{len(stored)} credentials can be decrypted")


def _few(names: list[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[: health.SHOWN])
    return shown + (", …" if len(names) > health.SHOWN else "")


POSTGRES = [
    Check("postgres", (), _server),
    Check("schema", (), _schema),
    Check("clock", ("postgres",), _clock),
    Check("connections", ("postgres", "schema"), _connections),
    Check("vacuum", ("postgres",), _transactions),
    Check("bloat", ("postgres", "schema"), _bloat),
    Check("credentials", ("postgres", "schema"), _credentials),
]


# -- Redis -------------------------------------------------------------------------------------------------------------


def _redis(place: Place) -> Iterator[Finding]:
    if place.redis is None:
        yield problem(
            f"Redis is not reachable: {place.away['redis']}",
            "check NOETL_BROKER_URL and that the server runs; nothing is lost, work goes on when it is back",
        )
        return
    info = place.redis.info()
    version = str(info["redis_version"])
    if tuple(int(part) for part in version.split(".")[:2]) < REDIS_LEAST:
        yield warning(f"Redis {version} is old", f"{REDIS_LEAST[0]}.{REDIS_LEAST[1]} or newer is tested")
    else:
        yield ok(f"Redis {version}")
    if info.get("role") not in (None, "master"):
        yield problem("Redis is a replica and takes no writes", "let NOETL_BROKER_URL lead to the primary")
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        yield problem("Redis could not save its data, and may refuse writes", "look at its log and its disk")


def _memory(place: Place) -> Iterator[Finding]:
    assert place.redis is not None
    info = place.redis.info("memory")
    policy, most, used = str(info.get("maxmemory_policy", "noeviction")), int(info.get("maxmemory", 0)), 0
    used = int(info.get("used_memory", 0))
    if policy != "noeviction":
        level = problem if most else warning
        yield level(
            f"maxmemory-policy is {policy}: a full Redis throws messages away (they are sent again, later)",
            "CONFIG SET maxmemory-policy noeviction",
        )
    if most and used > FULL * most:
        yield problem(f"{used:,} of {most:,} bytes are in use", "give it more memory; see what else lives there")
    elif policy == "noeviction":
        yield ok(f"{used // 1_048_576} MB in use, {policy}")


def _persistence(place: Place) -> Iterator[Finding]:
    assert place.redis is not None
    info = place.redis.info("persistence")
    kept = "kept" if info.get("aof_enabled") or info.get("rdb_last_save_time") else "not kept"
    yield ok(f"messages are {kept} over a restart; none has to be")


def _visibility(place: Place) -> Iterator[Finding]:
    from noetl_celery.app import VISIBILITY_SECONDS

    leases = {"NOETL_LEASE_SECONDS": place.settings.lease_seconds}
    leases |= {
        f"NOETL_LEASE_SECONDS of {name}": node.told["lease_seconds"] for name, node in place.nodes.items() if node.told
    }
    if place.schema and place.postgres is not None:
        longest = health.work(place.postgres)["longest_lease"]
        leases |= {"the longest lease of a frame under way": longest} if longest else {}
    name, lease = max(leases.items(), key=lambda item: item[1])
    if lease >= VISIBILITY_SECONDS:
        yield warning(
            f"{name} is {lease:g} s: Redis delivers a message again after {VISIBILITY_SECONDS} s, beside its work",
            "no harm, as the second one finds it taken; but leases may be shorter: they are extended during work",
        )
    else:
        yield ok(f"Redis delivers a message again after {VISIBILITY_SECONDS} s; the longest lease is {lease:g} s")


REDIS = [
    Check("redis", (), _redis),
    Check("redis memory", ("redis",), _memory),
    Check("redis persistence", ("redis",), _persistence),
    Check("visibility", (), _visibility),
]

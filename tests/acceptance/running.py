"""A running system, as tests see it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import redis

from noetl_celery import Noetl
from noetl_celery.settings import load

ROOT = Path(__file__).resolve().parents[2]
CLI = (sys.executable, "-m", "noetl_celery")
#: COMMAND of the shared `dev`: says where everything is, and stays until we let go of its standard input
HOLDER = (
    "import json, os, sys\n"
    "print(json.dumps({n: v for n, v in os.environ.items() if n.startswith('NOETL_')}), flush=True); sys.stdin.read()"
)
#: what users of a test's console have to know
TOKEN = "a-token-of-the-tests"


@dataclass(frozen=True)
class System:
    """Where a running system is, and how tests speak to it."""

    env: dict[str, str] = field(repr=False)
    folder: Path

    def cli(self, *arguments: str, stdin: str | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        """Runs the command line as a user would, outside the source tree; nobody ever sees a traceback."""
        done = subprocess.run(
            [*CLI, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            env=self.env | env,
            cwd=self.folder,
            timeout=120,
            check=False,
        )
        assert "Traceback" not in done.stdout + done.stderr, done.stderr
        return done

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """The same, without waiting for its end."""
        return subprocess.Popen(
            [*CLI, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.env,
            cwd=self.folder,
        )

    @contextmanager
    def console(self, *, token: str | None = TOKEN, **env: str) -> Iterator[str]:
        """`noetl-celery console` on a port of its own; its address. Without a token it is open to this machine."""
        options = ("--no-token",) if token is None else ()
        own = {} if token is None else {"NOETL_CONSOLE_TOKEN": token}
        with subprocess.Popen(
            [*CLI, "console", "--port", "0", *options],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=self.env | own | env,
            cwd=self.folder,
        ) as process:
            assert process.stderr
            line = process.stderr.readline()
            found = re.search(r"http://[\d.:]+", line)
            assert found, line + process.stderr.read()
            try:
                yield found[0]
            finally:
                process.terminate()
                said = process.stderr.read()
                assert process.wait(30) == 0, said
                assert "Traceback" not in said, said

    def json(self, *arguments: str) -> Any:
        """What a command prints with --json."""
        done = self.cli(*arguments, "--json")
        return json.loads(done.stdout)

    def playbook(self, name: str, workflow: str, workload: str = "{}") -> str:
        """Writes a playbook; its file's path. It is registered as ``acceptance/<name>``."""
        file = self.folder / f"{name}.yaml"
        head = f"apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {{name: {name}, path: acceptance/{name}}}\n"
        file.write_text(f"{head}workload: {workload}\nworkflow:\n{workflow}")
        return str(file)

    def client(self) -> Noetl:
        """The Python API on this system."""
        return Noetl(load(**{name.removeprefix("NOETL_").lower(): value for name, value in self.own.items()}))

    @property
    def own(self) -> dict[str, str]:
        return {name: value for name, value in self.env.items() if name.startswith("NOETL_")}

    def sql(self, statement: str, *values: Any) -> list[Any]:
        """Rows of a statement."""
        with psycopg.connect(self.env["NOETL_DATABASE_URL"], autocommit=True) as connection:
            cursor = connection.execute(statement, values or None)
            return cursor.fetchall() if cursor.description is not None else []

    def everything_in_redis(self) -> str:
        """All keys and values that the broker holds at this moment."""
        with redis.Redis.from_url(self.env["NOETL_BROKER_URL"]) as connection:
            return repr([(key, connection.dump(key)) for key in connection.keys("*")])


def until(condition: Callable[[], Any], what: str, seconds: float = 60) -> Any:
    """Waits until something is true, and returns it."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.05)
    return found

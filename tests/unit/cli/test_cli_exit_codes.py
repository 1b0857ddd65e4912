"""Exit codes and messages of what needs no service, or finds none."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from noetl_celery import cli
from noetl_celery.errors import ExecutionFailed, InputError, NoetlError, ServiceError, WaitTimeout

HELLO = str(Path(__file__).parents[3] / "playbooks" / "hello.yaml")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in this process, without any service; (exit code, stdout, stderr)."""
    monkeypatch.setattr("noetl_celery.client.PATIENCE_SECONDS", 0.0)
    monkeypatch.setenv("NOETL_DATABASE_URL", "postgresql://nobody:secret@127.0.0.1:1/x")
    monkeypatch.setenv("NOETL_BROKER_URL", "redis://:secret@127.0.0.1:1/0")
    monkeypatch.setenv("NOETL_SECRET_KEY", "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2U=")
    monkeypatch.delenv("NOETL_DEBUG", raising=False)

    def call(*arguments: str) -> tuple[int, str, str]:
        code = cli.run(arguments)
        printed = capfd.readouterr()
        assert "secret" not in printed.out + printed.err
        return code, printed.out, printed.err

    return call


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", HELLO),
        ("run", "examples/hello", "--json"),
        ("register", HELLO),
        ("status", "1"),
        ("wait", "1"),
        ("cancel", "1"),
        ("events", "1"),
        ("list",),
        ("credential", "set", "x", "--data", '{"dsn": "postgresql://u:secret@h/d"}'),
        ("credential", "list"),
        ("credential", "delete", "x"),
        ("db", "upgrade"),
        ("db", "current"),
        ("db", "check"),
    ],
)
def test_postgres_is_down(arguments: tuple[str, ...], run: Run) -> None:
    code, printed, error = run(*arguments)
    assert (code, printed) == (1, "")
    assert error.startswith("error: PostgreSQL is not reachable")
    assert "NOETL_DATABASE_URL" in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("run",), "Missing argument 'FILE_OR_PATH'"),
        (("nonsense",), "nonsense"),
        (("--nonsense",), "--nonsense"),
        (("run", HELLO, "--nonsense"), "--nonsense"),
        (("run", HELLO, "--timeout", "soon"), "--timeout"),
        (("run", HELLO, "--timeout", "-1"), "--timeout"),
        (("run", HELLO, "--workload", "{"), "--workload is not JSON"),
        (("run", HELLO, "--set", "a"), "--set 'a'"),
        (("run", "missing.yaml"), "missing.yaml cannot be read: No such file"),
        (("register", "."), ". cannot be read: Is a directory"),
        (("lint", "missing.yaml"), "missing.yaml cannot be read"),
        (("status", "abc"), "'abc' is no execution id"),
        (("status", "99999999999999999999"), "is no execution id"),
        (("list", "--status", "nope"), "there is no status 'nope'"),
        (("list", "--limit", "0"), "--limit"),
        (("credential", "set", "x", "--data", '{"db_password": "secret"}'), "no `db_host`"),
        (("credential", "set", " ", "--data", "{}"), "needs a name"),
        (("dev", "--nonsense"), "--nonsense"),
        (("worker", "--loglevel", "loud"), "--loglevel loud"),
    ],
)
def test_invalid_input(arguments: tuple[str, ...], says: str, run: Run) -> None:
    code, printed, error = run(*arguments)
    assert (code, printed) == (2, "")
    assert error.startswith("error: ")
    assert says in error
    assert len(error.splitlines()) == 1


def test_invalid_settings(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOETL_POOL_SIZE", "many")
    code, _, error = run("list")
    assert code == 2
    assert "NOETL_POOL_SIZE" in error


@pytest.mark.parametrize("command", ["run", "register"])
def test_every_problem_of_a_playbook_is_said_with_its_place(command: str, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(
        "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: bad}\nworkflow:\n"
        "  - step: start\n    tool: {kind: pythn, code: x}\n    next: {arcs: [{step: nowhere}]}\n"
    )
    code, printed, error = run(command, str(file))
    assert (code, printed) == (2, "")
    *lines, last = error.splitlines()
    problems = [line for line in lines if line.startswith(str(file))]
    assert [line.split(": ")[0].rpartition(":")[0] for line in problems] == [f"{file}:6", f"{file}:7"]
    assert all("step 'start'" in line for line in problems)
    assert "  6 |     tool: {kind: pythn, code: x}" in lines
    assert last == f"error: 2 problems in {file}"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InputError("x"), 2),
        (ServiceError("x"), 1),
        (ExecutionFailed("x"), 1),
        (WaitTimeout("x"), 3),
        (NoetlError("x"), 1),
        (KeyboardInterrupt(), 130),
        (RuntimeError("x"), 1),
        (cli.console.Detached(4711), 130),
    ],
)
def test_what_is_raised_becomes_a_code(
    error: BaseException, code: int, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("noetl_celery.client.Noetl.executions", fail)
    found, _, said = run("list")
    assert found == code
    assert "Traceback" not in said
    found, _, said = run("--debug", "list")
    assert found == code
    assert ("Traceback" in said) is not isinstance(error, KeyboardInterrupt)


def test_help_and_version(run: Run) -> None:
    code, printed, _ = run("--version")
    assert code == 0
    assert printed.startswith("noetl-celery ")
    code, printed, _ = run("--help")
    assert code == 0
    for command in ("register", "run", "status", "wait", "cancel", "events", "list", "lint", "credential", "db"):
        assert f"\n  {command} " in printed
    assert "\n  worker " in printed
    assert "\n  dev " in printed
    code, _, error = run()
    assert code == 2
    assert error.startswith("Usage:")


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    files = []
    for number in range(200):
        file = tmp_path / f"{number}.yaml"
        file.write_text("a: [1\nb: 2\n")
        files.append(str(file))
    command = [sys.executable, "-m", "noetl_celery", "lint", *files]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(60) == 141


def test_importing_costs_only_what_is_used() -> None:
    script = (
        "import sys, noetl_celery, noetl_celery.errors, noetl_celery.cli\n"
        "slow = {'celery', 'sqlalchemy', 'psycopg', 'alembic', 'pydantic', 'httpx', 'rich.progress'}\n"
        "heavy = slow & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)

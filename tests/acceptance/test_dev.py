"""`noetl-celery dev` as its user meets it: real services, real workers, real signals."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.acceptance

CLI = (sys.executable, "-c", "from noetl_celery.cli import main; main()")
#: COMMAND of most tests: says that it runs, then stays
STAY = ("bash", "-c", "echo up; exec sleep 4711")


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("NOETL_")}


def run_dev(*arguments: str | Path, **extra: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CLI, "dev", *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment() | extra,
        timeout=120,
        check=False,
    )


@contextlib.contextmanager
def running_dev(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A `dev` whose COMMAND has started; killed at the end if the test did not end it."""
    command = [*CLI, "dev", "--folder", str(folder), "--concurrency", "1", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL, env=environment()
    ) as dev:
        try:
            assert dev.stdout
            line = dev.stdout.readline()
            assert line, f"dev ended with {dev.wait()} before its command ran"
            yield dev
        finally:
            dev.kill()


def descendants(dev: subprocess.Popen[str]) -> list[psutil.Process]:
    return list(psutil.Process(dev.pid).children(recursive=True))


def living(processes: list[psutil.Process]) -> list[psutil.Process]:
    left = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                left.append(process)
    return left


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.05)


def node(dev: subprocess.Popen[str], role: str) -> psutil.Process | None:
    """The main process of a node: the one that is our child's child no more, but `dev`'s own."""
    for process in psutil.Process(dev.pid).children():
        with contextlib.suppress(psutil.Error):
            if any(part.startswith(f"{role}-1@") for part in process.cmdline()):
                return process
    return None


def test_command_finds_everything_and_its_exit_code_is_ours(tmp_path: Path) -> None:
    script = (
        "import os, shutil, sys, psycopg; from noetl_celery.app import app\n"
        "url = os.environ['NOETL_DATABASE_URL']\n"
        "print(psycopg.connect(url).execute('SELECT count(*) FROM noetl.execution').fetchone()[0])\n"
        "print(sorted(name.split('@')[0] for reply in app.control.ping(timeout=2, limit=4) for name in reply))\n"
        "print(os.path.dirname(shutil.which('python')) == os.path.dirname(sys.executable))\n"
        "print(url.partition('host=')[2]); sys.exit(7)"
    )
    done = run_dev("--fresh", "--workers", "2", "-c", "1", "--folder", tmp_path, "--", "python", "-c", script)
    assert done.returncode == 7, done.stderr
    rows, nodes, same_python, folder = done.stdout.splitlines()
    assert (rows, same_python) == ("0", "True")
    assert nodes == "['bodies-1', 'bodies-2', 'control-1', 'control-2']"
    assert not Path(folder).exists()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129), (signal.SIGKILL, -9)]
)
def test_nothing_is_left_after_a_signal(signum: signal.Signals, code: int, tmp_path: Path) -> None:
    with running_dev(tmp_path, "--", *STAY) as dev:
        started = descendants(dev)
        assert len(started) > 5
        dev.send_signal(signum)
        assert dev.wait(60) == code
        wait_for(lambda: not living(started), f"the end of {living(started)}", 20)


def test_it_stays_without_a_command_and_refuses_a_second_one(tmp_path: Path) -> None:
    with running_dev(tmp_path) as dev:
        started = descendants(dev)
        second = run_dev("--folder", tmp_path)
        assert second.returncode == 2
        assert f"process {dev.pid}" in second.stderr
        assert "Traceback" not in second.stderr
        key = tmp_path / ".noetl" / "secret.key"
        assert key.stat().st_mode & 0o777 == 0o600
        dev.send_signal(signal.SIGINT)
        assert dev.wait(60) == 0
        assert dev.stdout
        assert "NOETL_DATABASE_URL" in dev.stdout.read()
        assert living(started) == []


def test_killed_nodes_come_back(tmp_path: Path) -> None:
    with running_dev(tmp_path, "--", *STAY) as dev:
        for role in ("bodies", "control"):
            killed = node(dev, role)
            assert killed
            killed.kill()
            wait_for(lambda role=role, killed=killed: node(dev, role) not in (None, killed), f"a new {role} node")  # type: ignore[misc]
        dev.terminate()
        assert dev.wait(60) == 143


@pytest.mark.parametrize(
    ("arguments", "extra", "says"),
    [
        (["--workers", "0", "--", "no-such-command"], {}, "no-such-command: command not found"),
        (["--nonsense"], {}, "--nonsense"),
        (["--", "true"], {"NOETL_POOL_SIZE": "many"}, "NOETL_POOL_SIZE"),
    ],
)
def test_bad_input(arguments: list[str], extra: dict[str, str], says: str, tmp_path: Path) -> None:
    done = run_dev("--folder", tmp_path, *arguments, **extra)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_services_that_are_not_there(tmp_path: Path) -> None:
    for name, url in (
        ("NOETL_BROKER_URL", "redis://127.0.0.1:1/0"),
        ("NOETL_DATABASE_URL", "postgresql://u:hush@127.0.0.1:1/d"),
    ):
        done = run_dev("--folder", tmp_path, "--", "true", **{name: url})
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        assert "127.0.0.1" in done.stderr
        assert "hush" not in done.stderr

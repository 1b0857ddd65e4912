import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from noetl_celery.cli import supervisor as module
from noetl_celery.cli.supervisor import Child, Program, Signals, Stopped, Supervisor, stop_all, wait_ready
from noetl_celery.errors import InputError, ServiceError

SLEEP = ("sleep", "4711")


def shell(text: str) -> tuple[str, ...]:
    return ("bash", "-c", text)


def wait_for(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    done = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return bool(done.stdout.strip()) and not done.stdout.startswith("Z")


def read_pid(path: Path) -> int:
    wait_for(lambda: path.exists() and path.read_text().endswith("\n"))
    return int(path.read_text())


@pytest.fixture
def signals() -> Iterator[Signals]:
    with Signals() as signals:
        yield signals


@pytest.fixture
def notices() -> list[str]:
    return []


@pytest.fixture
def supervisor(signals: Signals, notices: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervisor]:
    monkeypatch.setattr(module, "FIRST_DELAY_SECONDS", 0.01)
    monkeypatch.setattr(module._Minded, "__init__", _quick(module._Minded.__init__))
    with Supervisor(signals, grace_seconds=1.0, notice=notices.append) as supervisor:
        yield supervisor


def _quick(init: Callable[..., None]) -> Callable[..., None]:
    def quick(self: object, child: Child) -> None:
        init(self, child, delay=0.01)

    return quick


def test_exit_codes_are_those_of_a_shell(supervisor: Supervisor) -> None:
    assert supervisor.run_command(Program("c", shell("exit 7"), own_group=False)) == 7
    assert supervisor.run_command(Program("c", shell("kill -9 $$"), own_group=False)) == 137


@pytest.mark.parametrize("command", ["/nowhere/to/be/found", "/etc/passwd"])
def test_a_command_that_cannot_run_is_invalid_input(supervisor: Supervisor, command: str) -> None:
    with pytest.raises(InputError, match=command):
        supervisor.run_command(Program("c", [command], own_group=False))


def test_a_killed_child_is_started_again(supervisor: Supervisor, notices: list[str]) -> None:
    child = supervisor.start(Program("node", SLEEP))
    assert child.process
    first = child.process.pid
    child.process.kill()
    child.process.wait()
    wait_for(lambda: supervisor.check() and child.running)
    assert child.process.pid != first
    assert "node was ended by SIGKILL; starting it again" in notices[0]


def test_what_a_killed_child_left_ends_before_the_restart(supervisor: Supervisor, tmp_path: Path) -> None:
    child = supervisor.start(Program("node", shell(f"sleep 4711 & echo $! > {tmp_path}/pid; wait")))
    pid = read_pid(tmp_path / "pid")
    assert child.process
    child.process.kill()
    child.process.wait()
    supervisor.check()
    wait_for(lambda: not alive(pid))


def test_a_child_that_never_starts_is_a_failure_with_its_log(supervisor: Supervisor, tmp_path: Path) -> None:
    supervisor.start(Program("node", shell("echo no such option; exit 2"), log=tmp_path / "node.log"))
    with pytest.raises(ServiceError, match=r"(?s)node ended with exit code 2.*no such option"):
        wait_for(lambda: not supervisor.check())


def test_a_meant_end_ends_the_run(supervisor: Supervisor) -> None:
    supervisor.start(Program("other", SLEEP))
    supervisor.start(Program("node", ("true",), restart_always=False))
    assert supervisor.run() == 0


def test_everything_ends_with_the_supervisor(signals: Signals, tmp_path: Path) -> None:
    deaf = shell(f'trap "" TERM; setsid sleep 4711 & echo $! > {tmp_path}/pid; while true; do sleep 1; done')
    with Supervisor(signals, grace_seconds=0.2, notice=print) as supervisor:
        child = supervisor.start(Program("deaf", deaf))
        pid = read_pid(tmp_path / "pid")
    assert not child.running
    wait_for(lambda: not alive(pid))


def test_what_was_there_before_is_left_alone(signals: Signals) -> None:
    with subprocess.Popen(SLEEP) as older:
        with Supervisor(signals, grace_seconds=0.2, notice=print) as supervisor:
            supervisor.start(Program("node", SLEEP))
        assert older.poll() is None
        older.kill()
    # Orphans are not ours any more: this one's parent is another process than we.
    made = subprocess.run(shell("sleep 4711 >&2 & echo $!"), stdout=subprocess.PIPE, text=True, check=True)
    left = psutil.Process(int(made.stdout))
    left.kill()
    assert left.ppid() != os.getpid()


def test_who_asks_a_second_time_gets_a_more_urgent_stop(signals: Signals, tmp_path: Path) -> None:
    slow = shell(f'trap "" TERM; trap "exit 0" QUIT; echo > {tmp_path}/ready; while true; do sleep 0.05; done')
    with Supervisor(signals, grace_seconds=3600, notice=print) as supervisor:
        child = supervisor.start(Program("node", slow, hurry_signal=signal.SIGQUIT))
        wait_for((tmp_path / "ready").exists)
        signals.defer()
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
    assert child.exit_code == 0, "it was not killed"


def test_who_asks_a_second_time_does_not_wait_for_the_deaf(
    signals: Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HURRY_SECONDS", 0.2)
    deaf = shell(f'trap "" TERM QUIT; echo > {tmp_path}/ready; while true; do sleep 0.05; done')
    with Supervisor(signals, grace_seconds=3600, notice=print) as supervisor:
        child = supervisor.start(Program("node", deaf, hurry_signal=signal.SIGQUIT))
        wait_for((tmp_path / "ready").exists)
        signals.defer()
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
    assert child.exit_code == 128 + signal.SIGKILL


def test_a_signal_while_starting_unwinds(signals: Signals) -> None:
    with pytest.raises(Stopped) as caught:
        os.kill(os.getpid(), signal.SIGTERM)
    assert caught.value.code == 143
    os.kill(os.getpid(), signal.SIGTERM)  # the second one does not disturb the unwinding
    assert signals.received == [signal.SIGTERM, signal.SIGTERM]


def test_a_signal_goes_on_to_the_command(supervisor: Supervisor) -> None:
    text = f'trap "exit 42" TERM; kill -TERM {os.getpid()}; while true; do sleep 0.05; done'
    assert supervisor.run_command(Program("c", shell(text), own_group=False)) == 42


def test_a_deaf_command_is_killed_after_the_grace_time(supervisor: Supervisor) -> None:
    text = f'trap "" TERM; kill -TERM {os.getpid()}; while true; do sleep 0.05; done'
    assert supervisor.run_command(Program("c", shell(text), own_group=False)) == 137


def test_children_die_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    script = (
        "import time; from noetl_celery.cli.supervisor import Child, Program\n"
        f"child = Child(Program('c', ['bash', '-c', 'echo $$ > {tmp_path}/pid; exec sleep 4711']))\n"
        "child.start(); time.sleep(4711)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script])
    pid = read_pid(tmp_path / "pid")
    parent.kill()
    parent.wait()
    wait_for(lambda: not alive(pid))


def test_waiting_for_readiness_shows_why_not(tmp_path: Path) -> None:
    child = Child(Program("Redis", shell("echo port in use; exit 1"), log=tmp_path / "log"))
    child.start()
    with pytest.raises(ServiceError, match=r"(?s)Redis ended with exit code 1.*port in use"):
        wait_ready(child, lambda: False, 10)
    slow = Child(Program("Redis", SLEEP, log=tmp_path / "log"))
    slow.start()
    with pytest.raises(ServiceError, match="not ready after"):
        wait_ready(slow, lambda: False, 0.1)
    stop_all([slow], 1.0)
    assert not slow.running

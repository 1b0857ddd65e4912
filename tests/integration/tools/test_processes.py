"""Processes of tasks: that they end when they should, that nobody waits for more, and that nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from noetl_celery.outcome import Outcome
from noetl_celery.tools import processes
from noetl_celery.tools.base import ToolCall
from noetl_celery.tools.limits import Limits, limits, set_limits
from noetl_celery.tools.outcome import run_tool
from noetl_celery.tools.printed import LINE_COSTS, LONGEST_LINE, MOST_CHARACTERS
from noetl_celery.tools.python import PythonTool
from noetl_celery.tools.shell import ShellTool

#: far longer than anything here takes, far shorter than what must not be waited for
SOON = 60.0
PRINTED: list[str] = []


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    PRINTED.clear()
    before = limits()
    yield
    set_limits(before)


def python(code: str, **config: Any) -> Outcome:
    call = ToolCall({"code": code, "timeout": 600, **config}, {}, lambda name: {}, PRINTED.append, {})
    return run_tool(PythonTool(), call)


def shell(command: str, **config: Any) -> Outcome:
    return run_tool(ShellTool(), ToolCall({"command": command, **config}, {}, lambda name: {}, PRINTED.append, {}))


def ends(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def launcher() -> psutil.Process:
    """The launcher of this process, which has to be there."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):  # an earlier test's, that nobody has waited for
            found += [child] if any("launcher" in part for part in child.cmdline()) else []
    assert len(found) == 1
    return found[0]


# -- the end of its time -----------------------------------------------------------------------------------------------

STUBBORN = {
    "ignores signals": "import signal\nfor n in (1, 2, 3, 15): signal.signal(n, signal.SIG_IGN)\nwhile True: pass",
    "swallows everything": "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
    "sleeps in C": "import ctypes; ctypes.CDLL(None).sleep(600)",
    "holds the interpreter": "sum(range(10**12))",
    "waits for its threads": (
        "import threading, time\nthreads = [threading.Thread(target=time.sleep, args=(600,)) for _ in range(3)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]"
    ),
    "has stopped": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
    "leaves its group": "import os, time\npid = os.fork()\nif pid: os.setpgid(0, os.getppid())\ntime.sleep(600)",
}


@pytest.mark.parametrize("code", STUBBORN.values(), ids=STUBBORN)
def test_code_that_does_not_want_to_end_ends(code: str) -> None:
    python("pass")
    outcome = python(code, timeout=0.5)
    assert outcome.error is not None
    assert outcome.error.kind in ("timeout", "python")  # a process may not leave its session: that is its own error
    assert outcome.meta["duration"] < SOON
    ends(lambda: not launcher().children(recursive=True), "something is left of it")


def test_a_group_goes_with_its_process(tmp_path: Path) -> None:
    code = f"""
import os, subprocess, time
subprocess.Popen(["sh", "-c", "trap '' TERM HUP; echo $$ > {tmp_path}/one; sleep 600"])
if os.fork() == 0:
    open("{tmp_path}/two", "w").write(str(os.getpid()))
    time.sleep(600)
while not (os.path.exists("{tmp_path}/one") and os.path.getsize("{tmp_path}/one")): time.sleep(0.01)
while not (os.path.exists("{tmp_path}/two") and os.path.getsize("{tmp_path}/two")): time.sleep(0.01)
"""
    outcome = python(code)
    assert outcome.error is None
    assert outcome.meta["duration"] < SOON
    for name in ("one", "two"):
        ends(lambda name=name: not running(int((tmp_path / name).read_text())), "it lives on")  # type: ignore[misc]


# -- what holds its streams --------------------------------------------------------------------------------------------

ESCAPED = "subprocess.Popen(['sleep', '600'], start_new_session=True)"


def test_a_child_that_leaves_and_holds_the_streams_is_not_waited_for() -> None:
    outcome = python(f"import subprocess\nreturn {ESCAPED}.pid")
    assert outcome.error is None
    assert outcome.meta["duration"] < SOON
    os.kill(outcome.data, signal.SIGKILL)
    begun = time.monotonic()
    outcome = shell("setsid sleep 600 & echo $!; printf 'no end'")
    assert time.monotonic() - begun < SOON
    assert outcome.data["stdout"].endswith("no end")


def test_the_end_of_the_code_counts_not_that_of_a_fork_which_holds_the_answer(tmp_path: Path) -> None:
    """A fork has all descriptors, also that of the answer; out of the group nothing kills it."""
    code = f"""
import os, signal, time
pid = os.fork()
if pid == 0:
    os.setsid()
    open("{tmp_path}/ready", "w").close()
    time.sleep(600)
while not os.path.exists("{tmp_path}/ready"): time.sleep(0.01)
print(pid)
os.kill(os.getpid(), signal.SIGKILL)
"""
    outcome = python(code)
    assert outcome.error is not None
    assert outcome.error.message == "the code's process was killed by signal 9 (out of memory?)"
    os.kill(int(PRINTED[0]), signal.SIGKILL)


@pytest.mark.parametrize("timeout", [None, 60])
def test_a_fork_that_runs_out_of_the_code_is_no_second_worker(timeout: float | None) -> None:
    outcome = python("import os\npid = os.fork()\nreturn pid", timeout=timeout)
    assert outcome.error is None
    assert outcome.data > 0
    if timeout is None:
        assert os.waitpid(outcome.data, 0)[1] == 0


# -- memory ------------------------------------------------------------------------------------------------------------


def test_no_memory_is_an_error_of_its_row() -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_AS, (600 * 2**20, 600 * 2**20))\n"
    outcome = python(limit + "x = []\nwhile True: x.append(bytearray(2**20))")
    assert outcome.error is not None
    assert outcome.error.code == "MemoryError"
    outcome = python(limit + "return 'x' * (250 * 2**20)")
    assert outcome.error is not None
    assert outcome.error.message.startswith("MemoryError: the result does not fit")


def test_they_go_before_the_worker_when_memory_is_short() -> None:
    assert python("return open('/proc/self/oom_score_adj').read()").data.strip() == "500"
    assert shell("cat /proc/self/oom_score_adj").data["output"] == "500"


# -- large and odd things ----------------------------------------------------------------------------------------------


def test_a_result_that_is_too_large_never_reaches_this_process() -> None:
    set_limits(Limits(output_bytes=100_000))
    before = psutil.Process().memory_info().rss
    outcome = python("return 'x' * 200_000_000")
    assert outcome.error is not None
    assert (outcome.error.kind, outcome.error.message) == (
        "result_too_large",
        "the result has 200,000,014 bytes as JSON; NOETL_RESULT_MAX_BYTES allows 100,000",
    )
    assert psutil.Process().memory_info().rss - before < 50_000_000


@pytest.mark.parametrize("timeout", [None, 60], ids=["thread", "process"])
@pytest.mark.parametrize(
    "code",
    ["print('x' * 50_000_000)", "for _ in range(50): print('x' * 1000_000, end='')", "while i: print(i); i -= 1"],
)
def test_what_is_printed_is_bounded(code: str, timeout: float | None) -> None:
    outcome = python(f"i = 50_000\n{code}\nreturn 1", timeout=timeout)
    assert outcome.data == 1
    assert max(map(len, PRINTED)) < LONGEST_LINE + 50
    assert sum(len(line) + LINE_COSTS for line in PRINTED) < MOST_CHARACTERS + LONGEST_LINE + 500
    assert PRINTED[-1].startswith("xxx") or PRINTED[-1].startswith("(the rest of what this task prints")


def test_stray_output_is_bounded_too() -> None:
    code = "import os\nfor _ in range(100): os.write(1, b'x' * 1_000_000)\nos.write(2, b'\\xff\\ndone\\n')\nreturn 1"
    assert python(code).data == 1
    assert [f"{'x' * LONGEST_LINE}… (100,000,001 characters)", "done"] == PRINTED


def test_odd_text_can_be_printed() -> None:
    assert python("print('a\\ud800b', '\\0')\nreturn '\\ud800'").data == "\ud800"
    assert PRINTED == ["a\\ud800b \0"]


ODD = {
    "int": ("10**5000", "result_type", "4300"),
    "generator": ("(i for i in [1])", "result_type", "generator"),
    "deep": ("__import__('functools').reduce(lambda x, _: [x], range(10000), 1)", "result_type", "200 levels"),
}


@pytest.mark.parametrize(("value", "kind", "says"), ODD.values(), ids=ODD)
def test_what_cannot_be_kept_is_said(value: str, kind: str, says: str) -> None:
    outcome = python(f"return {value}")
    assert outcome.error is not None
    assert outcome.error.kind == kind
    assert says in outcome.error.message


def test_what_has_a_form_of_its_own() -> None:
    assert python("return [float('nan'), float('-inf'), b'\\xff', {1: None}]").data == [None, None, "/w==", {"1": None}]


# -- what dies around it -----------------------------------------------------------------------------------------------

WORKER = """
import sys, threading, time
sys.path.insert(0, {path!r})
from test_processes import python, shell
def both(): shell({command!r})
threading.Thread(target=both).start()
python({code!r})
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_survives_its_worker(tmp_path: Path, how: signal.Signals) -> None:
    """Neither the processes nor what they have started; also if the worker has no time to do anything about it."""
    names = ["code", "grandchild", "command", "background"]
    write = "open({!r}, 'w').write(str({}))"
    code = (
        "import os, subprocess, time\n"
        + write.format(f"{tmp_path}/code", "os.getpid()")
        + "\np = subprocess.Popen(['sh', '-c', 'sleep 600; true'])\n"
        + write.format(f"{tmp_path}/grandchild", "p.pid")
        + "\ntime.sleep(600)"
    )
    command = f"sleep 600 & echo $! > {tmp_path}/background; echo $$ > {tmp_path}/command; wait"
    program = WORKER.format(path=str(Path(__file__).parent), code=code, command=command)
    with subprocess.Popen([sys.executable, "-c", program]) as worker:
        files = [tmp_path / name for name in names]
        ends(lambda: all(file.exists() and file.read_text().strip() for file in files), "they have begun")
        ids = [int(file.read_text()) for file in files]
        minder = psutil.Process(worker.pid).children()[0]
        assert all(map(running, ids))
        worker.send_signal(how)
    for pid in (*ids, minder.pid):
        ends(lambda pid=pid: not running(pid), f"{pid} lives on")  # type: ignore[misc]


def test_a_launcher_that_dies_is_replaced() -> None:
    ran: list[Outcome] = []
    shell("true")
    waiting = threading.Thread(target=lambda: ran.append(shell("echo here; sleep 600")))
    waiting.start()
    ends(lambda: PRINTED == ["here"], "the command has begun")
    first = launcher()
    (command,) = first.children()
    first.kill()
    waiting.join(SOON)
    assert ran[0].error is not None
    assert ran[0].error.message.startswith("the command was lost with the process that started it")
    ends(lambda: not running(command.pid), "the command lives on")
    assert shell("echo again").data["output"] == "again"


def test_a_stop_of_everything_is_for_the_worker_to_decide() -> None:
    """systemd and others tell every process of a service to end at once."""
    ran: list[Outcome] = []
    shell("true")
    waiting = threading.Thread(target=lambda: ran.append(shell("echo here; sleep 0.5; echo done")))
    waiting.start()
    ends(lambda: PRINTED == ["here"], "the command has begun")
    launcher().terminate()
    waiting.join(SOON)
    assert ran[0].error is None
    assert PRINTED == ["here", "done"]


def test_a_fork_of_the_worker_has_a_launcher_of_its_own() -> None:
    shell("true")
    before = launcher().pid
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = int(shell("true").error is not None or before in [c.pid for c in psutil.Process().children()])
            processes.close()
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    assert launcher().pid == before


# -- nothing is left behind --------------------------------------------------------------------------------------------


def test_a_thousand_leave_nothing_behind() -> None:
    shell("true")
    minder = launcher()
    folder = Path(tempfile.gettempdir())

    def left() -> tuple[int, int, int, set[str]]:
        names = {entry.name for entry in folder.iterdir() if entry.name.startswith("tmp")}
        return len(os.listdir("/proc/self/fd")), minder.num_fds(), len(psutil.Process().children()), names

    before = left()
    threads = [threading.Thread(target=_many, args=(kind,)) for kind in (0, 1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ends(lambda: not minder.children(recursive=True), "zombies")
    after = left()
    assert after[:3] == before[:3]
    assert not {name for name in after[3] - before[3] if (folder / name).is_file()}
    assert launcher() == minder


def _many(kind: int) -> None:
    for number in range(250):
        if kind == 0:
            assert shell("exit 1").error is not None
        elif kind == 1:
            assert python("return 1").data == 1
        elif kind == 2:
            assert shell("sleep 9 & true" if number % 2 else "no/such/program", timeout=60) is not None
        else:
            assert python("import time; time.sleep(60)", timeout=0.005).error is not None

"""Commands: what they are given, what becomes of their output, and that they end."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from noetl_celery.errors import ErrorInfo
from noetl_celery.outcome import Outcome
from noetl_celery.tools.base import ToolCall
from noetl_celery.tools.limits import Limits, limits, set_limits
from noetl_celery.tools.outcome import run_tool
from noetl_celery.tools.shell import ShellTool

LINES: list[str] = []


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    LINES.clear()
    before = limits()
    yield
    set_limits(before)


def run(deadline: float | None = None, **config: Any) -> Outcome:
    call = ToolCall(config, {}, lambda name: {}, LINES.append, {}, deadline)
    return run_tool(ShellTool(), call)


def data(**config: Any) -> Any:
    outcome = run(**config)
    assert outcome.error is None, outcome.error
    return outcome.data


def error(**config: Any) -> ErrorInfo:
    outcome = run(**config)
    assert outcome.error is not None
    return outcome.error


def running(pid: int) -> bool:
    """Whether a process is there and not only waits to be buried."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pid: int, seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while running(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


# -- what is run -------------------------------------------------------------------------------------------------------


def test_a_command_and_its_result() -> None:
    assert data(command="echo one; echo two >&2") == {
        "exit_code": 0,
        "stdout": "one\n",
        "stderr": "two\n",
        "output": "one",
    }
    assert sorted(LINES) == ["one", "two"]


@pytest.mark.parametrize("key", ["cmds", "commands"])
def test_lines_share_one_shell(key: str) -> None:
    result = data(**{key: ["cd /", "x=1 # a comment", "if true\nthen pwd\nfi", 'echo "$x"']})
    assert result["stdout"] == "/\n1\n"


@pytest.mark.parametrize("key", ["cmds", "commands", "cmd", "command"])
def test_text_is_a_script_under_every_name(key: str) -> None:
    assert data(**{key: "for x in 1 2\ndo echo $x\ndone"})["stdout"] == "1\n2\n"


def test_the_first_line_that_fails_ends_the_script() -> None:
    outcome = run(cmds=["echo one", "false", "echo two"])
    assert outcome.data["stdout"] == "one\n"
    assert outcome.error is not None
    assert outcome.error.code == "1"
    assert data(cmds=["false; true", "echo two \\", "echo three"])["stdout"] == "two\nthree\n"
    assert error(cmds=["exit 3", "true"]).code == "3"
    assert data(cmds=["exit 0", "false"])["exit_code"] == 0


@pytest.mark.parametrize("key", ["cmd", "command"])
def test_a_list_is_a_program_with_its_arguments(key: str) -> None:
    assert (
        data(**{key: ["printf", "%s|", "a b", "$HOME", 7, True, {"a": [1]}]})["stdout"]
        == 'a b|$HOME|7|true|{"a": [1]}|'
    )


def test_the_shell_can_be_chosen() -> None:
    assert data(command="import sys; print(sys.argv[0])", shell=sys.executable)["output"] == "-c"
    assert error(command="false; true", shell="sh -e").code == "1"
    assert "cannot be read" in error(command="true", shell="sh '").message


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_is_what_scripts_expect() -> None:
    assert error(command="if ! command -v no-such-program &> /dev/null; then exit 9; fi").code == "9"


# -- what it gets ------------------------------------------------------------------------------------------------------


def test_the_environment_is_ours_without_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOETL_SECRET_KEY", "hush")
    monkeypatch.setenv("OF_THE_WORKER", "w")
    monkeypatch.setenv("NOT_WANTED", "x")
    seen = data(command="env", env={"TEXT": "a b", "NUMBER": 7, "YES": True, "MAP": {"a": 1}, "NOT_WANTED": None})
    lines = seen["stdout"].splitlines()
    assert {"OF_THE_WORKER=w", "TEXT=a b", "NUMBER=7", "YES=true", 'MAP={"a": 1}'} <= set(lines)
    assert "hush" not in seen["stdout"]
    assert not [line for line in lines if line.startswith("NOT_WANTED=")]


def test_input_and_folder(tmp_path: Path) -> None:
    assert data(command="cat; pwd", stdin="ä\n", cwd=str(tmp_path))["stdout"] == f"ä\n{tmp_path}\n"
    assert data(command="cat")["stdout"] == ""
    assert data(command="cat", stdin={"a": 1})["output"] == {"a": 1}
    big = "x" * 3_000_000
    assert data(command="cat", stdin=big)["stdout"] == big
    missing = error(command="pwd", cwd=str(tmp_path / "no"))
    assert (missing.kind, str(tmp_path / "no") in missing.message) == ("config", True)


# -- what comes out ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "output"),
    [
        ('{"a": [1]}\n', {"a": [1]}),
        ("[1, 2]", [1, 2]),
        ("7\n", "7"),
        ("{no json}\n\n", "{no json}"),
        ("[" * 5000, "[" * 5000),
        (" text \n", " text "),
        ("", ""),
    ],
)
def test_output_is_data_where_it_is_json(written: str, output: Any) -> None:
    result = data(command="cat", stdin=written)
    assert (result["stdout"], result["output"]) == (written, output)


@pytest.mark.parametrize(("written", "encoded"), [(r"\377\376", "//4="), (r"a\000b", "YQBi")])
def test_bytes_are_base64(written: str, encoded: str) -> None:
    result = data(command=f"printf '{written}'; echo fine >&2")
    assert (result["stdout"], result["stderr"], result["base64"]) == (encoded, "fine\n", ["stdout"])
    assert result["output"] == encoded
    assert len(LINES) == 2


def test_a_line_without_an_end_is_printed_too() -> None:
    data(command="printf 'one\\ntwo'")
    assert LINES == ["one", "two"]


def test_too_much_output_is_an_error_and_ends_the_command() -> None:
    set_limits(Limits(output_bytes=1000))
    assert len(data(command="head -c 1000 /dev/zero | tr '\\0' x")["stdout"]) == 1000
    outcome = run(command="yes")
    assert outcome.error is not None
    assert outcome.error.kind == "output_too_large"
    assert "more than 1000 bytes" in outcome.error.message
    assert outcome.data is None, "never a part of it"


# -- what fails --------------------------------------------------------------------------------------------------------


def test_an_exit_code_is_an_error_with_the_data() -> None:
    outcome = run(command="echo out; for i in 1 2 3 4 5 6 7; do echo line $i >&2; done; exit 3")
    assert outcome.error is not None
    assert (outcome.error.kind, outcome.error.code, outcome.error.retryable) == ("shell", "3", False)
    assert outcome.error.message == "exit code 3: line 3\nline 4\nline 5\nline 6\nline 7"
    assert (outcome.data["exit_code"], outcome.data["stdout"]) == (3, "out\n")
    assert error(command="echo 'ERROR: no docker'; exit 1").message == "exit code 1: ERROR: no docker"
    assert error(command="exit 1").message == "exit code 1"


def test_signals() -> None:
    outcome = run(command="kill -9 $$")
    assert outcome.error is not None
    assert (outcome.error.code, outcome.data["exit_code"]) == ("137", 137)
    assert "killed by signal 9 (out of memory?)" in outcome.error.message


def test_programs_that_cannot_be_started(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("")
    missing = error(command=["no-such-program", "hush"])
    assert (missing.kind, missing.code) == ("shell", "127")
    assert missing.message == "there is no program `no-such-program` on this worker"
    assert error(command=[str(plain)]).code == "126"
    assert error(command=["echo", "a\0b"]).kind == "config"
    assert "hand data over in `stdin`" in error(command=["echo", "x" * 3_000_000]).message


def test_the_time_is_over_for_the_whole_group() -> None:
    outcome = run(command="echo begun; sleep 300 & echo $!; wait", timeout=0.3)
    assert outcome.error is not None
    assert outcome.error.kind == "timeout"
    assert (outcome.data["exit_code"], outcome.data["stdout"].startswith("begun\n")) == (None, True)
    assert gone(int(outcome.data["stdout"].split()[1]))


def test_the_deadline_of_the_row_counts_too() -> None:
    begun = time.monotonic()
    assert error(command="sleep 300", timeout=200, deadline=begun + 0.2).kind == "timeout"
    assert error(command="touch /no/such/file", deadline=begun).message.startswith("the time of the step was over")
    assert time.monotonic() - begun < 100


def test_what_stays_in_the_background_holds_up_nothing_and_ends() -> None:
    """It keeps the output open: without an end of its own the task would wait for it."""
    begun = time.monotonic()
    result = data(command="sleep 300 & echo $!")
    assert time.monotonic() - begun < 100
    assert gone(int(result["output"]))


def test_a_command_that_closes_its_output_is_waited_for(tmp_path: Path) -> None:
    data(command=f"exec >&- 2>&-; sleep 0.2; echo done > {tmp_path}/file")
    assert (tmp_path / "file").read_text() == "done\n"
    assert error(command="exec >&- 2>&-; sleep 300", timeout=0.2).kind == "timeout"


def test_no_descriptors_are_left_open() -> None:
    data(command="true")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        run(command="exit 1")
        run(command="sleep 9", timeout=0.01)
    assert len(os.listdir("/proc/self/fd")) == before


# -- what is refused at registration -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "key", "says"),
    [
        ({}, None, "needs one of `cmds`"),
        ({"cmds": [], "timeout": 1}, "cmds", "`cmds` is empty"),
        ({"cmds": ["a"], "command": "b"}, "command", "only one of"),
        ({"command": {"a": 1}}, "command", "text or a list"),
        ({"command": "a", "stdn": ""}, "stdn", "did you mean `stdin`?"),
        ({"command": "a", "env": ["A=1"]}, "env", "has to be a mapping"),
        ({"command": "a", "cwd": 7}, "cwd", "has to be text"),
        ({"command": "a", "timeout": 0}, "timeout", "above 0"),
    ],
)
def test_what_is_wrong_as_written(config: dict[str, Any], key: str | None, says: str) -> None:
    [(where, message)] = ShellTool().check(config)
    assert where == key
    assert says in message


@pytest.mark.parametrize(
    "config",
    [
        {"cmds": ["echo {{ x }}"], "env": "{{ env }}", "timeout": "{{ t }}", "cwd": "{{ c }}", "desc": "d"},
        {"command": "{{ workload.command }}", "stdin": [1], "shell": "bash -eu"},
    ],
)
def test_what_is_fine_as_written(config: dict[str, Any]) -> None:
    assert ShellTool().check(config) == []


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"command": "", "cmds": []}, "needs one of"),
        ({"cmds": ["echo", None]}, "`cmds` has an empty value"),
        ({"command": "true", "env": "text"}, "`env` has to be a mapping"),
        ({"command": "true", "timeout": "soon"}, "`timeout`"),
    ],
)
def test_what_turns_out_wrong_once_rendered(config: dict[str, Any], says: str) -> None:
    found = error(**config)
    assert found.kind == "config"
    assert says in found.message

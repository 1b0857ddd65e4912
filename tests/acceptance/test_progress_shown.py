"""What people see of a run that takes its time: bars on a terminal of any width, lines elsewhere, or nothing."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from pathlib import Path

import pytest
from running import CLI, System

pytestmark = pytest.mark.acceptance

#: the last row waits until somebody has seen the bar
WORKFLOW = """
  - step: start
    spec: {policy: {failure: {mode: best_effort}}}
    loop: {in: "{{ [0, 1, 2, 3] }}", iterator: number, spec: {mode: parallel, max_in_flight: 4}}
    tool:
      kind: python
      input: {number: "{{ iter.number }}", file: "{{ workload.file }}"}
      code: |
        import pathlib, time
        if number == 2:
            raise ValueError("even")
        while number == 3 and not pathlib.Path(file).exists():
            time.sleep(0.05)
      spec: {policy: {rules: [{when: "{{ output.status == 'error' }}", then: {do: retry, attempts: 2, delay: 0}}]}}
"""


def on_terminal(system: System, columns: int, until: str, file: Path, *arguments: str) -> tuple[int, str, str]:
    """Runs a command whose standard error is a terminal, and makes ``file`` when that shows ``until``: its exit code,
    what it printed, and what was drawn, without the codes that move and paint."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = {**system.env, "TERM": "xterm", "COLUMNS": str(columns)}
    drawn = b""
    with subprocess.Popen(
        [*CLI, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=slave,
        env=env,
        cwd=system.folder,
        text=True,
    ) as command:
        os.close(slave)
        try:
            while part := os.read(master, 65_536):
                drawn += part
                if until in drawn.decode(errors="replace"):
                    file.touch()
        except OSError:  # Linux says so when nobody has the terminal open any more
            pass
        assert command.stdout
        out = command.stdout.read()
    os.close(master)
    return command.returncode, out, re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", drawn.decode())


@pytest.mark.parametrize("columns", [120, 40])
def test_bars_on_a_terminal(columns: int, system: System, tmp_path: Path) -> None:
    file = tmp_path / "seen"
    playbook = system.playbook("bars", WORKFLOW, workload=f"{{file: {file}}}")
    code, out, drawn = on_terminal(system, columns, "3 of 4 rows", file, "run", playbook)
    assert code == 0
    assert "━" in drawn
    assert "75%" in drawn
    assert "1 failed, 1 retry" in drawn
    assert max(len(line) for line in re.split(r"[\r\n]+", drawn)) <= columns
    *_, summary = out.splitlines()
    assert re.match(r"4 rows in .* s \(.*\): 3 ok, 1 failed; 1 retry; slowest step: start \(.* s\)", summary)


def test_lines_without_a_terminal_and_nothing_if_unwanted(system: System, tmp_path: Path) -> None:
    file = tmp_path / "seen"
    playbook = system.playbook("bars", WORKFLOW, workload=f"{{file: {file}}}")
    execution = system.cli("run", playbook, "--detach").stdout.strip()
    with (
        system.start("wait", execution, "--quiet") as quiet,
        system.start("status", execution, "--watch", "-q", "--json") as as_json,
        system.start("wait", execution) as plain,
    ):
        assert plain.stderr
        line = plain.stderr.readline()
        file.touch()
        assert quiet.communicate()[1] == ""
        assert as_json.communicate()[1] == ""
        plain.communicate()
    assert line.startswith("start: 3 of 4 rows, 75%, ")
    assert "1 failed, 1 retry" in line
    assert [command.returncode for command in (quiet, as_json, plain)] == [0, 0, 0]
